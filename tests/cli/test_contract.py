"""The published config sample, resume's rules for directories and derived values, dumps that are awkward to plan, --strict."""

import json
import subprocess
import sys
import unittest
from pathlib import Path

from octet_cli import CONFIG, OK, SOURCE, Sandbox, octet, records, snapshot

STOCHASTIC = {"recipe": "custom", "custom": {
    "fprop": {"x": {"format": "e4m3", "block": [1, 20]}, "w": {"format": "e4m3", "block": "tensor", "rounding": "stochastic"}},
    "dgrad": {"dy": {"format": "e4m3", "block": "row", "rounding": "stochastic"}, "w": {"format": "e4m3", "block": [8, 8], "scale": "pow2"}},
}}


class Contract(Sandbox):
    def test_the_published_sample_is_accepted(self):
        sample = Path(__file__).with_name("design_example.json")
        result = octet("train", "--config", sample, "--data-path", self.prefix, "--dry-run", "--set", "data.split=9,1,0")
        self.assertEqual(result.rc, OK, result)
        self.assertIn("blockwise", result.stdout)
        self.assertIn("total", result.stdout)

    def test_stochastic_weights_resume_bitwise(self):
        settings = {"precision": STOCHASTIC, "sched": {"type": "constant"}}
        whole = self.train("whole", run={"steps": 12}, **settings)
        parts = self.folder / "parts"
        for count in (5, 12):
            result = octet("train", "--config", self.config(run={"steps": count}, **settings), "--run-dir", parts, "--resume", "auto")
            self.assertEqual(result.rc, OK, result)
        self.assert_same_training(whole, parts, 12)

    def test_foreign_directory_is_left_alone(self):
        run = self.folder / "papers"
        run.mkdir()
        (run / "thesis.txt").write_text("important")
        before = snapshot(run)
        result = octet("train", "--config", self.config(), "--run-dir", run, "--resume", "auto")
        self.assert_one_line(result, CONFIG, "papers", "no run directory")
        self.assertEqual(snapshot(run), before)

    def test_finished_run_is_not_relabelled(self):
        run = self.train("run")
        before = snapshot(run)
        result = octet("train", "--config", self.config(), "--run-dir", run, "--resume", "auto", "--fp8-recipe", "mxfp8")
        self.assertEqual(result.rc, OK, result)
        self.assertIn("nothing to do", result.stdout)
        self.assertEqual({k: v for k, v in snapshot(run).items() if ".lock" not in str(k)}, {k: v for k, v in before.items() if ".lock" not in str(k)})

    def test_derived_history_length_is_kept_on_resume(self):
        settings = {"precision": {"recipe": "delayed"}, "sched": {"type": "constant"}}
        run = self.folder / "run"
        self.assertEqual(octet("train", "--config", self.config(run={"steps": 4}, **settings), "--run-dir", run).rc, OK)
        length = json.loads((run / "config.resolved.json").read_text())["precision"]["amax_history_len"]
        result = octet("train", "--config", self.config(run={"steps": 400}, **settings), "--run-dir", run, "--resume", "must", "--exit-after", "0.001", "--strict")
        self.assertEqual(result.rc, 21, result)
        self.assertEqual(json.loads((run / "config.resolved.json").read_text())["precision"]["amax_history_len"], length)

    def test_a_shortened_run_decays_within_its_steps(self):
        run = self.folder / "run"
        linear = {"type": "linear", "warmup_steps": 1, "min_lr_ratio": 0.1}
        self.assertEqual(octet("train", "--config", self.config(run={"steps": 400}, sched=linear), "--run-dir", run, "--exit-after", "0.000001").rc, 21)
        result = octet("train", "--config", self.config(run={"steps": 8}, sched=linear), "--run-dir", run, "--resume", "must")
        self.assertEqual(result.rc, OK, result)
        self.assertIn("does not fit", result.stdout)
        self.assertEqual(json.loads((run / "config.resolved.json").read_text())["sched"]["decay_steps"], 7)

    def test_quantized_elements_do_not_depend_on_resuming(self):
        settings = {"precision": {"recipe": "blockwise"}, "sched": {"type": "constant"}}
        straight = self.train("straight", run={"steps": 6}, **settings)
        run = self.folder / "run"
        for count in (3, 6):
            self.assertEqual(octet("train", "--config", self.config(run={"steps": count}, **settings), "--run-dir", run, "--resume", "auto").rc, OK)

        def totals(folder):
            return [r for r in records(folder, "event") if r["event"] == "summary"][-1]["quantized"]

        self.assertEqual(totals(run), totals(straight))

    def test_bad_dump_requests_are_refused_at_once(self):
        for request in ("3:nosuch", "99:*", "0:*"):
            result = octet("train", "--config", self.config(), "--run-dir", self.folder / "run", "--dump", request)
            self.assert_one_line(result, CONFIG, "--dump")
            self.assertFalse((self.folder / "run").exists())

    def test_a_dump_of_an_input_that_backward_makes_differently_is_refused(self):
        config = self.config(recompute={"modules": ["swiglu"], "swiglu_inputs": "fp8"})
        result = octet("train", "--config", config, "--run-dir", self.folder / "run", "--dump", "2:*")
        self.assert_one_line(result, CONFIG, "--dump", "recompute.swiglu_inputs")
        self.assertFalse((self.folder / "run").exists())

    def test_dumps_of_a_quantized_tied_head_pass_the_checker(self):
        for name, precision in (("tied", {"recipe": "mxfp8", "head": "fp8"}), ("mixed", {"recipe": "delayed", "dgrad": "bf16", "head": "fp8"})):
            with self.subTest(name):
                run = self.train(name, "--dump", "2:*", precision=precision, recompute={"modules": ["block"]}, batch={"micro": 2, "global": 4},
                                 model={"tie_word_embeddings": name == "tied"})
                dump = run / "dumps" / "step_0000000002.safetensors"
                checked = subprocess.run([sys.executable, SOURCE / "scripts/check_dump.py", dump], capture_output=True, text=True, check=False)
                self.assertEqual(checked.returncode, OK, checked.stdout[-2000:] + checked.stderr)

    def test_strict_turns_a_useless_option_into_an_error(self):
        run = self.folder / "run"
        arguments = ("train", "--config", self.config(precision={"recipe": "mxfp8", "margin": 1}), "--run-dir", run)
        self.assert_one_line(octet(*arguments, "--strict"), CONFIG, "precision.margin", "no effect")
        self.assertFalse(run.exists())
        result = octet(*arguments)
        self.assertEqual(result.rc, OK)
        self.assertIn("warning: precision.margin has no effect", result.stdout)


if __name__ == "__main__":
    unittest.main()
