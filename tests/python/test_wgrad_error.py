"""wgrad_error.py: the error by hand, where channel scales equal blocks, where they part, and what it refuses."""
import contextlib
import io
import json
import os
import tempfile
import unittest

import numpy as np

import paths  # noqa: F401
import wgrad_error
from octet_numpy import formats
from synthetic_dump import Builder


class WgradError(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def dump(self, x, dy):
        """A dump of one weight and one micro-batch with these values, [tokens, features]."""
        builder = Builder("bf16", modules=("layers.1.mlp.down",), micro_batches=1)
        for name, values in (("mb0/layers.1.mlp.down/x", x), ("mb0/layers.1.mlp.down/down_proj/dy", dy)):
            builder.tensors[name] = ("BF16", formats.bf16_bits(np.asarray(values, dtype=np.float32)))
        return builder.write(os.path.join(self.folder.name, "dump.safetensors"))

    def run_script(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        return wgrad_error.main([*arguments], out, err), out.getvalue(), err.getvalue()

    def rows(self, *arguments):
        path = os.path.join(self.folder.name, "table.json")
        code, _, err = self.run_script(*arguments, "--json", path)
        self.assertEqual(code, 0, err)
        with open(path, encoding="utf-8") as f:
            return {row["variant"]: row for row in json.load(f)}

    def test_error_by_hand(self):
        """x = 1 is exact; dy = 448, 33: 33 lies between 32 and 36 and becomes 32. The sum over both tokens is 481, the error 1."""
        rows = self.rows(self.dump([[1.0], [1.0]], [[448.0], [33.0]]))
        self.assertAlmostEqual(rows["channel pow2"]["error down"], 1 / 481, places=12)
        self.assertEqual(rows["channel pow2"]["underflow_dy"], 0)
        # E5M2 (largest value 57344 = 128 * 448) has 32 and 40 there too.
        self.assertAlmostEqual(rows["channel fp32, dy e5m2"]["error down"], 1 / 481, places=6)

    def test_powers_of_two_make_channels_and_blocks_alike_until_something_is_subnormal(self):
        rng = np.random.default_rng(3)
        x, dy = rng.standard_normal((512, 24)), rng.standard_normal((512, 8))
        near = np.where(np.abs(x) < 0.01, 0.01, x)
        rows = self.rows(self.dump(near, np.where(np.abs(dy) < 0.01, 0.01, dy)))
        self.assertEqual(rows["channel pow2"], {**rows["1x128 pow2"], "variant": "channel pow2"})
        self.assertNotEqual(rows["channel fp32"]["error down"], rows["1x128 fp32"]["error down"])
        far = np.array(near)
        far[7] *= 2.0**20   # one token: the others of its block are lost with it, those of the other blocks in channels alone
        rows = self.rows(self.dump(far, dy))
        self.assertGreater(rows["channel pow2"]["underflow_x"], 0.7)
        self.assertLess(rows["1x128 pow2"]["underflow_x"], 0.25)

    def test_outlier_tokens_hide_in_the_whole_and_show_in_the_others(self):
        rng = np.random.default_rng(4)
        path = self.dump(rng.standard_normal((256, 24)), rng.standard_normal((256, 8)))
        rows = self.rows(path, "--outlier-tokens", "1", "--outlier-factor", "1e6", "--outlier-of", "x")
        self.assertLess(rows["channel pow2"]["error down"], 0.05)
        self.assertGreater(rows["channel pow2"]["others down"], 0.8)
        self.assertLess(rows["1x128 pow2"]["others down"], 0.8)
        # Channels have scales of their own: nothing is lost, as with blocks.
        rows = self.rows(path, "--outlier-channels", "2", "--outlier-factor", "1e6")
        self.assertEqual(rows["channel pow2"], {**rows["1x128 pow2"], "variant": "channel pow2"})
        self.assertGreater(rows["tensor fp32"]["underflow_x"], 0.5)

    def test_tokens_cut_the_dump_anew(self):
        builder = Builder("bf16", modules=("layers.1.mlp.down",), micro_batches=2)
        path = builder.write(os.path.join(self.folder.name, "two.safetensors"))
        default, cut = self.rows(path), self.rows(path, "--tokens", "24")
        self.assertEqual(default, cut)   # the builder's micro-batches have 24 tokens
        self.assertNotEqual(self.rows(path, "--tokens", "48")["channel fp32"], cut["channel fp32"])
        self.assertEqual(self.run_script(path, "--tokens", "49")[0], wgrad_error.EXIT_UNREADABLE)

    def test_modules_are_columns_and_figures_percent(self):
        path = Builder("bf16", modules=("layers.0.attn.qkv", "layers.1.mlp.down")).write(os.path.join(self.folder.name, "d.safetensors"))
        code, table, err = self.run_script(path)
        self.assertEqual(code, 0, err)
        lines = table.splitlines()
        self.assertEqual(lines[0], "| variant | error qkv | error down | underflow_x | underflow_dy |")
        self.assertEqual(len(lines), 2 + len(wgrad_error.VARIANTS))
        shown = float(lines[2].split("|")[2])
        self.assertAlmostEqual(shown, 100 * self.rows(path)["1x128 fp32"]["error qkv"], delta=0.006)

    def test_refuses(self):
        self.assertEqual(self.run_script(os.path.join(self.folder.name, "none"))[0], wgrad_error.EXIT_UNREADABLE)
        path = Builder("bf16").write(os.path.join(self.folder.name, "d.safetensors"))
        quantized = Builder("blockwise").write(os.path.join(self.folder.name, "q.safetensors"))
        for arguments, text in (((quantized,), "recipe 'blockwise'"), ((path, "--outlier-tokens", "24"), "--outlier-tokens 24, but a micro-batch has 24 tokens")):
            code, table, err = self.run_script(*arguments)
            self.assertEqual((code, table), (wgrad_error.EXIT_UNREADABLE, ""))
            self.assertIn(text, err)
        for name in ("x", "dy"):
            builder = Builder("bf16", modules=("layers.1.mlp.down",))
            lost = next(k for k in builder.tensors if k.endswith("/" + name))
            del builder.tensors[lost]
            code, table, err = self.run_script(builder.write(os.path.join(self.folder.name, "lost.safetensors")))
            self.assertEqual((code, table), (wgrad_error.EXIT_UNREADABLE, ""))
            self.assertIn(f"no tensor '{lost}'", err)
        for factor in ("nan", "inf", "1e300", "large"):
            with self.assertRaises(SystemExit) as refused, contextlib.redirect_stderr(io.StringIO()):
                self.run_script(path, "--outlier-factor", factor)
            self.assertEqual(refused.exception.code, 2, factor)
        code, _, err = self.run_script(path, "--json", self.folder.name)
        self.assertEqual(code, wgrad_error.EXIT_CANNOT_WRITE)
        self.assertIn("wgrad_error: cannot write the table", err)


if __name__ == "__main__":
    unittest.main()
