"""FP8 health statistics of a run against NumPy on the dump of the same step; calibrated and emulated recipes."""

import json
import sys
import unittest

from octet_cli import CONFIG, OK, SOURCE, Sandbox, octet, records

sys.path.insert(0, str(SOURCE / "scripts"))
from octet_numpy import health  # noqa: E402
from octet_numpy.dump import Dump  # noqa: E402


class Health(Sandbox):
    def assert_figures(self, run, step):
        sites = [e for e in records(run, "event") if e["event"] == "stats_sites"][-1]["sites"]
        line, = [r for r in records(run, "stats") if r["step"] == step]
        dump = Dump(run / "dumps" / f"step_{step:010d}.safetensors")
        self.assertTrue(sites)
        for i, site in enumerate(sites):
            side = "col" if site["image"] == "col" else "row"
            spec = dump.specs[site["module"]][f"{site['role']}.{side}"]
            key = f"{site['module']}/{site['tensor']}"
            stored = dump.delayed_scale(key, spec)
            parts = []
            for base in [key] if site["role"] == "w" else [f"mb{m}/{key}" for m in range(dump.micro_batches)]:
                x = dump.values(base)
                parts.append(health.image_sums(x.T if side == "col" else x, spec, *dump.image(f"{base}.{side}", spec), stored))
            for name, want in health.statistics(health.merged(parts)).items():
                got = line[name][i]
                if want is None:
                    self.assertIsNone(got, f"{site['name']} {name}")
                else:
                    self.assertAlmostEqual(got, want, delta=5e-6 * abs(want), msg=f"{site['name']} {name}")

    def test_figures_equal_numpy(self):
        for recipe in ("delayed", "blockwise", "nvfp4"):
            run = self.train(recipe, "--fp8-recipe", recipe, "--dump", "6:*", log={"stats_interval": 3}, precision={"head": "fp8"})
            self.assertEqual([r["step"] for r in records(run, "stats")], [3, 6])
            self.assert_figures(run, 6)

    def test_modules_and_interval(self):
        run = self.train("run", "--fp8-recipe", "mxfp8", log={"stats_interval": 4, "stats_modules": ["layers.1.mlp.*"]})
        sites = [e for e in records(run, "event") if e["event"] == "stats_sites"][0]["sites"]
        self.assertEqual({s["module"] for s in sites}, {"layers.1.mlp.gate_up", "layers.1.mlp.down"})
        self.assertEqual([r["step"] for r in records(run, "stats")], [4, 8])
        off = self.train("off", "--fp8-recipe", "mxfp8", log={"stats_interval": 0})
        self.assertEqual(records(off, "stats"), [])
        self.assertEqual([e for e in records(off, "event") if e["event"] == "stats_sites"], [])
        self.assert_same_training(run, off, 8)

    def test_calibrated_scales_resume_bitwise(self):
        for recipe in ("static", "delayed"):
            settings = {"precision": {"recipe": recipe, "calibration_steps": 4}, "sched": {"type": "constant"}}
            whole = self.train(recipe, "--dump", "9:layers.0.*", run={"steps": 12}, **settings)
            parts = self.folder / f"{recipe}_parts"
            for count in (2, 7, 12):   # within calibration, behind it, to the end
                result = octet("train", "--config", self.config(run={"steps": count}, **settings) if count > 4 else
                               self.config(run={"steps": 12}, ckpt={"interval": 2}, **settings), "--run-dir", parts, "--resume", "auto",
                               *(["--exit-after", "0.00001"] if count == 2 else []))
                self.assertIn(result.rc, (OK, 21), result)
            self.assert_same_training(whole, parts, 12)
            specs = Dump(whole / "dumps" / "step_0000000009.safetensors").specs["layers.0.mlp.down"]
            self.assertEqual(specs["x.row"].scaling, recipe)

    def test_calibration_scales_by_itself(self):
        run = self.train("run", "--dump", "2:layers.0.mlp.down", precision={"recipe": "static", "calibration_steps": 4})
        self.assertEqual(Dump(run / "dumps" / "step_0000000002.safetensors").specs["layers.0.mlp.down"]["x.row"].scaling, "current")

    def test_static_constants_show_saturation(self):
        run = self.train("run", log={"stats_interval": 8}, precision={"recipe": "static", "static_amax": {"x": 0.5, "w": 1.0, "dy": 1.0}})
        sites = [e for e in records(run, "event") if e["event"] == "stats_sites"][0]["sites"]
        line = records(run, "stats")[0]
        x = [i for i, s in enumerate(sites) if s["role"] == "x" and s["module"].endswith("attn.qkv")]
        self.assertGreater(min(line["saturation"][i] for i in x), 0.1)   # a normalized row has magnitudes around 1

    def test_emulations_are_labelled(self):
        run = self.train("run", "--fp8-recipe", "nvfp4")
        start = [e for e in records(run, "event") if e["event"] == "start"][0]
        self.assertIn("e2m1", start["emulation"])
        self.assertIn("emulation: no Hopper tensor core multiplies e2m1", (run / "log.txt").read_text())

    def test_refusals(self):
        for settings, where in (({"recipe": "static"}, "precision.static_amax.x"),
                                ({"recipe": "static", "calibration_steps": 8}, "precision.calibration_steps"),
                                ({"recipe": "static", "static_amax": {"x": -1}}, "precision.static_amax.x")):
            self.assert_refused(CONFIG, where, arguments=["--config", self.config(precision=settings)])


if __name__ == "__main__":
    unittest.main()
