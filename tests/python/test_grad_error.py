"""grad_error.py: the table, the emulation, and what it refuses."""
import io
import json
import os
import tempfile
import unittest
import unittest.mock

import numpy as np

import paths  # noqa: F401
import grad_error
from synthetic_dump import Builder


class GradError(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.reference = self.write("fp32", Builder("bf16", precise=True))

    def write(self, name, builder):
        return builder.write(os.path.join(self.folder.name, name + ".safetensors"))

    def run_script(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        code = grad_error.main(["--reference", self.reference, *arguments], out, err)
        return code, out.getvalue(), err.getvalue()

    def rows(self, *arguments):
        path = os.path.join(self.folder.name, "table.json")
        code, _, err = self.run_script(*arguments, "--json", path)
        with open(path, encoding="utf-8") as f:
            return code, json.load(f)["rows"], err

    def test_error_and_cosine(self):
        b = Builder("bf16", modules=("layers.1.mlp.down",))
        self.reference = self.write("small", Builder("bf16", modules=("layers.1.mlp.down",), precise=True))
        reference = Builder("bf16", modules=("layers.1.mlp.down",), precise=True).tensors["layers.1.mlp.down/down_proj/dw"][1].astype(np.float64)
        b.tensors["layers.1.mlp.down/down_proj/dw"] = ("F32", (1.25 * reference).astype(np.float32))
        code, rows, _ = self.rows("--dump", "scaled=" + self.write("scaled", b))
        self.assertEqual(code, 0)
        self.assertEqual([r["module"] for r in rows], ["layers.1.mlp.down/down_proj", "all"])
        for row in rows:
            self.assertAlmostEqual(row["rel_error"], 0.25, places=6)
            self.assertAlmostEqual(row["cosine"], 1.0, places=12)
        sign = np.where(np.arange(reference.size).reshape(reference.shape) % 2 == 0, 1.0, -1.0)
        b.tensors["layers.1.mlp.down/down_proj/dw"] = ("F32", (sign * reference).astype(np.float32))
        _, rows, _ = self.rows("--dump", "mixed=" + self.write("mixed", b))
        self.assertAlmostEqual(rows[0]["cosine"], np.sum(sign * reference**2) / np.sum(reference**2), places=6)

    def test_emulation_agrees_for_every_recipe(self):
        names = ("bf16", "tensorwise", "delayed", "rowwise", "blockwise", "mxfp8", "custom")
        dumps = [f"{n}={self.write(n, Builder(n))}" for n in names]
        code, rows, err = self.rows("--dump", *dumps, "--emulate")
        self.assertEqual(code, 0, err)
        by_recipe = {n: [r for r in rows if r["recipe"] == n and r["module"] != "all"] for n in names}
        for name, found in by_recipe.items():
            self.assertEqual(len(found), 4)
            for row in found:
                self.assertTrue(row["agrees"])
                low, high = (0, 1e-5) if name in ("bf16", "custom") else (0.005, 0.2)  # custom keeps wgrad in BF16
                self.assertTrue(low <= row["local_error"] <= high, row)

    def test_a_gradient_from_other_codes_disagrees(self):
        b, plain = Builder("mxfp8"), Builder("bf16")
        b.tensors["layers.0.attn.qkv/k_proj/dw"] = plain.tensors["layers.0.attn.qkv/k_proj/dw"]
        code, rows, err = self.rows("--dump", "mx=" + self.write("mx", b), "--emulate")
        self.assertEqual(code, 1)
        self.assertIn("rows marked NO", err)
        self.assertEqual([r["module"] for r in rows if not r.get("agrees", True)], ["layers.0.attn.qkv/k_proj"])

    def test_dumps_that_do_not_belong_together(self):
        b = Builder("mxfp8")
        b.meta["step"] = 4
        other = Builder("mxfp8", seed=1)
        batch = Builder("bf16")
        batch.tensors["mb1/layers.0.attn.qkv/x"] = batch.tensors["mb0/layers.0.attn.qkv/x"]
        cases = {"step": b, "weights": other, "micro_batches": Builder("mxfp8", micro_batches=1),
                 "modules": Builder("mxfp8", modules=("layers.0.attn.qkv",)), "not the same batch": batch}
        for word, builder in cases.items():
            code, _, err = self.run_script("--dump", "x=" + self.write("x", builder))
            self.assertEqual(code, 10, word)
            self.assertIn(word, err)
        self.reference = self.write("ref", Builder("bf16"))
        self.assertEqual(self.run_script("--dump", "x=" + self.reference)[0], 10)

    def test_unreadable_and_usage(self):
        b = Builder("mxfp8")
        del b.tensors["layers.0.attn.qkv/k_proj/dw"]
        self.assertEqual(self.run_script("--dump", "x=" + self.write("x", b))[0], 11)
        self.assertEqual(self.run_script("--dump", "x=" + self.reference + ".none")[0], 11)
        with self.assertRaises(SystemExit) as caught, unittest.mock.patch("sys.stderr", io.StringIO()):
            self.run_script("--dump", "no-equals-sign")
        self.assertEqual(caught.exception.code, 2)

    def test_tables(self):
        path = os.path.join(self.folder.name, "table.md")
        code, text, _ = self.run_script("--dump", "mx=" + self.write("mx", Builder("mxfp8")), "--emulate", "--markdown", path)
        self.assertEqual(code, 0)
        lines = text.splitlines()
        self.assertEqual(lines[0].split(), ["recipe", "module", "rel_error", "cosine", "local_error", "emulated", "agrees"])
        self.assertEqual(len(lines), 6)
        with open(path, encoding="utf-8") as f:
            table = f.read().splitlines()
        self.assertEqual(len(table), 7)
        self.assertEqual({line.count("|") for line in table}, {8})


if __name__ == "__main__":
    unittest.main()
