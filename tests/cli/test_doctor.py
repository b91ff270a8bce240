"""octet doctor: the machine, the table of recipes, and whether a config would start here. Without a GPU, wherever the tests run."""

import os
import re
import unittest

from octet_cli import CONFIG, OK, RECIPES, USAGE, VERDICT_NO, Sandbox, octet, snapshot, write_json

# Devices are hidden, so that a machine with a GPU is tested as one without.
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


def doctor(*arguments):
    return octet("doctor", *arguments, env=NO_GPU)


class Doctor(Sandbox):
    def table(self, text, title):
        """The table below the heading `title`: row name -> {column: word}."""
        lines = text.splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith(title + "  "))
        columns = re.split(r" {2,}", lines[begin])[1:]
        rows = {}
        for line in lines[begin + 2:]:
            if not line:
                break
            name, *cells = line.split()
            rows[name] = dict(zip(columns, cells, strict=True))
        return rows

    def assert_fits(self, result):
        self.assertEqual(result.stderr, "", result)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 120, result)

    def test_a_machine_without_gpu(self):
        result = doctor()
        self.assertEqual(result.rc, OK, result)
        self.assert_fits(result)
        self.assertRegex(result.stdout, r"(?m)^octet +\d+\.\d+\.\d+, compiled by ")
        self.assertRegex(result.stdout, r"(?m)^processor +.+, \d+ usable cores, AVX2 yes, AVX-512 (yes|no)$")
        self.assertRegex(result.stdout, r"(?m)^BLAS +self-test right, [\d.]+ GFLOP/s a core$")
        self.assertRegex(result.stdout, r"(?m)^GPU +none: (no NVIDIA driver on this machine|the NVIDIA driver shows no device|this octet was built without CUDA)")
        rows = self.table(result.stdout, "recipe")
        self.assertEqual(sorted(rows), sorted([*RECIPES, "static"]))
        self.assertEqual(list(rows["bf16"]), ["below 8.9", "8.9", "9.0", "10.0", "12.0"])
        self.assertEqual(set(rows["bf16"].values()), {"native"})
        self.assertEqual(list(rows["blockwise"].values()), ["refused", "emulated", "native", "emulated", "emulated"])
        self.assertEqual(list(rows["tensorwise"].values()), ["refused", "native", "native", "native", "native"])
        for recipe in ("mxfp8", "nvfp4"):
            self.assertEqual(list(rows[recipe].values()), ["refused", "emulated", "emulated", "native", "native"])
            self.assertRegex(result.stdout, rf"(?m)^  {recipe} \(8\.9, 9\.0\): {recipe.upper()} products begin with compute capability 10\.0$")
        self.assertRegex(result.stdout, r"(?m)^  .*blockwise \(8\.9, 10\.0, 12\.0\): cuBLASLt ")

    def test_a_config_that_would_start(self):
        config = self.config(precision={"recipe": "rowwise", "rules": [{"match": "layers.1.*", "recipe": "mxfp8"}]})
        before = snapshot(self.folder)
        result = doctor("--config", config)
        self.assertEqual(result.rc, OK, result)
        self.assert_fits(result)
        rows = self.table(result.stdout, "this config")
        self.assertEqual(sorted(rows), ["bf16", "mxfp8", "rowwise"])
        self.assertEqual(list(rows["mxfp8"].values()), ["refused", "refused", "refused", "native", "native"], "precision.emulate is not set")
        self.assertRegex(result.stdout, r"(?m)^mxfp8 +layers\.1\.attn\.qkv, layers\.1\.attn\.out, layers\.1\.mlp\.gate_up, layers\.1\.mlp\.down$")
        self.assertRegex(result.stdout, r"(?m)^bf16 +head$")
        self.assertRegex(result.stdout, r"(?m)^octet train would start here, on the CPU, [\d.]+ [KMG]iB planned$")
        self.assertEqual(snapshot(self.folder), before, "doctor wrote something")
        emulated = self.table(doctor("--config", config, "--set", "precision.emulate=true").stdout, "this config")
        self.assertEqual(list(emulated["mxfp8"].values()), ["refused", "emulated", "emulated", "native", "native"])

    def test_the_answer_is_that_of_octet_train(self):
        config = self.config()
        for changes, code in ((["run.device=cuda"], None), ([f"data.train.0.path={self.folder}/missing"], 11), (["precision.rules=[{\"match\":\"nothing.*\",\"recipe\":\"bf16\"}]"], 10)):
            with self.subTest(changes=changes):
                result = doctor("--config", config, "--set", *changes)
                trained = octet("train", "--config", config, "--set", *changes, "--run-dir", self.folder / "run", env=NO_GPU)
                self.assertNotEqual(trained.rc, OK, trained)
                if code == CONFIG:
                    self.assert_one_line(result, CONFIG, "matches no module")
                    continue
                self.assertEqual(result.rc, VERDICT_NO, result)
                self.assert_fits(result)
                said = re.search(r"(?m)^octet train would not start here \(exit code (\d+)\): ", result.stdout)
                self.assertTrue(said, result)
                self.assertEqual(int(said.group(1)), trained.rc, trained)
                self.assertIn("run.device" if code is None else "missing", result.stdout[said.start():])

    def test_wrong_configs_and_flags(self):
        self.assert_one_line(doctor("--config", self.config(precision={"recipe": "blokwise"})), CONFIG, "blokwise")
        self.assert_one_line(doctor("--config", self.folder / "none.json"), CONFIG, "none.json")
        self.assert_one_line(doctor("--config", write_json(self.folder / "bad.json", "{")), CONFIG, "bad.json")
        self.assert_one_line(doctor("--confg", "a"), USAGE, "--confg", "did you mean --config")
        self.assert_one_line(doctor("gpu"), USAGE, "gpu", "octet doctor")
        self.assert_one_line(doctor("--config"), USAGE, "--config")


if __name__ == "__main__":
    unittest.main()
