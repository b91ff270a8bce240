"""run.device, compact optimizer states and operator benchmarks, without a GPU."""

import json
import os
import unittest

from octet_cli import CONFIG, OK, USAGE, Sandbox, octet, snapshot

DEVICE = 32
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
TINY = ["--set", "model.hidden_size=64", "model.intermediate_size=96", "model.num_attention_heads=2", "model.num_key_value_heads=1", "model.head_dim=32", "data.seq_len=32",
        "run.device=cpu"]


class Device(Sandbox):
    def has_cuda(self):
        return "built without CUDA" not in octet("doctor", env=NO_GPU).stdout

    def test_a_run_without_its_gpu_is_refused_and_leaves_nothing(self):
        config = self.config(run={"device": "cuda", "steps": 4})
        before = snapshot(self.folder)
        result = octet("train", "--config", config, "--run-dir", self.folder / "run", env=NO_GPU)
        self.assert_one_line(result, DEVICE if self.has_cuda() else CONFIG, "run.device", "cuda")
        self.assertEqual(snapshot(self.folder), before)

    def test_a_gpu_that_is_elsewhere_can_be_planned_for(self):
        if not self.has_cuda():
            self.skipTest("this octet was built without CUDA")
        config = self.config(run={"device": "cuda", "steps": 4}, precision={"recipe": "blockwise"})
        arguments = ["train", "--config", config, "--run-dir", self.folder / "run", "--dry-run"]
        result = octet(*arguments, env=NO_GPU)
        self.assertEqual(result.rc, OK, result)
        for row in ("device memory", "quantized weight images", "tokens, scales and sums", "CUDA context and cuBLASLt workspace", "total"):
            self.assertRegex(result.stdout, rf"(?m)^{row} +", result)
        refused = octet(*arguments, "--fp8-recipe", "mxfp8", env=NO_GPU)
        self.assert_one_line(refused, CONFIG, "precision.recipe", "mxfp8", "precision.emulate")
        emulated = octet(*arguments, "--fp8-recipe", "mxfp8", "--set", "precision.emulate=true", env=NO_GPU)
        self.assertEqual(emulated.rc, OK, emulated)
        self.assertRegex(emulated.stdout, r"(?m)^emulation: MXFP8 products begin with compute capability 10\.0; products of BF16 copies of decoded operands stand in for it$")
        self.assertNotIn("emulation:", result.stdout)

    def test_attention_that_does_not_run_is_refused(self):
        if not self.has_cuda():
            self.skipTest("this octet was built without CUDA")
        config = self.config(run={"device": "cuda", "steps": 4, "attention": "wgmma"})   # head_dim 32
        arguments = ["train", "--config", config, "--run-dir", self.folder / "run", "--dry-run"]
        self.assert_one_line(octet(*arguments, env=NO_GPU), CONFIG, "run.attention", '"wgmma"', "model.head_dim is 32", "64 and 128", '"mma"')
        self.assertEqual(octet(*arguments, "--set", "model.head_dim=64", env=NO_GPU).rc, OK)
        self.assert_one_line(octet(*arguments, "--fp8-recipe", "fp32", "--set", "model.head_dim=64", env=NO_GPU), CONFIG, "run.attention", "FP32", "BF16")
        self.assertEqual(octet(*arguments, "--set", "run.device=cpu", env=NO_GPU).rc, OK, "a CPU has one attention")
        self.assert_one_line(octet(*arguments, "--set", "run.attention=flash", env=NO_GPU), CONFIG, "run.attention", "mma", "wgmma", "flash")

    def test_a_shadow_needs_a_gpu_and_leaves_nothing(self):
        config = self.config(run={"steps": 4})
        before = snapshot(self.folder)
        for device in ("cpu", "auto"):
            for more in ([], ["--dry-run"]):
                with self.subTest(device=device, more=more):
                    result = octet("train", "--config", config, "--run-dir", self.folder / "run", *more, "--set", f"run.device={device}", "run.shadow=true", env=NO_GPU)
                    self.assert_one_line(result, CONFIG, "run.shadow", "CPU", "run.device")
        self.assertEqual(snapshot(self.folder), before)

    def test_masters_in_halves_train_bit_for_bit_as_fp32_ones(self):
        whole = self.train("whole", optim={"master_weights": "fp32"})
        halves = self.train("halves", optim={"master_weights": "bf16_remainder"})
        self.assert_same_training(whole, halves, 8)   # checkpoints hold FP32 values of both

    def test_bf16_moments_resume_bitwise(self):
        settings = {"optim": {"moments": "bf16"}, "ckpt": {"interval": 1}}
        straight = self.train("straight", **settings)
        self.assert_stops_change_nothing(straight, 8, **settings)


class Bench(Sandbox):
    def test_operators_have_a_row_each(self):
        for what, names in (("gemm", ["attn.qkv (q) fprop", "mlp.down wgrad"]), ("quantize", ["copy", "blockwise"]), ("attention", ["tokens"])):
            with self.subTest(what=what):
                out = self.folder / f"{what}.json"
                recipes = [] if what == "attention" else ["--recipe", "blockwise"]
                result = octet("bench", what, "--rounds", "1", *recipes, *TINY, "--json", out)
                self.assertEqual(result.rc, OK, result)
                rows = json.loads(out.read_text())["rows"]
                self.assertTrue(all(row["ms"] > 0 for row in rows))
                for name in names:
                    self.assertIn(name, result.stdout, result)
                    self.assertTrue(any(name in row["group"] for row in rows), name)

    def test_mistakes_are_named(self):
        self.assert_one_line(octet("bench", "gem"), USAGE, "gem", "gemm")
        self.assert_one_line(octet("bench", "gemm", "--recipe", "blokwise", *TINY), CONFIG, "blokwise")
        self.assert_one_line(octet("bench", "attention", "--rounds", "0"), CONFIG, "--rounds")
        self.assert_one_line(octet("bench", "step", "--trace", "--config", self.config(run={"device": "cpu"})), CONFIG, "--trace")


if __name__ == "__main__":
    unittest.main()
