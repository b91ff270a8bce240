"""TensorBoard files as TensorBoard itself reads them, Megatron's console line, the Chrome trace, the W&B export."""

import json
import logging
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
import unittest

from octet_cli import CHECKPOINT, CONFIG, OK, SOURCE, Sandbox, end, last_step, octet, records, start, steps, wait_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

OWN = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "perf/tokens_per_s": "tokens_per_s", "perf/step_ms": "step_ms",
       "perf/mfu": "mfu_causal"}

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it announces each purge, which is what the tests are about


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def read_back(folder):
    """TensorBoard's view of a folder: {tag: {step: value}}, every point of it, and the accumulator."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    curves = {}
    for tag in accumulator.Tags()["scalars"]:
        points = accumulator.Scalars(tag)
        curves[tag] = {p.step: p.value for p in points}
        if len(curves[tag]) != len(points):
            raise AssertionError(f"{tag} has a step twice: {[p.step for p in points]}")
    return curves, accumulator


def event_files(run):
    return sorted((run / "tb").glob("events.out.tfevents.*"))


class TensorBoard(Sandbox):
    def assert_equals_metrics(self, run, count):
        curves, accumulator = read_back(run / "tb")
        lines = steps(run)
        self.assertEqual(sorted(lines), list(range(1, count + 1)))
        for tag, key in OWN.items():
            self.assertEqual(curves[tag], {step: f32(line[key]) for step, line in lines.items()}, tag)
        self.assertEqual(curves["valid/loss"], {r["step"]: f32(r["loss"]) for r in records(run, "valid")})
        self.assertEqual(set(curves), {*OWN, "valid/loss"})
        return accumulator

    def test_its_reader_sees_the_metrics_and_the_config(self):
        run = self.train("run", eval={"interval": 3, "samples": 4}, log={"interval": 5})
        accumulator = self.assert_equals_metrics(run, 8)
        self.assertEqual(len(event_files(run)), 1)
        tensor = accumulator.Tensors("config")[0]
        self.assertEqual(tensor.step, 0)
        shown = tensor.tensor_proto.string_val[0].decode()
        self.assertEqual(accumulator.SummaryMetadata("config").plugin_data.plugin_name, "text")
        self.assertEqual(json.loads(shown.removeprefix("```json\n").removesuffix("\n```\n")), json.loads((run / "config.resolved.json").read_text()))

    def test_a_killed_and_resumed_run_is_one_curve(self):
        # Files are flushed seldom, so that what a checkpoint covers must have been flushed with it.
        settings = {"run": {"steps": 60}, "ckpt": {"interval": 7}, "eval": {"interval": 5, "samples": 4}, "log": {"interval": 4}}
        run = self.folder / "run"
        process = start("train", "--config", self.config(**settings), "--run-dir", run)
        self.addCleanup(end, process)
        wait_for(lambda: last_step(run) >= 20, process, "step 20")
        self.assertEqual(end(process), -signal.SIGKILL)
        killed_at = last_step(run)
        # A torn tail, as a kill in the middle of a write leaves it.
        with open(event_files(run)[0], "ab") as file:
            file.write(struct.pack("<QI", 40, 0) + b"torn")
        resumed = octet("train", "--config", self.config(**settings), "--run-dir", run, "--resume", "must")
        self.assertEqual(resumed.rc, OK, resumed)
        first, second = event_files(run)
        again = records(run, "event")
        resumed_at = [e["step"] for e in again if e["event"] == "start"][-1]
        self.assertLessEqual(resumed_at, killed_at)
        # The last line of each validation counts, too.
        self.assert_equals_metrics(run, 60)

        # The second file alone goes on behind the checkpoint, and the first holds points that had to be forgotten.
        alone = self.folder / "alone"
        alone.mkdir()
        second.rename(alone / second.name)
        self.assertEqual(min(read_back(alone)[0]["train/loss"]), resumed_at + 1)
        orphans = [s for s in read_back(run / "tb")[0]["train/loss"] if s > resumed_at]
        if killed_at >= (resumed_at // 4 + 1) * 4:  # a flush lay between checkpoint and kill
            self.assertTrue(orphans, f"killed at {killed_at}, resumed at {resumed_at}")
        self.assertEqual(first.name.split(".")[:3], ["events", "out", "tfevents"])

    def test_orphans_are_forgotten(self):
        """A stop whose checkpoint is lost: the next start goes back to an earlier one, and TensorBoard with it."""
        settings = {"run": {"steps": 12}, "ckpt": {"interval": 4, "keep_last": 0}}
        run = self.train("run", **settings)
        newest = run / "checkpoints" / "step_0000000012"
        (run / "checkpoints" / "LATEST").write_text("step_0000000004\n")
        for lost in (newest, run / "checkpoints" / "step_0000000008"):
            lost.rename(self.folder / lost.name)
        settings["run"]["steps"] = 9
        resumed = octet("train", "--config", self.config(**settings), "--run-dir", run, "--resume", "must", "--set", "sched.type=constant")
        self.assertEqual(resumed.rc, OK, resumed)
        curve = read_back(run / "tb")[0]["train/loss"]
        self.assertEqual(sorted(curve), list(range(1, 10)))  # 10, 11 and 12 are gone
        later = steps(run)
        self.assertEqual(curve[9], f32(later[9]["loss"]))

    def test_megatron_names(self):
        settings = {"run": {"steps": 8}, "ckpt": {"interval": 4, "keep_last": 0}, "eval": {"interval": 4, "samples": 4}, "log": {"names": "megatron"}}
        run = self.train("run", **settings)
        (run / "checkpoints" / "LATEST").write_text("step_0000000004\n")
        (run / "checkpoints" / "step_0000000008").rename(self.folder / "gone")
        self.assertEqual(octet("train", "--config", self.config(**settings), "--run-dir", run, "--resume", "must").rc, OK)
        curves, _ = read_back(run / "tb")
        twins, _ = read_back(run / "tb" / "vs_samples")
        lines = steps(run)
        for tag, key in {"lm loss": "loss", "grad-norm": "grad_norm", "learning-rate": "lr"}.items():
            self.assertEqual(curves[tag], {s: f32(line[key]) for s, line in lines.items()}, tag)
            self.assertEqual(twins[f"{tag} vs samples"], {4 * s: f32(line[key]) for s, line in lines.items()}, tag)
        self.assertEqual(curves["iteration-time"], {s: f32(line["step_ms"] / 1000) for s, line in lines.items()})
        valid = {r["step"]: r["loss"] for r in records(run, "valid")}
        self.assertEqual(curves["lm loss validation"], {s: f32(v) for s, v in valid.items()})
        self.assertEqual(twins["lm loss validation ppl vs samples"], {4 * s: f32(math.exp(v)) for s, v in valid.items()})
        self.assertEqual(set(curves), {"lm loss", "grad-norm", "learning-rate", "batch-size", "loss-scale", "iteration-time", "throughput", "lm loss validation",
                                       "lm loss validation ppl"})

    def test_off(self):
        run = self.train("run", log={"tensorboard": False})
        self.assertFalse((run / "tb").exists())

    def test_a_place_that_cannot_be_written(self):
        run = self.train("run")
        event_files(run)[0].unlink()
        (run / "tb").rmdir()
        (run / "tb").write_text("in the way")
        result = octet("train", "--config", self.config(run={"steps": 9}), "--run-dir", run, "--resume", "must")
        self.assertEqual(result.rc, CHECKPOINT, result)
        self.assertEqual(len(result.stderr.splitlines()), 1, result)
        self.assertIn("/tb", result.stderr)


class MegatronConsole(Sandbox):
    LINE = re.compile(r"^ \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] iteration +(\d+)/ +(\d+) \| consumed samples: +(\d+) \| elapsed time per iteration \(ms\): ([\d.]+) \|"
                      r" throughput per GPU \(TFLOP/s/GPU\): ([\d.]+) \| learning rate: (\S+) \| global batch size: +(\d+) \| lm loss: (\S+) \| loss scale: 1\.0 \|"
                      r" grad norm: ([\d.]+) \| number of skipped iterations: +(\d+) \| number of nan iterations: +(\d+) \|$")

    def test_lines(self):
        run = self.folder / "run"
        result = octet("train", "--config", self.config(eval={"interval": 4, "samples": 4}, log={"console": "megatron", "interval": 4}), "--run-dir", run)
        self.assertEqual(result.rc, OK, result)
        matches = [m for m in map(self.LINE.match, result.stdout.splitlines()) if m]
        self.assertEqual([int(m[1]) for m in matches], [1, 4, 8])
        lines = steps(run)
        for match, covered in zip(matches, ([1], [2, 3, 4], [5, 6, 7, 8])):
            step = covered[-1]
            self.assertEqual((int(match[2]), int(match[3]), int(match[7])), (8, 4 * step, 4))
            self.assertAlmostEqual(float(match[4]), sum(lines[s]["step_ms"] for s in covered) / len(covered), delta=0.051)
            self.assertAlmostEqual(float(match[6]), lines[step]["lr"], delta=1e-9)
            self.assertAlmostEqual(float(match[8]), sum(lines[s]["loss"] for s in covered) / len(covered), delta=1e-5)
            self.assertAlmostEqual(float(match[9]), lines[step]["grad_norm"], delta=6e-4)
        valid = {r["step"]: r["loss"] for r in records(run, "valid")}
        found = {int(m[1]): (float(m[2]), float(m[3])) for m in re.finditer(r"^ validation loss at iteration (\d+) \| lm loss value: (\S+) \| lm loss PPL: (\S+) \| $", result.stdout, re.M)}
        self.assertEqual(sorted(found), [4, 8])
        for step, (loss, perplexity) in found.items():
            self.assertAlmostEqual(loss, valid[step], delta=1e-5)
            self.assertAlmostEqual(perplexity / math.exp(valid[step]), 1, delta=1e-5)


class Trace(Sandbox):
    # Steps long enough for 5 % of them to be more than the scheduler's whims.
    SETTINGS = {"model": {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}, "data": {"seq_len": 128},
                "ckpt": {"interval": 4}, "eval": {"interval": 4, "samples": 4}, "recompute": {"modules": ["block"]}}
    words = 20000

    def spans(self, run):
        events = json.loads((run / "trace.json").read_text())["traceEvents"]
        spans = []
        for e in events:
            if e["ph"] != "X":
                self.assertEqual(e["ph"], "M")
                continue
            self.assertEqual(e["pid"], 0)
            begin = round(e["ts"] * 1000)
            spans.append({**e, "begin": begin, "end": begin + round(e["dur"] * 1000)})
        return spans

    def nest(self, spans):
        """Gives each span its children; fails on partial overlap within a thread."""
        stacks = {}
        for s in sorted(spans, key=lambda s: (s["begin"], -s["end"])):
            s["children"] = []
            stack = stacks.setdefault(s["tid"], [])
            while stack and stack[-1]["end"] <= s["begin"]:
                stack.pop()
            if stack:
                self.assertLessEqual(s["end"], stack[-1]["end"], f"{s['name']} reaches out of {stack[-1]['name']}")
                stack[-1]["children"].append(s)
            stack.append(s)
        return spans

    def test_the_steps_asked_for(self):
        run = self.train("run", "--profile", "--profile-step-start", "3", "--profile-step-end", "6", "--fp8-recipe", "blockwise", **self.SETTINGS)
        spans = self.nest(self.spans(run))
        by_name = {}
        for s in spans:
            by_name.setdefault(s["name"], []).append(s)
        self.assertEqual([n for n in by_name if n.startswith("step ")], ["step 3", "step 4", "step 5"])
        self.assertEqual(len(by_name["validation"]), 1)
        self.assertEqual(len(by_name["save checkpoint"]), 1)
        self.assertEqual({s["tid"] for s in spans}, {0})

        whole = parts = 0
        for number in (3, 4, 5):
            step, = by_name[f"step {number}"]
            names = [c["name"] for c in step["children"]]
            self.assertEqual(names, ["read batch", "zero gradients", "micro-batch", "micro-batch", "gradient norm", "optimizer", "quantize weights", "log"])
            whole += step["end"] - step["begin"]
            parts += sum(c["end"] - c["begin"] for c in step["children"])
        self.assertGreater(parts, 0.95 * whole)

        # 3 steps of 2 micro-batches; the first of the two layers, recomputed in backward; validation has 2 micro-batches of its own.
        qkv = "layers.0.attn.qkv"
        self.assertEqual(len(by_name[f"{qkv} fprop"]), 3 * 2 * 2 + 2)
        for phase in ("dgrad", "wgrad"):
            self.assertEqual(len(by_name[f"{qkv} {phase}"]), 3 * 2, phase)
        self.assertEqual(len(by_name[f"{qkv} quantize dy"]), 3 * 2 * 3)  # q, k and v
        self.assertEqual(len(by_name[f"{qkv} quantize w"]), 3 * 3)
        self.assertEqual(len(by_name["layers.1 recompute"]), 3 * 2)
        flops = 2 * (2 * 128) * 128 * (4 + 2 * 2) * 32  # tokens x inputs x outputs
        self.assertEqual({s["args"]["flops"] for s in by_name[f"{qkv} fprop"]}, {flops})
        self.assertEqual({s["args"]["bytes"] for s in by_name["layers.0.attn.out quantize dy"]}, {256 * 128 * (2 + 1 + 1)})

        event, = [e for e in records(run, "event") if e["event"] == "trace"]
        self.assertEqual((event["step"], event["spans"], event["left_out"]), (5, len(spans), 0))

    def test_a_run_that_ends_before_the_window_does(self):
        run = self.train("run", "--profile", "--set", "log.profile_start=7", "--set", "log.profile_end=100")
        names = [s["name"] for s in self.nest(self.spans(run)) if s["name"].startswith("step ")]
        self.assertEqual(names, ["step 7", "step 8"])
        self.assertEqual([p.name for p in run.iterdir() if "tmp" in p.name], [])

    def test_off_and_out_of_reach(self):
        run = self.train("off")
        self.assertFalse((run / "trace.json").exists())
        result = octet("train", "--config", self.config(), "--run-dir", self.folder / "late", "--profile")
        self.assertEqual(result.rc, OK, result)
        self.assertIn("warning: log.profile: nothing to trace, steps 10 to 11 of a run of 8", result.stdout)
        self.assertFalse((self.folder / "late" / "trace.json").exists())
        self.assert_refused(CONFIG, "log.profile_end", arguments=["--config", self.config(), "--profile", "--profile-step-start", "5", "--profile-step-end", "5"])

    def test_the_trace_changes_no_bits(self):
        self.assert_same_training(self.train("plain"), self.train("traced", "--profile", "--profile-step-start", "2", "--profile-step-end", "4"), 8)


FAKE_WANDB = '''
import json, os
class Summary(dict): pass
class Run:
    def __init__(self, record): self.record, self.summary = record, Summary()
    def log(self, data, step=None): write({"log": data, "step": step})
    def finish(self): write({"finish": self.summary})
def write(record):
    with open(os.environ["FAKE_WANDB_LOG"], "a") as file: file.write(json.dumps(record) + "\\n")
def init(**arguments):
    write({"init": arguments})
    return Run(arguments)
'''


class WandbExport(Sandbox):
    SCRIPT = SOURCE / "scripts" / "wandb_export.py"

    def environment(self):
        module = self.folder / "fake"
        module.mkdir(exist_ok=True)
        (module / "wandb.py").write_text(FAKE_WANDB)
        return {**os.environ, "PYTHONPATH": str(module), "FAKE_WANDB_LOG": str(self.folder / "calls.jsonl")}

    def export(self, *arguments, **options):
        return subprocess.run([sys.executable, self.SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60,
                              **{"env": self.environment(), **options})

    def calls(self):
        text = (self.folder / "calls.jsonl").read_text() if (self.folder / "calls.jsonl").exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def curves(self, calls):
        """{name: {step: value}} of the calls of one W&B run; steps must not fall."""
        out, newest = {}, 0
        for call in calls:
            if "log" not in call:
                continue
            self.assertGreaterEqual(call["step"], newest)
            newest = call["step"]
            for name, value in call["log"].items():
                out.setdefault(name, {})[call["step"]] = value
        return out

    def fake_run(self, lines):
        run = self.folder / "made"
        run.mkdir(exist_ok=True)
        (run / "config.resolved.json").write_text('{"run": {"steps": 4}}')
        with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
            for line in lines:
                file.write(line if isinstance(line, str) else json.dumps(line) + "\n")
        return run

    def train_line(self, step, loss):
        return {"kind": "train", "step": step, "tokens": 128 * step, "loss": loss, "grad_norm": 1.0, "lr": 0.5, "tokens_per_s": 10.0, "step_ms": 2.0}

    def test_a_real_run(self):
        run = self.train("real", eval={"interval": 4, "samples": 4})
        result = self.export(run, "--project", "p", "--name", "n", "--offline")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = self.calls()
        self.assertEqual(calls[0]["init"], {"project": "p", "name": "n", "group": "n", "mode": "offline", "dir": str(run),
                                            "config": json.loads((run / "config.resolved.json").read_text())})
        curves, lines = self.curves(calls), steps(run)
        for tag, key in OWN.items():
            self.assertEqual(curves[tag], {s: line[key] for s, line in lines.items()}, tag)
        self.assertEqual(curves["valid/loss"], {r["step"]: r["loss"] for r in records(run, "valid")})
        self.assertEqual(calls[-1]["finish"]["octet/exit_code"], 0)

    def test_the_later_line_counts(self):
        lines = [{"kind": "event", "event": "start", "step": 0}, self.train_line(1, 5.0), {"kind": "event", "event": "checkpoint", "step": 1}, self.train_line(2, 4.0),
                 {"kind": "valid", "step": 2, "tokens": 256, "loss": 4.5}, self.train_line(3, 3.0), {"kind": "event", "event": "start", "step": 1}, self.train_line(2, 4.25)]
        self.assertEqual(self.export(self.fake_run([*lines, '{"kind": "tr'])).returncode, 0)
        curves = self.curves(self.calls())
        self.assertEqual(curves["train/loss"], {1: 5.0, 2: 4.25})
        self.assertNotIn("valid/loss", curves)
        self.assertEqual(curves["events/start"], {0: 1, 1: 2})

    def test_health_and_named_sets_and_nan(self):
        sites = [{"name": "a/x.row", "role": "x"}, {"name": "b/x.row", "role": "x"}, {"name": "a/w", "role": "w"}]
        stats = {"kind": "stats", "step": 1, "elements": [4, 4, 4], "amax": [1, 2, 3], "underflow": [0.5, 0.25, 0], "saturation": [0, 0, 0.125], "sqnr_db": [30, 20, None],
                 "cosine": [1, 0.5, None], "nonfinite": [1, 2, 0]}
        nan = {**self.train_line(1, None), "nonfinite": ["loss"]}
        run = self.fake_run([{"kind": "event", "event": "stats_sites", "sites": sites}, nan, stats,
                             {"kind": "valid", "step": 1, "tokens": 128, "loss": 2.0, "sets": {"wiki": 2.0, "code": 1.5}}])
        self.assertEqual(self.export(run, "--sites").returncode, 0)
        point = {name: curve[1] for name, curve in self.curves(self.calls()).items()}
        self.assertTrue(math.isnan(point.pop("train/loss")))
        expected = {"fp8/x/amax_max": 2, "fp8/x/underflow_max": 0.5, "fp8/x/sqnr_db_min": 20, "fp8/x/cosine_min": 0.5, "fp8/x/nonfinite": 3, "fp8/w/saturation_max": 0.125,
                    "fp8_sites/b/x.row/amax": 2, "valid/loss": 2.0, "valid/wiki/loss": 2.0, "valid/code/loss": 1.5}
        self.assertEqual({k: point.get(k) for k in expected}, expected)
        self.assertNotIn("fp8/w/sqnr_db_min", point)

    def test_follow_a_run_that_is_killed_and_resumed(self):
        run = self.fake_run([{"kind": "event", "event": "start", "step": 0}, self.train_line(1, 5.0), self.train_line(2, 4.0)])
        process = subprocess.Popen([sys.executable, self.SCRIPT, run, "--follow"], env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(end, process)
        wait_for(lambda: any("train/loss" in c.get("log", {}) and c["step"] == 2 for c in self.calls()), process, "step 2 is sent")
        self.fake_run(['{"kind": "train", "st'])
        time.sleep(1.2)  # the torn line is seen, and then removed
        content = (run / "metrics.jsonl").read_bytes()
        (run / "metrics.jsonl").write_bytes(content[:content.rfind(b"\n") + 1])
        self.fake_run([{"kind": "event", "event": "metrics_repaired"}, {"kind": "event", "event": "start", "step": 1}, self.train_line(2, 4.25), self.train_line(3, 3.0),
                       {"kind": "event", "event": "summary", "step": 3, "exit_code": 0}])
        self.assertEqual(process.wait(timeout=30), 0)
        calls = self.calls()
        begins = [i for i, c in enumerate(calls) if "init" in c]
        self.assertEqual(len(begins), 2)
        self.assertEqual(calls[begins[1] - 1], {"finish": {"octet/superseded": True}})
        self.assertEqual(self.curves(calls[begins[1]:])["train/loss"], {1: 5.0, 2: 4.25, 3: 3.0})
        self.assertEqual(calls[-1], {"finish": {"octet/step": 3, "octet/exit_code": 0}})

    def refused(self, fragment, *arguments, **options):
        result = self.export(*arguments, **options)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(fragment, result.stderr)

    def test_errors(self):
        run = self.fake_run([self.train_line(1, 5.0)])
        self.refused("pip install wandb", run, env={**os.environ, "PYTHONPATH": str(self.blocker())})
        self.refused("metrics.jsonl", self.folder / "nowhere")
        for line, fragment in (('{"kind": "train", "loss": 1}', "lacks what its kind needs"), ("no json", "is not JSON"), ("[1]", "is not JSON")):
            (run / "metrics.jsonl").unlink()
            self.refused(fragment, self.fake_run([self.train_line(1, 5.0), line + "\n"]))
        (run / "config.resolved.json").unlink()
        self.refused("config.resolved.json", run)

    def blocker(self):
        """A folder whose wandb cannot be imported, wherever the tests run."""
        folder = self.folder / "blocker"
        folder.mkdir(exist_ok=True)
        (folder / "wandb.py").write_text("raise ImportError('not here')\n")
        return folder


if __name__ == "__main__":
    unittest.main()
