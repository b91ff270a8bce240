"""Ranks that are killed or stand still at random moments of `octet train` under mpirun, 20 times. By hand, some minutes: docs/benchmarks/parallel.md has a result.

    OCTET_BIN=build/release/octet python3 tests/dist/kill_ranks.py [--runs 20] [--seed 1] [--gpus N]

Each run has 3 or 4 ranks, of which two or all four share each matrix (parallel.tp, half of them with sequence parallelism) in most runs of four, some level of ZeRO, guard.deadline_s 5 and a checkpoint every 3 steps. Between 0.5 and 8 s after its first training line one rank gets SIGKILL, or SIGSTOP and
8 s later SIGCONT. mpirun is kept from cleaning up. Then every other rank must be gone within the deadline and its grace with exit code 31 or 32 and a message that
says which operation it was in, a stopped rank likewise after SIGCONT; the newest checkpoint must be whole, and a job of another number of ranks must go on from it.
With --gpus each run has N ranks, a GPU each, through NCCL (half of them share each matrix), and goes on with 1.
A line per run; exit code 1 when one is not so.
"""

import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import octet_cli  # noqa: E402
from test_mpirun import DEADLINE, FAULT, MPIRUN, STAY, environment  # noqa: E402

DEADLINE_S, GRACE_S, STOPPED_S = 5, 5, 8  # grace: the watchdog's behind the communication's deadline (train/loop.cpp)
SLACK_S = 1.5  # of shared cores: from the end of a wait to that of the process
STEPS_BEHIND = 6  # that a resumed job must make
# The rank is a child of the shell, whose process id and end (exit code, time) are kept.
KEEP = """trap "" TERM
"$@" & echo $! > $KEPT.pid.$OMPI_COMM_WORLD_RANK
wait $!; echo $? $(date +%s.%N) > $KEPT.new.$OMPI_COMM_WORLD_RANK
mv $KEPT.new.$OMPI_COMM_WORLD_RANK $KEPT.end.$OMPI_COMM_WORLD_RANK"""
# What the first rank whose deadline passes says, and the others of it.
NAMES_OPERATION = re.compile(r"(?m)^octet: error: (?:rank \d+ on \S+ ended: )?rank \d+ on \S+, group [\w ]+: \w+(?: sum| max)? of (?:\d+ tensors, )?\d+ \w+ \(\d+ bytes\), operation \d+")
LINE = "{:>3} {:>5} {:>3} {:>4} {:>4}  {:<7} {:>6}  {:<29} {:<16} {:>4} {:>10} {:>7}  {}"


class Fault(Exception):
    pass


def wait_until(condition, seconds, what):
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise Fault(f"{seconds:g} s passed before {what}")
        time.sleep(0.01)


