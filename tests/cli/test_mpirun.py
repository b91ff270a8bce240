"""Communication over real MPI: the program mpi_check (tests/dist) under Open MPI's mpirun on this machine.

Operations and bytes, then faults: a rank that is killed, that stands still, that throws. mpirun is kept from cleaning up, so that it is the other ranks
themselves that end; each runs below a small shell script that keeps its exit code and the time of its end.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import octet_cli
from octet_cli import CONFIG, PATIENCE

TOOLS = pathlib.Path(octet_cli.binary()).parent / "tests"
CHECK, COUNTER = TOOLS / "mpi_check", TOOLS / "libpmpi_count.so"
DEADLINE, FAULT = 31, 32
# Containers often forbid the system call behind single-copy transfers; ranks share cores here.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism", "none"]
# Jobs that run beside each other do not share a session folder, which one removes when it ends. Short: its path is part of a socket's name.
SESSIONS = tempfile.TemporaryDirectory(prefix="om-")
STAY = ["--mca", "orte_enable_recovery", "1"]  # a dead rank ends nobody else
KEEP_CODE = 'trap "" TERM; "$@"; echo $? $(date +%s.%N) > $CODES.$OMPI_COMM_WORLD_RANK.new; mv $CODES.$OMPI_COMM_WORLD_RANK.new $CODES.$OMPI_COMM_WORLD_RANK'
OPERATION = re.compile(r"rank \d+ on \S+, group dp: \w+( sum)? of (\d+ tensors, )?\d+ \w+ \(\d+ bytes\), operation \d+")


def environment(**more):
    # The sanitizers' leak check sees MPI's own; its library need not come first.
    asan = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0:verify_asan_link_order=0"
    # Not what an outer launcher says of this process; but how mpirun starts ranks on this machine (no ssh in a container, say) stays.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMI", "OMPI_")) or k.startswith("OMPI_MCA_plm")}
    return {**clean, "OMPI_MCA_orte_tmpdir_base": SESSIONS.name, "ASAN_OPTIONS": asan, **{k: str(v) for k, v in more.items()}}


class Job:
    """mpi_check under mpirun, in a folder of its own."""

    def __init__(self, test, ranks, *arguments, flags=()):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="octet-mpi-"))
        test.addCleanup(shutil.rmtree, self.folder)
        self.ranks, self.codes, self.log = ranks, self.folder / "code", self.folder / "log"
        command = [*MPIRUN, *STAY, *flags, "-np", str(ranks), "sh", "-c", KEEP_CODE, "sh", CHECK, *map(str, arguments)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(CODES=self.codes), cwd=self.folder)
        test.addCleanup(self.end)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for path in self.folder.glob("pid.*"):
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                pass

    def text(self):
        return self.log.read_text(errors="replace")

    def pid(self, rank):
        path = self.folder / f"pid.{rank}"
        octet_cli.wait_for(lambda: path.exists() and path.read_text().endswith("\n"), self.process, f"rank {rank} started")
        return int(path.read_text())

    def started(self):
        """Waits until all ranks run, and are at work."""
        for rank in range(self.ranks):
            self.pid(rank)
        time.sleep(0.3)
        return self

    def ended(self, ranks, within_s):
        """Exit code and time of these ranks' ends, which must come within so many seconds."""
        limit = time.monotonic() + within_s * PATIENCE
        while not all(pathlib.Path(f"{self.codes}.{r}").exists() for r in ranks):
            if time.monotonic() > limit:
                raise AssertionError(f"ranks {list(ranks)} have not all ended within {within_s} s\n{self.text()}")
            time.sleep(0.01)
        ends = {r: pathlib.Path(f"{self.codes}.{r}").read_text().split() for r in ranks}
        return {r: (int(code), float(at)) for r, (code, at) in ends.items()}


