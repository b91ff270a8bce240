"""octet ckpt ls, verify, diff: what they say of sound, equal, different and damaged checkpoints."""

import json
import re
import shutil
import unittest

import numpy

from octet_cli import CHECKPOINT, OK, USAGE, VERDICT_NO, Sandbox, checkpoints, octet, snapshot

SETTINGS = {"run": {"steps": 6}, "ckpt": {"interval": 3, "keep_last": 0}}


def model_shard(checkpoint):
    return next(checkpoint.glob("model-*.safetensors"))


def read_header(shard):
    data = shard.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + length]), 8 + length


class Ckpt(Sandbox):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.class_folder
        cls.original = cls.train(cls(), "original", **SETTINGS)

    def setUp(self):
        super().setUp()
        self.run_dir = self.folder / "run"
        shutil.copytree(self.original, self.run_dir)
        self.first, self.last = checkpoints(self.run_dir)

    def say(self, rc, *arguments):
        result = octet("ckpt", *arguments)
        self.assertEqual((result.rc, result.stderr), (rc, ""), result)
        return result.stdout

    def flip(self, shard, offset):
        data = bytearray(shard.read_bytes())
        data[offset] ^= 1
        shard.write_bytes(bytes(data))

    def test_ls(self):
        lines = self.say(OK, "ls", self.run_dir).splitlines()
        self.assertEqual(len(lines), 4, lines)
        tensors = len(json.loads((self.first / "manifest.json").read_text())["groups"]["model"])
        self.assertRegex(lines[2], rf"^step_0000000003 +3 +[\d.]+ [KM]iB +{3 * tensors} +{3 * tensors} f32 +complete$")
        self.assertRegex(lines[3], r"^step_0000000006 .* complete, LATEST$")
        self.assertEqual(self.say(OK, "ls", self.run_dir / "checkpoints").splitlines(), lines)
        self.assertEqual(self.say(OK, "ls", self.last).splitlines()[-1].split(), lines[3].split())

    def test_ls_names_what_is_damaged_or_unfinished(self):
        (self.first / "manifest.json").unlink()
        (self.run_dir / "checkpoints" / "step_0000000009.tmp.1").mkdir()
        text = self.say(OK, "ls", self.run_dir)
        self.assertRegex(text, r"step_0000000003 .*damaged: .*manifest\.json")
        self.assertRegex(text, r"step_0000000009\.tmp\.1 .*unfinished")
        self.assertRegex(text, r"step_0000000006 .*complete, LATEST")

    def test_verify(self):
        text = self.say(OK, "verify", self.run_dir)
        self.assertEqual(text.count(": good; "), 2)
        self.assertTrue(text.endswith("2 good, 0 damaged\n"))
        before = snapshot(self.run_dir)
        self.say(OK, "verify", self.last, self.first)
        self.assertEqual(snapshot(self.run_dir), before)

    def test_verify_finds_a_flipped_bit_anywhere(self):
        for checkpoint in (self.first, self.last):
            for shard in sorted(checkpoint.iterdir()):
                size = shard.stat().st_size
                for offset in (0, 9, size // 2, size - 1):
                    with self.subTest(file=shard.name, offset=offset):
                        self.flip(shard, offset)
                        text = self.say(VERDICT_NO, "verify", checkpoint)
                        self.assertIn("damaged: ", text)
                        self.assertTrue(text.endswith("0 good, 1 damaged\n"))
                        self.flip(shard, offset)
        self.say(OK, "verify", self.run_dir)

    def test_verify_names_every_damaged_tensor(self):
        shard = model_shard(self.last)
        header, start = read_header(shard)
        names = sorted(k for k in header if k != "__metadata__")[:3]
        for name in names:
            self.flip(shard, start + header[name]["data_offsets"][0])
        text = self.say(VERDICT_NO, "verify", self.run_dir)
        for name in names:
            self.assertIn(f'tensor "{name}"', text)
        self.assertTrue(text.endswith("1 good, 1 damaged\n"))

    def test_verify_missing_and_truncated_files(self):
        shard = model_shard(self.first)
        shard.write_bytes(shard.read_bytes()[:-4])
        model_shard(self.last).unlink()
        self.assertTrue(self.say(VERDICT_NO, "verify", self.run_dir).endswith("0 good, 2 damaged\n"))

    def test_diff_of_equals(self):
        text = self.say(OK, "diff", self.last, self.run_dir)
        self.assertIn("state and config: equal", text)
        twin = self.train("twin", **SETTINGS)
        text = self.say(OK, "diff", self.last, twin)
        self.assertIn("config run.dir", text)   # shown, not counted
        self.assertRegex(text, r"tensors: all \d+ are equal")

    def test_diff_of_steps_and_seeds(self):
        text = self.say(VERDICT_NO, "diff", self.first, self.last)
        self.assertRegex(text, r"(?m)^step +3 +6$")
        self.assertRegex(text, r"tensors: \d+ of \d+ differ")
        self.assertIn("and ", text)
        self.assertNotIn("(--all lists them)", self.say(VERDICT_NO, "diff", self.first, self.last, "--all"))
        other = self.train("other", "--set", "run.seed=8", "optim.lr=0.003", **SETTINGS)
        text = self.say(VERDICT_NO, "diff", self.last, other)
        self.assertRegex(text, r"(?m)^config optim\.lr +0\.002 +0\.003$")
        self.assertRegex(text, r"(?m)^config run\.seed +7 +8$")

    def test_diff_agrees_with_numpy(self):
        text = self.say(VERDICT_NO, "diff", self.first, self.last, "--all")
        pattern = re.compile(r"^model: (\S+) +(\d+) +(\d+) +(\S+) +(\S+)$", re.M)
        rows = {m[1]: m.groups()[1:] for m in pattern.finditer(text)}

        def tensors(checkpoint):
            shard = model_shard(checkpoint)
            header, start = read_header(shard)
            data = shard.read_bytes()
            return {k: numpy.frombuffer(data[start + v["data_offsets"][0]:start + v["data_offsets"][1]], dtype="<f4").astype("f8")
                    for k, v in header.items() if k != "__metadata__"}

        a, b = tensors(self.first), tensors(self.last)
        self.assertEqual(sorted(rows), sorted(k for k in a if (a[k] != b[k]).any()))
        for name, (differing, elements, max_abs, max_rel) in rows.items():
            gap = numpy.abs(a[name] - b[name])
            scale = numpy.maximum(numpy.abs(a[name]), numpy.abs(b[name]))
            self.assertEqual((int(differing), int(elements)), (int((gap > 0).sum()), gap.size), name)
            self.assertEqual(max_abs, f"{gap.max():.3g}", name)
            self.assertEqual(max_rel, f"{(gap[scale > 0] / scale[scale > 0]).max():.3g}", name)

    def test_diff_of_other_shapes(self):
        other = self.train("wide", "--ffn-hidden-size", "192", "--fp8-recipe", "delayed", **SETTINGS)
        text = self.say(VERDICT_NO, "diff", self.last, other, "--all")
        self.assertRegex(text, r"mlp\.gate_proj\.weight +f32 \[128, 64\] and f32 \[192, 64\]")
        self.assertRegex(text, r"state: fp8/scale +only in the second")

    def test_damaged_or_missing_checkpoints(self):
        self.assert_one_line(octet("ckpt", "ls", self.folder / "none"), CHECKPOINT, "none")
        self.assert_one_line(octet("ckpt", "ls", self.folder), CHECKPOINT, "holds no checkpoint")
        self.assert_one_line(octet("ckpt", "verify", self.folder / "none"), CHECKPOINT, "none")
        shard = model_shard(self.first)
        self.flip(shard, shard.stat().st_size - 1)
        result = octet("ckpt", "diff", self.first, self.last)
        self.assertEqual(result.rc, CHECKPOINT, result)
        self.assertIn("damaged", result.stderr)

    def test_hostile_manifests(self):
        manifest = self.first / "manifest.json"
        for content in ("", "{}", "[" * 100000, '{"format": "octet checkpoint", "format_version": 1}', "\x00" * 100, '{"a": 1, "a": 2}'):
            manifest.write_text(content)
            self.assertIn("damaged", self.say(OK, "ls", self.run_dir))
            self.assertTrue(self.say(VERDICT_NO, "verify", self.run_dir).endswith("1 good, 1 damaged\n"))

    def test_command_line(self):
        self.assert_one_line(octet("ckpt"), USAGE, "ls, verify or diff")
        self.assert_one_line(octet("ckpt", "verfy", "x"), USAGE, "verify")
        self.assert_one_line(octet("ckpt", "ls"), USAGE, "missing")
        self.assert_one_line(octet("ckpt", "diff", self.first), USAGE, "two")
        self.assert_one_line(octet("ckpt", "diff", self.first, self.last, "--al"), USAGE, "--all")


if __name__ == "__main__":
    unittest.main()
