"""Training by several ranks under mpirun: what a job of any layout writes is what one process writes."""

import itertools
import json
import os
import signal
import subprocess
import unittest

import octet_cli
from octet_cli import CONFIG, OK, PATIENCE, STOPPED, checkpoints, octet, records, steps
from test_mpirun import MPIRUN, environment


def mpirun(ranks, *arguments, **options):
    command = [*MPIRUN, "-np", str(ranks), octet_cli.binary(), *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=octet_cli.TIMEOUT_S, env=environment(), **options)
    return octet_cli.Result(command, done.returncode, done.stdout, done.stderr)


def covering(axes):
    """Few combinations in which every pair of values of two axes appears (greedy)."""
    names = list(axes)
    everything = [dict(zip(names, values)) for values in itertools.product(*axes.values()) if sensible(dict(zip(names, values)))]
    pairs = lambda c: {(a, c[a], b, c[b]) for a, b in itertools.combinations(names, 2)}
    missing = set().union(*map(pairs, everything))
    chosen = []
    while missing:
        best = max(everything, key=lambda c: len(pairs(c) & missing))
        missing -= pairs(best)
        chosen.append(best)
    return chosen


def sensible(c):
    return c["ranks"] % c["dp_replicate"] == 0 and (c["zero"] > 0 or c["dp_replicate"] == 1)