@unittest.skipUnless("Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout, "the flags here are Open MPI's")
class Mpirun(unittest.TestCase):
    def run_ranks(self, ranks, *arguments, flags=(), **variables):
        command = [*MPIRUN, *flags, "-np", str(ranks), str(CHECK), *map(str, arguments)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * PATIENCE, env=environment(**variables))

    def test_every_operation_has_the_bits_of_a_plain_loop(self):
        # The local backend is held to the same loops, bit for bit (unit_comm).
        for ranks in (2, 3, 4):
            done = self.run_ranks(ranks, "operations")
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), f"{ranks} ranks")

    def counted(self, mode):
        """Of each of 3 ranks: bytes of tensors and of greetings as Comm counts them; bytes and messages that MPI was given."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="octet-mpi-")))
        done = self.run_ranks(3, mode, folder / "comm", flags=["-x", f"LD_PRELOAD={COUNTER}", "-x", "PMPI_COUNT"], PMPI_COUNT=folder / "mpi")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for rank in range(3):
            _, tensors, greetings = map(int, (folder / f"comm.{rank}").read_text().split())
            yield rank, tensors, greetings, *map(int, (folder / f"mpi.{rank}").read_text().split())

    def test_bytes_are_those_that_mpi_was_given(self):
        for rank, tensors, greetings, sent, messages in self.counted("traffic"):
            self.assertGreater(tensors, 3_000_000)
            self.assertEqual(sent, tensors + greetings, f"rank {rank}")
            self.assertGreater(messages, 10)

    def test_small_tensors_of_a_list_travel_in_one_message(self):
        for rank, tensors, greetings, sent, messages in self.counted("messages"):
            self.assertEqual(sent, tensors + greetings, f"rank {rank}")
            self.assertEqual(messages, 3 * 2, "greeting, all_gather, all_reduce to two other ranks")

    def test_launch(self):
        done = self.run_ranks(2, "alone")
        self.assertEqual(sorted(done.stdout.splitlines()), [f"rank {r} of 2, local rank {r} of 2, 2 hosts" for r in range(2)], done.stderr)

        def alone(**variables):
            return subprocess.run([str(CHECK), "alone"], capture_output=True, text=True, timeout=60 * PATIENCE, env=environment(**variables))

        for variables in ({}, {"SLURM_JOB_ID": 5, "SLURM_NTASKS": 2}, {"SLURM_STEP_ID": 0, "SLURM_PROCID": 0, "SLURM_NTASKS": 1}):
            self.assertEqual(alone(**variables).stdout, "rank 0 of 1, local rank 0 of 1, 1 hosts\n")
        done = alone(SLURM_JOB_ID=5, SLURM_STEP_ID=0, SLURM_PROCID=1, SLURM_NTASKS=2)
        self.assertEqual((done.returncode, done.stdout), (FAULT, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for part in ("octet: error: ", "srun started 2 processes", "MPI sees 1", "srun --mpi=pmix", "Open MPI"):
            self.assertIn(part, done.stderr)

    def test_a_rank_that_throws_ends_the_others_with_its_code(self):
        job = Job(self, 3, "throw")
        ends = job.ended(range(3), 15)
        self.assertEqual({r: code for r, (code, _) in ends.items()}, {0: CONFIG, 1: CONFIG, 2: CONFIG}, job.text())
        self.assertLess(max(at for _, at in ends.values()) - min(at for _, at in ends.values()), 1 * PATIENCE)
        self.assertEqual(len(re.findall(r"octet: error: rank 1 on \S+ ended: config.json: batch.micro is wrong here", job.text())), 2, job.text())
        self.assertEqual(len(re.findall(r"(?m)^octet: error: config.json: batch.micro is wrong here$", job.text())), 1, job.text())

    def test_members_that_do_not_call_the_same(self):
        order, sizes = Job(self, 2, "disorder"), Job(self, 2, "mismatch")
        self.assertEqual({code for code, _ in order.ended(range(2), 15).values()}, {70}, order.text())
        self.assertRegex(order.text(), r"rank 0 makes the group tp .* while rank 1 makes the group dp|rank 1 makes the group dp .* while rank 0 makes the group tp")
        self.assertLessEqual({code for code, _ in sizes.ended(range(2), 15).values()}, {70, FAULT}, sizes.text())
        self.assertRegex(sizes.text(), r"sent 360 bytes where 400 were expected|message truncated")

    def assert_all_say_where(self, job, ends):
        for rank, (code, _) in ends.items():
            self.assertIn(code, (DEADLINE, FAULT), f"rank {rank}\n{job.text()}")
        lines = [line for line in job.text().splitlines() if line.startswith("octet: error: ")]
        self.assertGreaterEqual(len(lines), len(ends), job.text())
        for line in lines:
            self.assertRegex(line, OPERATION)

    def test_a_killed_rank_ends_the_others(self):
        jobs = [Job(self, 3, "train", "pid"), Job(self, 3, "train", "pid", flags=["--mca", "btl", "tcp,self"])]
        for job in jobs:
            job.started()
        for job in jobs:
            os.kill(job.pid(1), signal.SIGKILL)
        for job in jobs:
            ends = job.ended([0, 2], 3 + 1.5)
            self.assert_all_say_where(job, ends)
            self.assertRegex(job.text(), r"it waits for rank 1 on ")
            job.process.wait(timeout=20)

    def test_a_stopped_rank_ends_the_others_and_itself_when_it_goes_on(self):
        job = Job(self, 3, "train", "pid").started()
        os.kill(job.pid(2), signal.SIGSTOP)
        ends = job.ended([0, 1], 3 + 1.5)
        self.assert_all_say_where(job, ends)
        self.assertFalse(pathlib.Path(f"{job.codes}.2").exists())
        os.kill(job.pid(2), signal.SIGCONT)
        self.assertIn(job.ended([2], 3)[2][0], (DEADLINE, FAULT), job.text())

    def test_a_short_stop_changes_nothing(self):
        job = Job(self, 2, "train", "pid").started()
        os.kill(job.pid(1), signal.SIGSTOP)
        time.sleep(1)
        os.kill(job.pid(1), signal.SIGCONT)
        time.sleep(0.5)
        self.assertIsNone(job.process.poll(), job.text())
        self.assertEqual(job.text(), "")

    def test_an_absent_rank_is_named(self):
        job = Job(self, 3, "absent")
        ends = job.ended([0, 1], 15)
        self.assert_all_say_where(job, ends)
        self.assertRegex(job.text(), r"all_reduce sum of 1 i64 \(8 bytes\), operation 2, has taken 1.\d s .* it waits for rank 2 on ")


if __name__ == "__main__":
    unittest.main()
