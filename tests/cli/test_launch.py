"""The launch scripts: mpirun.sh for real, octet.sbatch with a srun that is mpirun and a scontrol that takes notes."""

import os
import signal
import subprocess
import unittest

import octet_cli
from octet_cli import OK, PATIENCE, SOURCE, STOPPED, Sandbox

SCRIPTS = SOURCE / "scripts" / "launch"
MCA = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
SRUN = """#!/bin/bash
[[ "$*" == *--mpi=pmix* ]] || exit 99
while [[ $1 == -* ]]; do shift; done
exec mpirun --allow-run-as-root --bind-to none -np 2 "$@"
"""


@unittest.skipUnless("Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout, "the flags here are Open MPI's")
class Launch(Sandbox):
    def setUp(self):
        super().setUp()
        self.config = octet_cli.write_json(self.folder / "config.json", octet_cli.tiny_config(self.prefix))
        self.run_dir = self.folder / "run"
        self.tools = self.folder / "tools"
        self.tools.mkdir()

    def environment(self, **more):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMI", "OMPI_"))}
        return {**clean, **MCA, "OCTET": octet_cli.binary(), "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0:verify_asan_link_order=0", **more}

    def tool(self, name, text):
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def script(self, name, *arguments, **variables):
        return subprocess.run([str(SCRIPTS / name), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * PATIENCE,
                              env=self.environment(**variables), cwd=self.folder)

    def test_mpirun(self):
        done = self.script("mpirun.sh", "-np", 2, "--", "--config", self.config, "--run-dir", self.run_dir)
        self.assertEqual((done.returncode, done.stderr), (OK, ""), done.stdout)
        self.assertIn("2 ranks: dp 2", done.stdout)
        self.assertEqual(max(octet_cli.steps(self.run_dir)), 8)

    def test_mpirun_says_what_is_wrong(self):
        for arguments, variables, part in ((["-np", 2], {}, '"--" is missing'), (["-np", 2, "--"], {"OCTET": "/nowhere/octet"}, "/nowhere/octet: no such program")):
            done = self.script("mpirun.sh", *arguments, **variables)
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), done.stderr)
            self.assertIn(part, done.stderr)

    def slurm(self, steps):
        """The job script as a batch of Slurm would run it; returns the process."""
        self.tool("srun", SRUN)
        self.tool("scontrol", f'#!/bin/sh\necho "$@" >> {self.folder}/scontrol.log\n')
        command = [str(SCRIPTS / "octet.sbatch"), "--config", str(self.config), "--run-dir", str(self.run_dir), "--set", f"run.steps={steps}"]
        env = self.environment(PATH=f"{self.tools}:{os.environ['PATH']}", SLURM_JOB_ID="77")
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=self.folder, start_new_session=True)

    def test_slurm_job_is_requeued_until_it_is_done(self):
        job = self.slurm(1_000_000)
        octet_cli.wait_for(lambda: octet_cli.last_step(self.run_dir) >= 3, job, "step 3")
        # Slurm signals the processes of srun's step.
        children = subprocess.run(["ps", "-o", "pid=,comm=", "-g", str(job.pid)], capture_output=True, text=True).stdout.split()
        os.kill(int(children[children.index("mpirun") - 1]), signal.SIGUSR1)
        text, _ = job.communicate(timeout=60 * PATIENCE)
        self.assertEqual(job.returncode, STOPPED, text)
        self.assertEqual((self.folder / "scontrol.log").read_text(), "requeue 77\n")
        reached = octet_cli.last_step(self.run_dir)
        job = self.slurm(reached + 2)
        text, _ = job.communicate(timeout=60 * PATIENCE)
        self.assertEqual(job.returncode, OK, text)
        self.assertIn(f"at step {reached}", text)
        self.assertEqual((self.folder / "scontrol.log").read_text(), "requeue 77\n")


if __name__ == "__main__":
    unittest.main()
