"""check_dump.py passes what is right and names what is wrong."""
import io
import json
import os
import struct
import tempfile
import unittest
import unittest.mock

import numpy as np

import paths  # noqa: F401
import check_dump
from octet_numpy import formats
from synthetic_dump import Builder, recipes


class CheckDump(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "step_0000000003.safetensors")

    def check(self, builder=None, *options):
        """(exit code, printed text) of one run."""
        if builder is not None:
            builder.write(self.path)
        out, err = io.StringIO(), io.StringIO()
        code = check_dump.main([self.path, *options], out, err)
        return code, out.getvalue() + err.getvalue()

    def wrong_rows(self, builder):
        code, text = self.check(builder)
        self.assertEqual(code, 1, text)
        return [" ".join(line.split()) for line in text.splitlines() if "WRONG" in line]

    def change(self, builder, name, index, value):
        dtype, array = builder.tensors[name]
        array = array.copy()
        array[index] = value(array[index])
        builder.tensors[name] = (dtype, array)

    def test_every_recipe_passes(self):
        for name in recipes():
            code, text = self.check(Builder(name))
            self.assertEqual(code, 0, f"{name}\n{text}")
            images = sum(s is not None for s in recipes()[name].values())
            # 2 micro-batches; qkv has 3 weights and 3 dy, down has 1 of each.
            expected = sum((2 * 2 if k.startswith("x") else 4 if k.startswith("w") else 2 * 4) for k, s in recipes()[name].items() if s)
            self.assertIn(f", {expected} images checked", text)
            self.assertEqual(images == 0, expected == 0)

    def test_fp32_passes(self):
        self.assertEqual(self.check(Builder("bf16", precise=True))[0], 0)

    def test_head_and_json(self):
        out = os.path.join(self.folder.name, "report.json")
        self.assertEqual(self.check(Builder("tensorwise", modules=("head", "layers.0.mlp.gate_up", "layers.0.attn.out")), "--json", out)[0], 0)
        with open(out, encoding="utf-8") as f:
            report = json.load(f)
        self.assertTrue(report["ok"])
        self.assertEqual({r["module"] for r in report["rows"]}, {"head", "layers.0.mlp.gate_up", "layers.0.attn.out"})

    def test_a_flipped_code(self):
        for recipe in ("tensorwise", "delayed", "rowwise", "blockwise", "mxfp8"):
            for name in ("mb1/layers.0.attn.qkv/x.row", "mb0/layers.0.attn.qkv/k_proj/dy.col", "layers.1.mlp.down/down_proj/w.col"):
                b = Builder(recipe)
                self.change(b, name + ".data", (2, 5), lambda c: c ^ 1)
                rows = self.wrong_rows(b)
                label = name.split("/", 2 if name.startswith("mb") else 1)
                label = (label[0] + "/" if name.startswith("mb") else "") + label[-1]
                self.assertTrue(any(label in r for r in rows), (recipe, name, rows))

    def test_a_wrong_scale(self):
        for recipe in ("tensorwise", "delayed", "rowwise", "blockwise", "mxfp8"):
            b = Builder(recipe)
            self.change(b, "mb0/layers.0.attn.qkv/x.col.scale_inv", (0, 0), lambda s: np.nextafter(s, np.float32(1e9)))
            rows = self.wrong_rows(b)
            self.assertTrue(any("mb0/x.col 960 0 1" in r for r in rows), (recipe, rows))

    def test_a_wrong_delayed_scale(self):
        b = Builder("delayed")
        b.meta["delayed"]["layers.0.attn.qkv/q_proj/w"]["scale"] *= 2
        self.assertTrue(any("q_proj/w.row" in r for r in self.wrong_rows(b)))
        b = Builder("delayed")
        del b.meta["delayed"]["layers.0.attn.qkv/x"]
        code, text = self.check(b)
        self.assertEqual(code, 11)
        self.assertIn("no delayed scale for 'layers.0.attn.qkv/x'", text)

    def test_stochastic_codes_must_be_neighbours(self):
        b = Builder("stochastic")
        self.change(b, "mb0/layers.1.mlp.down/down_proj/dy.row.data", (0, 0), lambda c: c ^ 2)
        self.assertTrue(any("dy.row" in r for r in self.wrong_rows(b)))

    def test_a_missing_image(self):
        for name in ("mb1/layers.0.attn.qkv/x.row.data", "layers.1.mlp.down/down_proj/w.col.scale_inv", "mb0/layers.0.attn.qkv/v_proj/dy.row.data"):
            b = Builder("blockwise")
            del b.tensors[name]
            self.assertTrue(any("missing " + name in r for r in self.wrong_rows(b)), name)

    def test_a_missing_high_precision_tensor(self):
        for name in ("mb1/layers.0.attn.qkv/x", "layers.1.mlp.down/down_proj/w", "mb0/layers.0.attn.qkv/v_proj/y", "mb0/layers.1.mlp.down/dx",
                     "layers.0.attn.qkv/q_proj/dw"):
            b = Builder("mxfp8")
            del b.tensors[name]
            self.assertTrue(any("WRONG missing" in r for r in self.wrong_rows(b)), name)

    def test_no_image_at_all(self):
        b = Builder("bf16")
        b.meta["recipe"] = "blockwise"
        self.assertIn("no image although recipe blockwise quantizes", self.wrong_rows(b)[0])

    def test_an_image_no_spec_asks_for(self):
        b = Builder("blockwise")
        b.meta["specs"]["layers.0.attn.qkv"] = recipes()["bf16"]
        self.assertTrue(any("no spec asks for this image" in r for r in self.wrong_rows(b)))

    def test_wrong_results_of_gemms(self):
        for name in ("mb1/layers.0.attn.qkv/v_proj/y", "mb0/layers.1.mlp.down/dx"):
            b = Builder("blockwise")
            value = formats.bf16_values(b.tensors[name][1])
            self.change(b, name, (1, 1), lambda bits, v=value: formats.bf16_bits(v[1, 1] + 0.05 * np.abs(v).max()))
            self.assertTrue(any("1 elements beyond the rounding bound" in r for r in self.wrong_rows(b)), name)
        b = Builder("blockwise")
        self.change(b, "layers.0.attn.qkv/k_proj/dw", (3, 3), lambda v: v + 1e-3)
        self.assertTrue(any("k_proj/dw" in r for r in self.wrong_rows(b)))

    def test_a_gradient_of_the_last_micro_batch_only(self):
        b = Builder("mxfp8")
        one = Builder("mxfp8", micro_batches=1)
        name = "layers.1.mlp.down/down_proj/dw"
        b.tensors[name] = one.tensors[name]
        self.assertTrue(any("down_proj/dw" in r for r in self.wrong_rows(b)))

    def test_an_unquantized_gemm_is_noticed(self):
        b, plain = Builder("blockwise"), Builder("bf16")
        name = "mb0/layers.0.attn.qkv/q_proj/y"
        b.tensors[name] = plain.tensors[name]  # same seed, same values: the product of the unquantized operands
        self.assertTrue(any("mb0/q_proj/y" in r for r in self.wrong_rows(b)))

    def test_wrong_shapes(self):
        b = Builder("mxfp8")
        name = "mb0/layers.1.mlp.down/x.row.scale_inv"
        b.tensors[name] = ("F32", b.tensors[name][1].T.copy())
        self.assertTrue(any("shapes" in r for r in self.wrong_rows(b)))
        b = Builder("bf16")
        b.tensors["mb0/layers.1.mlp.down/dx"] = ("BF16", np.zeros((3, 3), np.uint16))
        self.assertTrue(any("does not fit operands" in r for r in self.wrong_rows(b)))

    def test_a_shared_gradient_is_named_and_not_checked(self):
        b = Builder("bf16", modules=("head",))
        self.change(b, "head/lm_head/dw", (0, 0), lambda v: v + 1)
        self.wrong_rows(b)
        b.meta["shared_grads"] = ["head/lm_head"]
        code, text = self.check(b)
        self.assertEqual(code, 0)
        self.assertIn("not checked", text)

    def test_unreadable_files(self):
        good = Builder("tensorwise")
        good.write(self.path)
        with open(self.path, "rb") as f:
            data = f.read()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])

        def rebuilt(change):
            changed = json.loads(json.dumps(header))
            change(changed)
            text = json.dumps(changed).encode()
            return struct.pack("<Q", len(text)) + text + data[8 + length :]

        name = "mb0/layers.0.attn.qkv/x"
        meta = "__metadata__"
        bad = [b"", data[:7], data[:100], data[:-1], data + b"x", struct.pack("<Q", 1 << 60) + data[8:], b"\x02" + bytes(7) + b"[]",
               rebuilt(lambda h: h[name].update(shape=[1 << 40, 1 << 40])), rebuilt(lambda h: h[name].update(dtype="F8")),
               rebuilt(lambda h: h[name].update(data_offsets=[0, -2])), rebuilt(lambda h: h[name].update(shape=[0, 1 << 62])),
               rebuilt(lambda h: h.pop(meta)), rebuilt(lambda h: h[meta].update(dump="[")), rebuilt(lambda h: h[meta].update(dump="{}")),
               rebuilt(lambda h: h[meta].update(dump=json.dumps({**good.meta, "micro_batches": 0}))),
               rebuilt(lambda h: h[meta].update(dump=json.dumps({**good.meta, "specs": {"embed": {}}}))),
               rebuilt(lambda h: h[meta].update(dump=json.dumps({**good.meta, "specs": {"head": {}}})))]
        for content in bad:
            with open(self.path, "wb") as f:
                f.write(content)
            code, text = self.check()
            self.assertEqual(code, 11, text)
            self.assertEqual(text.count("\n"), 1, text)
        os.remove(self.path)
        self.assertEqual(self.check()[0], 11)

    def test_usage(self):
        with self.assertRaises(SystemExit) as caught, unittest.mock.patch("sys.stderr", io.StringIO()):
            check_dump.main([])
        self.assertEqual(caught.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