@unittest.skipUnless("Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout, "the flags here are Open MPI's")
class Ranks(octet_cli.Sandbox):
    def config(self, recipe="fp32", tied=False, **parallel):
        # Validation has three batches, the last one half full: fewer than four ranks take turns for.
        config = octet_cli.tiny_config(self.prefix, batch={"micro": 2, "global": 16}, eval={"interval": 4, "samples": 5}, run={"steps": 6}, optim={"lr": 5e-4},
                                       model={"vocab_size": 300, "intermediate_size": 384, "num_hidden_layers": 3, "tie_word_embeddings": tied}, log={"stats_interval": 2}, precision={"recipe": recipe}, parallel=parallel)
        return octet_cli.write_json(self.folder / f"config-{recipe}-{tied}-{'-'.join(map(str, parallel.values()))}.json", config)

    def train(self, name, ranks, config, *more, rc=OK):
        run = self.folder / name
        arguments = ["train", "--config", config, "--run-dir", run, *more]
        result = mpirun(ranks, *arguments) if ranks > 1 else octet(*arguments)
        self.assertEqual(result.rc, rc, result)
        return run, result

    def assert_same_curve(self, run, reference, tolerance):
        got, want = steps(run), steps(reference)
        self.assertEqual(got.keys(), want.keys())
        for step, line in want.items():
            for key in ("loss", "grad_norm"):
                self.assertLessEqual(abs(got[step][key] / line[key] - 1), tolerance, f"{run.name}, step {step}: {key}")
            for key in ("lr", "tokens", "valid_tokens", "sample_hash"):
                self.assertEqual(got[step][key], line[key], f"{run.name}, step {step}: {key}")
        for mine, theirs in zip(records(run, "valid"), records(reference, "valid"), strict=True):
            self.assertLessEqual(abs(mine["loss"] / theirs["loss"] - 1), tolerance, f"{run.name}: validation")

    def test_every_pair_of_layout_choices_gives_the_curve_of_one_rank(self):
        axes = {"ranks": [2, 4], "zero": [0, 1, 2, 3], "dp_replicate": [1, 2], "overlap": [True, False], "recipe": ["fp32", "blockwise"], "tied": [False, True]}
        alone = {(recipe, tied): self.train(f"one-{recipe}-{tied}", 1, self.config(recipe, tied))[0] for recipe in axes["recipe"] for tied in axes["tied"]}
        for number, c in enumerate(covering(axes)):
            parallel = {k: c[k] for k in ("zero", "dp_replicate", "overlap")}
            with self.subTest(**c):
                run, result = self.train(f"run{number}", c["ranks"], self.config(c["recipe"], c["tied"], **parallel))
                reference = alone[c["recipe"], c["tied"]]
                # FP8: micro-batches are quantized by themselves on any rank, but sums in another order let single codes fall the other way in later steps.
                self.assert_same_curve(run, reference, 1e-5 if c["recipe"] == "fp32" else 1e-3)
                last = records(run, "event")[-1]
                self.assertEqual(last["quantized"], records(reference, "event")[-1]["quantized"])
                self.assertEqual(result.stderr, "")
                self.assertNotIn("\x1b", result.stdout, "no bar where several ranks write")
                if c["recipe"] == "blockwise":
                    sites = [r for r in records(run, "stats")]
                    self.assertEqual([s["elements"] for s in sites], [s["elements"] for s in records(reference, "stats")])

    def test_checkpoints_move_between_layouts(self):
        straight, _ = self.train("straight", 1, self.config())
        half = ["--set", "run.steps=6", "--exit-after", "0.0001"]   # stops behind its first step
        for ranks, zero, then, then_zero in ((4, 3, 1, 1), (1, 1, 4, 2), (2, 1, 4, 3)):
            with self.subTest(ranks=ranks, zero=zero, then=then):
                name = f"moved-{ranks}-{then}"
                run, _ = self.train(name, ranks, self.config(zero=zero), *half, rc=21)
                self.assertEqual(octet("ckpt", "verify", run).rc, OK)
                boxes = json.loads((checkpoints(run)[-1] / "manifest.json").read_text())["groups"]["optimizer"]["exp_avg/lm_head.weight"]["boxes"]
                self.assertEqual(len(boxes), min(ranks, 3), "three groups of 128 rows")
                run, _ = self.train(name, then, self.config(zero=then_zero), "--resume", "must")
                self.assert_same_curve(run, straight, 1e-5)
        # The same layout goes on with the same bits.
        whole, _ = self.train("whole", 2, self.config(zero=2))
        run, _ = self.train("stopped", 2, self.config(zero=2), *half, rc=21)
        run, _ = self.train("stopped", 2, self.config(zero=2), "--resume", "must")
        self.assertEqual([s["loss"] for s in steps(run).values()], [s["loss"] for s in steps(whole).values()])
        self.assertEqual(octet("ckpt", "diff", checkpoints(run)[-1], checkpoints(whole)[-1]).rc, OK)

    def test_refusals_are_one_line_and_leave_nothing(self):
        cases = [(3, [], "batch.global: 16 samples, no multiple of 3 data-parallel ranks times micro-batches of 2 (set it to a multiple of 6)"),
                 (4, ["--set", "parallel.dp_replicate=3"], "parallel.dp_replicate: 3, which does not divide the 4 data-parallel ranks of this job (set it to a divisor)"),
                 (2, ["--set", "model.no=1"], "model.no"),
                 (2, ["--dump", "1:*"], "--dump: a dump is of one process"),
                 (2, ["--data-path", self.folder / "missing"], "missing"),
                 (3, ["--data-path", self.folder / "missing", "--dry-run", "--set", "batch.global=12"], "missing")]
        for ranks, more, text in cases:
            with self.subTest(text):
                result = mpirun(ranks, "train", "--config", self.config(), "--run-dir", self.folder / "refused", *more)
                errors = [line for line in result.stderr.splitlines() if line.startswith("octet: ")]
                self.assertEqual(len(errors), 1, result)
                self.assertIn(text, errors[0])
                self.assertIn(result.rc, (CONFIG, octet_cli.DATA))
                self.assertFalse((self.folder / "refused").exists())

    def test_a_signal_to_one_rank_stops_all_behind_the_same_step(self):
        run = self.folder / "signalled"
        command = [*MPIRUN, "-np", "3", octet_cli.binary(), "train", "--config", str(self.config()), "--run-dir", str(run), "--set", "run.steps=100000", "batch.global=12", "eval.interval=0"]
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(job.kill)
        octet_cli.wait_for(lambda: (run / "metrics.jsonl").exists() and octet_cli.last_step(run) >= 2, job, "two steps")
        ranks = [int(p) for p in subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()]
        self.assertEqual(len(ranks), 3)
        os.kill(ranks[-1], signal.SIGUSR1)
        out, err = job.communicate(timeout=60 * PATIENCE)
        self.assertEqual(job.returncode, STOPPED, out[-2000:] + err[-2000:])
        self.assertEqual(octet("ckpt", "verify", run).rc, OK)
        self.assertEqual(checkpoints(run)[-1].name, f"step_{octet_cli.last_step(run):010d}")


if __name__ == "__main__":
    unittest.main()
