"""What a run leaves behind, what it learns, dumps, and the comparison of two runs."""

import json
import math
import subprocess
import sys
import unittest

from octet_cli import (DATA, OK, QUANTIZING, SOURCE, USAGE, VERDICT_NO, Sandbox, checkpoints, octet, records, steps, tensor_bytes)


class Run(Sandbox):
    def test_files_and_metrics(self):
        run = self.train("run", "--set", "eval.interval=4", "--set", "eval.samples=4", "--set", "ckpt.interval=3")
        for name in ("config.resolved.json", "metrics.jsonl", "checkpoints", "log.txt"):
            self.assertTrue((run / name).exists(), name)
        self.assertEqual(json.loads((run / "config.resolved.json").read_text())["run"]["steps"], 8)

        lines = steps(run)
        self.assertEqual(sorted(lines), list(range(1, 9)))
        for step, line in lines.items():
            for key in ("loss", "grad_norm", "lr", "tokens_per_s", "step_ms"):
                self.assertTrue(math.isfinite(line[key]), f"{key} of step {step}")
            self.assertEqual(line["tokens"], step * 4 * 32)
        self.assertAlmostEqual(lines[1]["loss"], math.log(257), delta=0.1)  # an untrained model knows nothing
        self.assertEqual([r["step"] for r in records(run, "valid")], [4, 8])

        self.assertEqual([p.name for p in checkpoints(run)], ["step_0000000006", "step_0000000008"])  # keep_last 2
        self.assertEqual((run / "checkpoints" / "LATEST").read_text().strip(), "step_0000000008")

    def test_it_learns(self):
        run = self.train("run", run={"steps": 150}, sched={"type": "constant"})
        losses = [line["loss"] for _, line in sorted(steps(run).items())]
        self.assertLess(sum(losses[-20:]) / 20, 0.6 * losses[0])

    def test_recipes_start_alike_and_differ(self):
        first, last = {}, {}
        for recipe in ("bf16", *QUANTIZING):
            lines = steps(self.train(recipe, *self.recipe_flags(recipe)))
            first[recipe], last[recipe] = lines[1]["loss"], lines[8]["loss"]
        for recipe in QUANTIZING:
            self.assertAlmostEqual(first[recipe], first["bf16"], delta=0.01)
            self.assertAlmostEqual(last[recipe], last["bf16"], delta=0.05 * last["bf16"])
            self.assertNotEqual(last[recipe], last["bf16"], f"{recipe} changed nothing")
        # Where nothing underflows, power-of-two scales of any block give the same bits; FP32 scales do not, nor does a history.
        self.assertEqual(len({last["tensorwise"], last["delayed"], last["mxfp8"]}), 3, last)

    def test_micro_batches_do_not_change_the_loss(self):
        whole = steps(self.train("whole", batch={"micro": 4, "global": 4}, precision={"recipe": "fp32"}))
        cut = steps(self.train("cut", batch={"micro": 1, "global": 4}, precision={"recipe": "fp32"}))
        for step in whole:
            self.assertAlmostEqual(whole[step]["loss"], cut[step]["loss"], delta=1e-4)

    def test_init_from_takes_the_weights(self):
        source = self.train("source", run={"steps": 60}, sched={"type": "constant"})
        run = self.train("run", "--init-from", source)
        self.assertLess(steps(run)[1]["loss"], 0.9 * steps(source)[1]["loss"])
        self.assertNotEqual(tensor_bytes(checkpoints(run)[-1]), tensor_bytes(checkpoints(source)[-1]))


class Dump(Sandbox):
    words = 1500

    def test_dumps_agree_with_numpy(self):
        for recipe in [*QUANTIZING, "harm_e2m1", "blockwise_with_gw_rowwise"]:
            with self.subTest(recipe=recipe):
                run = self.train(recipe, "--dump", "3:*", *self.recipe_flags(recipe))
                dump = run / "dumps" / "step_0000000003.safetensors"
                check = [sys.executable, SOURCE / "scripts" / "check_dump.py", dump]
                done = subprocess.run(check, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}")
                # The check can see: one changed byte among the tensors is found.
                content = bytearray(dump.read_bytes())
                header = int.from_bytes(content[:8], "little")
                name, entry = next((k, v) for k, v in json.loads(content[8:8 + header]).items() if k.endswith(".row.data"))
                content[8 + header + entry["data_offsets"][0] + 5] ^= 1
                dump.write_bytes(content)
                self.assertEqual(subprocess.run(check, capture_output=True, text=True, check=False).returncode, 1, name)

    def test_channels_of_the_weight_gradient_have_one_scale_over_all_tokens(self):
        """Micro-batches of more than 128 tokens, where that differs from blocks; check_dump.py multiplies the weight gradient from these images."""
        dumps = {}
        for recipe in ("blockwise", "blockwise_with_gw_rowwise"):
            run = self.train(recipe, "--dump", "3:*", *self.recipe_flags(recipe), batch={"micro": 8, "global": 8}, optim={"lr": 5e-4})
            dump = run / "dumps" / "step_0000000003.safetensors"
            done = subprocess.run([sys.executable, SOURCE / "scripts" / "check_dump.py", dump], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}")
            content = dump.read_bytes()
            header = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
            dumps[recipe] = {k: v["shape"] for k, v in header.items() if k.startswith("mb0/layers.0") and k.endswith(".scale_inv")}
        blocks, channels = dumps["blockwise"], dumps["blockwise_with_gw_rowwise"]
        self.assertEqual(blocks.keys(), channels.keys())
        for name, shape in blocks.items():
            with self.subTest(name):
                if name.endswith(("/x.col.scale_inv", "/dy.col.scale_inv")):
                    self.assertEqual((shape[-1], channels[name][-1]), (2, 1), "256 tokens")
                else:
                    self.assertEqual(channels[name], shape)


class Compare(Sandbox):
    def test_report_and_verdicts(self):
        base = self.train("base", run={"steps": 40})
        other = self.train("other", "--fp8-recipe", "tensorwise", run={"steps": 40})
        page, numbers = self.folder / "report.html", self.folder / "report.json"
        result = octet("compare", base, other, "--baseline", base, "--out", page, "--json", numbers)
        self.assertEqual(result.rc, OK, result)
        self.assertIn("tensorwise", result.stdout)
        self.assertIn("<svg", page.read_text())
        self.assertTrue(json.loads(numbers.read_text()))
        self.assertEqual(octet("compare", base, other, "--baseline", base, "--max-gap", "50").rc, OK)
        for limit in (["--max-gap", "-50"], ["--max-gap=-50"]):
            self.assertEqual(octet("compare", base, other, "--baseline", base, *limit).rc, VERDICT_NO)

    def test_bad_runs(self):
        base = self.train("base")
        self.assert_one_line(octet("compare", base, self.folder / "nowhere"), DATA, "nowhere")
        self.assertEqual(octet("compare", base, "--max-gap", "wide").rc, USAGE)


if __name__ == "__main__":
    unittest.main()
