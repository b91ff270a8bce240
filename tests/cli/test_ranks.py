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


def shards(c):
    return c["ranks"] // c["tp"] // c["dp_replicate"] if c["zero"] > 0 else 1


def sensible(c):
    if c["ranks"] % c["tp"] != 0 or (c["ranks"] // c["tp"]) % c["dp_replicate"] != 0 or (c["zero"] == 0 and c["dp_replicate"] > 1):
        return False
    if c["sequence"] and c["tp"] == 1:
        return False
    # Codes of tokens are gathered in whole blocks: 256 tokens of a micro-batch are two blocks of 128.
    return not c["fp8"] or (c["recipe"] == "blockwise" and (shards(c) > 1 or c["sequence"]) and not (c["sequence"] and c["tp"] == 4))


# What the greedy choice leaves to combinations that gather nothing.
TOGETHER = [dict(ranks=4, tp=2, sequence=True, fp8=True, zero=3, dp_replicate=1, overlap=True, recipe="blockwise", tied=False),
            dict(ranks=4, tp=1, sequence=False, fp8=True, zero=3, dp_replicate=2, overlap=True, recipe="blockwise", tied=True),
            dict(ranks=4, tp=2, sequence=True, fp8=False, zero=3, dp_replicate=1, overlap=True, recipe="fp32", tied=True)]


def layout(c):
    """The section `parallel` of a combination of the axes."""
    return {"zero": c["zero"], "dp_replicate": c["dp_replicate"], "overlap": c["overlap"], "tp": c["tp"], "sequence_parallel": c["sequence"],
            "fp8_param_gather": c["fp8"] and shards(c) > 1, "fp8_activation_gather": c["fp8"] and c["sequence"]}


@unittest.skipUnless("Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout, "the flags here are Open MPI's")
class Ranks(octet_cli.Sandbox):
    def config(self, recipe="fp32", tied=False, **parallel):
        # Validation has three batches, the last with one sequence: fewer than four ranks take turns for. Two or four ranks cut the heads of 128 and the MLP between
        # blocks; with four, two have a copy of each key/value head, and of 301 rows of the vocabulary the last has none.
        config = octet_cli.tiny_config(self.prefix, batch={"micro": 4, "global": 16}, eval={"interval": 4, "samples": 9}, run={"steps": 6}, optim={"lr": 5e-4}, data={"seq_len": 64},
                                       model={"vocab_size": 301, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": tied},
                                       log={"stats_interval": 2}, precision={"recipe": recipe}, parallel=parallel)
        return octet_cli.write_json(self.folder / f"config-{recipe}-{tied}-{'-'.join(map(str, parallel.values()))}.json", config)

    def train(self, name, ranks, config, *more, rc=OK):
        run = self.folder / name
        arguments = ["train", "--config", config, "--run-dir", run, *more]
        result = mpirun(ranks, *arguments) if ranks > 1 else octet(*arguments)
        self.assertEqual(result.rc, rc, result)
        return run, result

    def assert_same_curve(self, run, reference, tolerance, norm_tolerance=None):
        got, want = steps(run), steps(reference)
        self.assertEqual(got.keys(), want.keys())
        for step, line in want.items():
            for key, limit in (("loss", tolerance), ("grad_norm", norm_tolerance or tolerance)):
                self.assertLessEqual(abs(got[step][key] / line[key] - 1), limit, f"{run.name}, step {step}: {key}")
            for key in ("lr", "tokens", "valid_tokens", "sample_hash"):
                self.assertEqual(got[step][key], line[key], f"{run.name}, step {step}: {key}")
        for mine, theirs in zip(records(run, "valid"), records(reference, "valid"), strict=True):
            self.assertLessEqual(abs(mine["loss"] / theirs["loss"] - 1), tolerance, f"{run.name}: validation")

    def test_every_pair_of_layout_choices_gives_the_curve_of_one_rank(self):
        axes = {"ranks": [2, 4], "tp": [1, 2, 4], "sequence": [False, True], "fp8": [False, True], "zero": [0, 1, 2, 3], "dp_replicate": [1, 2], "overlap": [True, False],
                "recipe": ["fp32", "blockwise"], "tied": [False, True]}
        alone = {(recipe, tied): self.train(f"one-{recipe}-{tied}", 1, self.config(recipe, tied))[0] for recipe in axes["recipe"] for tied in axes["tied"]}
        for number, c in enumerate(covering(axes) + TOGETHER):
            with self.subTest(**c):
                run, result = self.train(f"run{number}", c["ranks"], self.config(c["recipe"], c["tied"], **layout(c)))
                reference = alone[c["recipe"], c["tied"]]
                # FP8: micro-batches are quantized by themselves on any rank, but sums in another order let single codes fall the other way in later steps. Largest
                # differences with the six kinds of kernels that OPENBLAS_CORETYPE names (2026-11-30): losses 5.6e-5, gradient norms 7.7e-4.
                self.assert_same_curve(run, reference, *((1e-5,) if c["recipe"] == "fp32" else (1e-3, 2e-3)))
                last = records(run, "event")[-1]
                self.assertEqual(last["quantized"], records(reference, "event")[-1]["quantized"])
                self.assertNotIn("octet", result.stderr, "mpirun may have words of its own, octet has none")
                self.assertNotIn("\x1b", result.stdout, "no bar where several ranks write")
                if c["recipe"] == "blockwise":
                    self.assertEqual([s["elements"] for s in records(run, "stats")], [s["elements"] for s in records(reference, "stats")])

    def test_checkpoints_move_between_layouts(self):
        straight, _ = self.train("straight", 1, self.config())
        half = ["--set", "run.steps=6", "--exit-after", "0.0001"]   # stops behind its first step
        moves = [((4, dict(zero=3)), (1, dict(zero=1))), ((1, dict(zero=1)), (4, dict(zero=2))), ((2, dict(zero=1)), (4, dict(zero=3))),
                 ((2, dict(tp=2, sequence_parallel=True)), (1, {})), ((4, dict(tp=4)), (2, dict(zero=2))), ((1, {}), (4, dict(tp=4, sequence_parallel=True))),
                 ((4, dict(tp=2, zero=3, sequence_parallel=True)), (2, dict(tp=2))), ((4, dict(zero=3)), (4, dict(tp=2, zero=1)))]
        for number, ((ranks, parallel), (then, then_parallel)) in enumerate(moves):
            with self.subTest(ranks=ranks, then=then, **parallel):
                name = f"moved-{number}"
                run, _ = self.train(name, ranks, self.config(**parallel), *half, rc=21)
                self.assertEqual(octet("ckpt", "verify", run).rc, OK)
                boxes = json.loads((checkpoints(run)[-1] / "manifest.json").read_text())["groups"]["optimizer"]["exp_avg/lm_head.weight"]["boxes"]
                self.assertEqual(len(boxes), min(ranks, 3), "three groups of 128 rows")
                run, _ = self.train(name, then, self.config(**then_parallel), "--resume", "must")
                self.assert_same_curve(run, straight, 1e-5)
        # The same layout goes on with the same bits.
        for ranks, parallel in ((2, dict(zero=2)), (4, dict(tp=2, zero=1, sequence_parallel=True))):
            with self.subTest("bits", ranks=ranks, **parallel):
                whole, _ = self.train(f"whole-{ranks}", ranks, self.config(**parallel))
                run, _ = self.train(f"stopped-{ranks}", ranks, self.config(**parallel), *half, rc=21)
                run, _ = self.train(f"stopped-{ranks}", ranks, self.config(**parallel), "--resume", "must")
                self.assertEqual([s["loss"] for s in steps(run).values()], [s["loss"] for s in steps(whole).values()])
                self.assertEqual(octet("ckpt", "diff", checkpoints(run)[-1], checkpoints(whole)[-1]).rc, OK)

    def test_refusals_are_one_line_and_leave_nothing(self):
        tp = lambda n, *more: ["--set", f"parallel.tp={n}", *more]
        cases = [(3, [], "batch.global: 16 samples, no multiple of 3 data-parallel ranks times micro-batches of 4 (set it to a multiple of 12)"),
                 (4, ["--set", "parallel.dp_replicate=3"], "parallel.dp_replicate: 3, which does not divide the 4 data-parallel ranks of this job (set it to a divisor)"),
                 (2, ["--set", "model.no=1"], "model.no"),
                 (2, ["--dump", "1:*"], "--dump: a dump is of one process"),
                 (2, ["--distributed-backend", "nccl"], 'parallel.backend: "nccl", but this run computes on CPUs (set it to "auto" or "mpi"; octet doctor says what there is)'),
                 (1, ["--distributed-backend", "gloo"], 'parallel.backend must be one of auto, nccl, mpi, not "gloo"'),
                 (2, ["--data-path", self.folder / "missing"], "missing"),
                 (3, ["--data-path", self.folder / "missing", "--dry-run", "--set", "batch.global=12"], "missing"),
                 (3, tp(2), "parallel.tp: 2, which does not divide the 3 ranks of this job (start it with mpirun -np N, a multiple of 2)"),
                 (1, tp(2), "parallel.tp: 2, which does not divide the 1 rank of this job (start it with mpirun -np N, a multiple of 2)"),
                 (4, ["--set", "parallel.tp=2", "parallel.dp_replicate=4"], "parallel.dp_replicate: 4, which does not divide the 2 data-parallel ranks of this job (set it to a divisor)"),
                 (1, tp(3), "parallel.tp: 3, which does not divide the 4 attention heads (set it to a divisor)"),
                 (1, tp(3, "model.num_attention_heads=6"), "parallel.tp: 3, which neither divides the 2 key/value heads nor is a multiple of them (set it to a divisor or a multiple)"),
                 (1, tp(2, "model.intermediate_size=24"), "parallel.tp: 2, which leaves less than 16 of the 24 features of the MLP to a rank (lower it)"),
                 (2, tp(2, "model.head_dim=32", "precision.recipe=blockwise"), "parallel.tp: 2, which cuts q_proj of layers.0.attn.qkv at output 64 of 128, inside a block of recipe blockwise (lower it"),
                 (4, tp(4, "model.intermediate_size=320", "precision.recipe=blockwise"), "parallel.tp: 4, which cuts gate_proj of layers.0.mlp.gate_up at output"),
                 (1, ["--sequence-parallel"], "parallel.sequence_parallel: true, but parallel.tp is 1 (set it to false, or parallel.tp to more than 1)"),
                 (1, ["--set", "parallel.fp8_param_gather=true", "parallel.zero=0", "precision.recipe=blockwise"], "parallel.fp8_param_gather: true, but with parallel.zero 0 no weights are gathered (set it to false, or parallel.zero"),
                 (2, ["--set", "parallel.fp8_param_gather=true", "parallel.zero=1", "precision.recipe=mxfp8"], "parallel.fp8_param_gather: true, but layers.0.attn.qkv with recipe mxfp8 has two images of each weight"),
                 (2, tp(2, "parallel.fp8_param_gather=true", "precision.recipe=blockwise"), "parallel.fp8_param_gather: true, but this layout has one shard, and gathers no weights (set it to false, or start more data-parallel ranks)"),
                 (1, tp(2, "parallel.fp8_activation_gather=true", "precision.recipe=blockwise"), "parallel.fp8_activation_gather: true, but without parallel.sequence_parallel nothing is gathered (set that to true, or this to false)"),
                 (4, tp(4, "parallel.fp8_activation_gather=true", "parallel.sequence_parallel=true", "precision.recipe=blockwise"),
                  "parallel.fp8_activation_gather: true, but 256 tokens of a micro-batch do not divide into 4 parts of whole blocks of 128 tokens (layers.")]
        for ranks, more, text in cases:
            with self.subTest(text):
                arguments = ["train", "--config", self.config(), "--run-dir", self.folder / "refused", *more]
                result = mpirun(ranks, *arguments) if ranks > 1 else octet(*arguments)
                errors = [line for line in result.stderr.splitlines() if line.startswith("octet: ")]
                self.assertEqual(len(errors), 1, result)
                self.assertIn(text, errors[0])
                self.assertIn(result.rc, (CONFIG, octet_cli.DATA))
                self.assertFalse((self.folder / "refused").exists())

    def test_what_gpus_exchange_through_is_planned_and_said(self):
        if "built without CUDA" in octet("doctor").stdout:
            self.skipTest("this octet was built without CUDA")
        plan = lambda ranks, *more: mpirun(ranks, "train", "--config", self.config(), "--run-dir", self.folder / "planned", "--dry-run", "--set", "run.device=cuda", "batch.micro=2", *more).stdout
        staged = plan(2, "parallel.backend=mpi")
        self.assertIn("2 ranks: dp 2, zero 1, through the host's memory and MPI\n", staged)
        self.assertNotRegex(staged, r"(?m)^NCCL ")
        self.assertEqual(plan(2, "parallel.share_gpus=true"), staged)
        nccl = plan(2)
        if "through NCCL" not in nccl:
            self.skipTest("this octet was built without NCCL")
        self.assertIn("2 ranks: dp 2, zero 1, through NCCL\n", nccl)
        self.assertRegex(nccl, r"(?m)^NCCL +860\.00 MiB$")
        # Shards and replicas: two groups.
        self.assertRegex(plan(4, "parallel.dp_replicate=2"), r"(?m)^NCCL +1\.40 GiB$")

    def test_collectives_are_timed(self):
        out = self.folder / "comm.json"
        result = mpirun(2, "bench", "comm", "--mib", "1", "2", "--rounds", "1", "--json", out)
        self.assertEqual(result.rc, OK, result)
        self.assertRegex(result.stdout, r"^2 ranks, CPU, \d+ threads?, MPI\n")
        rows = json.loads(out.read_text())["rows"]
        self.assertEqual([(r["operation"], r["type"], r["bytes"]) for r in rows],
                         [(o, t, n << 20) for o, t in (("all_reduce", "f32"), ("all_reduce", "bf16"), ("reduce_scatter", "f32"), ("reduce_scatter", "bf16"), ("all_gather", "bf16"), ("all_gather", "u8")) for n in (1, 2)])
        for row in rows:
            share = 1.0 if row["operation"] == "all_reduce" else 0.5
            self.assertAlmostEqual(row["bus_bytes_per_s"] * row["ms"] * 1e-3 / (share * row["bytes"]), 1.0, places=6, msg=row)
        alone = octet("bench", "comm")
        self.assert_one_line(alone, octet_cli.USAGE, "needs several ranks", "mpirun -np N")

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