def train_command(prefix, run, parallel, steps, *more, device="cpu"):
    # Heads and MLP that four ranks can cut between blocks.
    config = octet_cli.tiny_config(prefix, model={"head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512}, batch={"micro": 1, "global": 24}, run={"steps": steps, "device": device}, sched={"type": "constant", "warmup_steps": 2},
                                   ckpt={"interval": 3, "keep_last": 2}, guard={"deadline_s": DEADLINE_S}, eval={"interval": 20, "samples": 8})
    config["parallel"] = parallel
    config["precision"] = {"recipe": "blockwise"}
    path = octet_cli.write_json(run.with_suffix(".json"), config)
    return [octet_cli.binary(), "train", "--config", str(path), "--run-dir", str(run), *more]


class Run:
    def __init__(self, folder, prefix, number, seed, gpus):
        self.random = random.Random(f"{seed}/{number}")
        self.number, self.prefix, self.run = number, prefix, folder / f"run{number}"
        self.gpus, self.device = gpus, "cuda" if gpus else "cpu"
        self.ranks = gpus or self.random.choice([3, 4, 4])
        self.tp = self.random.choice([n for n in (1, 2, 4) if gpus % n == 0]) if gpus else self.random.choice([1, 2, 2, 4]) if self.ranks == 4 else 1
        self.sequence = self.tp > 1 and self.random.choice([True, False])
        self.zero, self.replicate = self.random.randrange(4), self.random.choice([1, 2]) if self.ranks // self.tp in (2, 4) else 1
        if self.zero == 0:
            self.replicate = 1
        self.victim = self.random.randrange(self.ranks)
        self.stops = number % 2 == 1
        self.moment = self.random.uniform(0.5, 8)
        self.kept, self.log = folder / f"kept{number}", folder / f"log{number}"
        self.codes, self.times, self.named, self.newest, self.resumed = {}, {}, 0, "-", "-"

    def parallel(self):
        return {"zero": self.zero, "dp_replicate": self.replicate, "tp": self.tp, "sequence_parallel": self.sequence}

    def ended(self, rank):
        return pathlib.Path(f"{self.kept}.end.{rank}").exists()

    def gone(self, ranks, since, limit_s):
        """Exit codes of the ranks and how long after `since` they ended."""
        wait_until(lambda: all(map(self.ended, ranks)), since + limit_s + 5 - time.time(), f"the ends of ranks {[r for r in ranks if not self.ended(r)]}")
        for rank in ranks:
            code, at = pathlib.Path(f"{self.kept}.end.{rank}").read_text().split()
            self.codes[rank], self.times[rank] = int(code), float(at) - since
        late = {r: round(self.times[r], 2) for r in ranks if self.times[r] > limit_s}
        if late:
            raise Fault(f"later than {limit_s:g} s: {late}")

    def pid(self, rank):
        return int(pathlib.Path(f"{self.kept}.pid.{rank}").read_text())

    def check(self):
        command = [*MPIRUN, *STAY, "-np", str(self.ranks), "sh", "-c", KEEP, "sh", *train_command(self.prefix, self.run, self.parallel(), 100000, device=self.device)]
        with open(self.log, "wb") as log:
            job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(KEPT=self.kept), start_new_session=True)
        try:
            self.harm(job)
        finally:
            self.clean_up(job)
        self.check_messages()
        self.check_checkpoint()

    def harm(self, job):
        metrics = self.run / "metrics.jsonl"
        octet_cli.wait_for(lambda: metrics.exists() and b'"kind":"train"' in metrics.read_bytes(), job, "the first training line")
        time.sleep(self.moment)
        if any(map(self.ended, range(self.ranks))):
            raise Fault("a rank had ended before the signal")
        others = [r for r in range(self.ranks) if r != self.victim]
        os.kill(self.pid(self.victim), signal.SIGSTOP if self.stops else signal.SIGKILL)
        began = time.time()
        self.gone(others, began, DEADLINE_S + GRACE_S + SLACK_S)
        if not self.stops:
            return self.gone([self.victim], began, 1)
        time.sleep(max(0.0, began + STOPPED_S - time.time()))
        if self.ended(self.victim):
            raise Fault("the stopped rank had ended before SIGCONT")
        os.kill(self.pid(self.victim), signal.SIGCONT)
        self.gone([self.victim], time.time(), DEADLINE_S + SLACK_S)

    def clean_up(self, job):
        """Ends what is left, by the process ids that this run has started."""
        for rank in range(self.ranks):
            if pathlib.Path(f"{self.kept}.pid.{rank}").exists() and not self.ended(rank):
                try:
                    os.kill(self.pid(rank), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        try:
            job.wait(timeout=20)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()

    def check_messages(self):
        ending = {r: c for r, c in self.codes.items() if self.stops or r != self.victim}
        wrong = {r: c for r, c in ending.items() if c not in (DEADLINE, FAULT)}
        self.named = len(NAMES_OPERATION.findall(self.log.read_text(errors="replace")))
        if wrong:
            raise Fault(f"exit codes {wrong}")
        if self.named < len(ending):
            raise Fault("not every rank says which operation failed")

    def check_checkpoint(self):
        saved = octet_cli.checkpoints(self.run)
        if not saved:
            raise Fault("no checkpoint")
        step = int(saved[-1].name.removeprefix("step_"))
        self.newest = step
        verified = octet_cli.octet("ckpt", "verify", saved[-1])
        if verified.rc != 0:
            raise Fault(f"the newest checkpoint is damaged: {verified.stdout} {verified.stderr}")
        ranks = 1 if self.gpus else self.random.choice([n for n in (1, 2, 3, 4) if n != self.ranks])
        tp = self.random.choice([1, 2]) if ranks % 2 == 0 else 1
        self.resumed = f"{ranks}/{tp}"
        command = train_command(self.prefix, self.run, {"zero": self.zero, "tp": tp}, step + STEPS_BEHIND, "--resume", "auto", device=self.device)
        launch = [*MPIRUN, "-np", str(ranks)] if ranks > 1 else []
        done = subprocess.run([*launch, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=environment())
        if done.returncode != 0 or f"resumed from {saved[-1]} at step {step}" not in done.stdout or octet_cli.last_step(self.run) != step + STEPS_BEHIND:
            raise Fault(f"resume with {ranks} ranks, tp {tp}: exit code {done.returncode}, step {octet_cli.last_step(self.run)}: {done.stderr[-500:]}")

    def line(self, verdict):
        others = [r for r in sorted(self.codes) if r != self.victim]
        own = f"{self.codes[self.victim]} ({self.times[self.victim]:.1f})" if self.victim in self.codes else "-"
        ends = " ".join(f"{self.codes[r]} ({self.times[r]:.1f})" for r in others)
        return LINE.format(self.number, self.ranks, f"{self.tp}{'s' if self.sequence else ''}", f"{self.zero}/{self.replicate}", self.victim, "SIGSTOP" if self.stops else "SIGKILL", f"{self.moment:.2f}", ends, own,
                           self.named, self.newest, self.resumed, verdict)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder of logs and runs")
    parser.add_argument("--gpus", type=int, default=0, help="ranks on so many GPUs")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="octet-kill-"))
    prefix = octet_cli.build_tokens(folder, 6000)
    print(f"seed {options.seed}; seconds: of the others from the signal, of a stopped rank from SIGCONT; said: messages that name rank, group and operation; tp: s with sequence parallelism; zero: with replicas; resumed: with so many ranks, of tp")
    print(LINE.format("run", "ranks", "tp", "zero", "rank", "signal", "moment", "others: code (s)", "it: code (s)", "said", "checkpoint", "resumed", ""), flush=True)
    failed = 0
    for number in range(options.runs):
        run = Run(folder, prefix, number, options.seed, options.gpus)
        try:
            run.check()
            verdict = "ok"
        except (Fault, AssertionError, subprocess.TimeoutExpired) as fault:
            failed += 1
            verdict = f"FAULT: {fault}"
        print(run.line(verdict), flush=True)
    print(f"{options.runs - failed} of {options.runs} as they should be")
    if options.keep or failed:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
