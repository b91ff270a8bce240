"""Blends: unequal sources resume exactly, keep their order in a longer run, are counted, and refuse to be changed on the way."""

import json
import unittest

from octet_cli import CONFIG, DATA, OK, Sandbox, build_tokens, checkpoints, copy_run, octet, records, steps


def hashes(run):
    return {step: record["sample_hash"] for step, record in steps(run).items()}


def greedy(weights, count):
    """The reference rule (ECOSYSTEM.md 1.2): samples taken of each source after `count`."""
    taken = [0] * len(weights)
    for i in range(count):
        errors = [w * max(float(i), 1.0) - t for w, t in zip(weights, taken)]
        taken[errors.index(max(errors))] += 1
    return taken


class Blends(Sandbox):
    words = 300
    sizes = (150, 500, 1500)  # words; 2 to 3 windows of 32 tokens of the first one

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sources = [build_tokens(cls.class_folder, words, f"source{k}") for k, words in enumerate(cls.sizes)]

    def blend(self, weights=(0.5, 0.3, 0.2), **data):
        sources = [{"path": str(p)} for p in self.sources]
        for source, weight in zip(sources, weights or ()):
            source["weight"] = weight
        return {"split": "100,0,0", "train": sources, **data}

    def resume(self, directory, **changes):
        return octet("train", "--config", self.config(**changes), "--run-dir", directory, "--resume", "must")

    def assert_blend_survives_stops(self, count, **settings):
        """kill -9 after (nearly) every step: samples, losses and tensors are those of a straight run."""
        settings.update(run={"steps": count}, ckpt={"interval": 1})
        straight = self.train("straight", **settings)
        stopped = self.assert_stops_change_nothing(straight, count, **settings)
        self.assertEqual(hashes(straight), hashes(stopped))
        self.assertGreater(len(set(hashes(straight).values())), count // 2)
        return straight, stopped

    def test_weighted_sources_of_unequal_size_resume_exactly(self):
        count = 24
        for run in self.assert_blend_survives_stops(count, data=self.blend()):
            state = json.loads((checkpoints(run)[-1] / "manifest.json").read_text())["state"]
            expected = greedy([0.5, 0.3, 0.2], count * 4)
            self.assertEqual([s["samples"] for s in state["sources"]], expected)
            self.assertEqual([s["tokens"] for s in state["sources"]], [32 * n for n in expected])
            self.assertGreater(state["sources"][0]["sampler"]["epochs"], 1, "the small source must repeat for the test to mean anything")
            self.assertEqual(sum(expected), state["samples"])
            events = records(run, "event")
            summaries = [e for e in events if e["event"] == "summary"]
            if run.name == "straight":  # the other one may have been killed behind its last checkpoint
                self.assertEqual(len(summaries), 1)
            for summary in summaries:
                self.assertEqual([s["samples"] for s in summary["sources"]], expected)
            saved = [e for e in events if e["event"] == "checkpoint"]
            self.assertEqual([s["samples"] for s in saved[0]["sources"]], greedy([0.5, 0.3, 0.2], 4 * saved[0]["step"]))

    def test_sources_without_weights_resume_exactly(self):
        self.assert_blend_survives_stops(12, data=self.blend(weights=None))

    def test_every_sample_is_used_once_without_weights(self):
        straight = self.train("straight", data=self.blend(weights=None), run={"steps": 8}, batch={"micro": 4, "global": 4})
        lines = [line for line in (straight / "log.txt").read_text().splitlines() if "% of the samples" in line]
        shares = [float(line.split("| ")[-1].split(" %")[0]) for line in lines]
        self.assertEqual(len(shares), 3)
        self.assertAlmostEqual(sum(shares), 100, delta=0.02)
        tokens = [p.with_suffix(".bin").stat().st_size // 2 for p in self.sources]
        windows = [(n - 1) // 32 for n in tokens]
        for share, n in zip(shares, windows):
            self.assertAlmostEqual(share, 100 * n / sum(windows), delta=0.01)

    def test_a_longer_run_keeps_the_order(self):
        constant = {"sched": {"type": "constant"}, "data": self.blend()}
        planned = self.train("planned", run={"steps": 20}, **constant)
        grown = self.train("grown", "--set", "run.steps=20", run={"steps": 10}, ckpt={"interval": 10}, **constant)
        self.assertEqual(self.resume(grown, run={"steps": 60}, **constant).rc, OK)
        a, b = hashes(planned), hashes(grown)
        self.assertEqual([a[i] for i in range(1, 21)], [b[i] for i in range(1, 21)])
        # The samplers were built for 20 steps: a run that stops at 20 and goes on to 60 sees what the one before it saw.
        again = self.train("again", run={"steps": 20}, **constant)
        self.assertEqual(self.resume(again, run={"steps": 40}, **constant).rc, OK)
        self.assertEqual(self.resume(again, run={"steps": 60}, **constant).rc, OK)
        self.assertEqual(hashes(again), b)

    def test_what_would_change_the_order_is_refused_on_resume(self):
        run = self.train("run", data=self.blend(), run={"steps": 4})
        changed = [
            (self.blend(weights=(0.4, 0.4, 0.2)), "data.train.0.weight", "0.5"),
            (self.blend(weights=None), "data.train.0.weight", "0.5, resumed with -"),
            ({**self.blend(), "train": self.blend()["train"][:2]}, "data.train: ", "started with a list of 3, resumed with a list of 2"),
            ({**self.blend(), "train": [self.blend()["train"][i] | {"weight": w} for i, w in ((1, 0.5), (0, 0.3), (2, 0.2))]}, "tokens"),
            (self.blend(partial_samples="pad"), "data.partial_samples", '"drop"'),
        ]
        for data, *fragments in changed:
            with self.subTest(fragments=fragments):
                result = self.resume(run, data=data, run={"steps": 8})
                self.assert_one_line(result, CONFIG, *fragments)
        self.assertEqual(self.resume(run, data=self.blend(), run={"steps": 8}).rc, OK)

    def test_an_allowed_blend_begins_a_new_order(self):
        """A run goes on with other data where --allow-config-change says so: the new blend from its beginning, resumable like any other."""
        constant = {"sched": {"type": "constant"}, "ckpt": {"interval": 2}}
        run = self.train("run", data=self.blend(), run={"steps": 4}, **constant)
        changed = self.blend(weights=(0.2, 0.2, 0.6))
        allow = ["--allow-config-change", "data.train"]
        grown = copy_run(run, self.folder / "grown")
        for directory, stops in ((run, (12,)), (grown, (8, 12))):
            for count in stops:
                result = octet("train", "--config", self.config(data=changed, run={"steps": count}, **constant), "--run-dir", directory, "--resume", "must",
                               *(allow if count == stops[0] else []))
                self.assertEqual(result.rc, OK, result)
        self.assertIn("a new sample order begins behind step 4", (run / "log.txt").read_text())
        # As the first steps of a run with that blend (planned for as many samples), and the same with a stop in between.
        fresh = self.train("fresh", data=changed, run={"steps": 8}, **constant)
        self.assertEqual([hashes(run)[i] for i in range(5, 13)], [hashes(fresh)[i] for i in range(1, 9)])
        state = json.loads((checkpoints(run)[-1] / "manifest.json").read_text())["state"]
        self.assertEqual([s["samples"] for s in state["sources"]], greedy([0.2, 0.2, 0.6], 8 * 4))
        self.assertEqual(state["blend"]["begins_at"], 16)
        self.assertEqual(json.loads((checkpoints(grown)[-1] / "manifest.json").read_text())["state"]["samples"], 48)

    def test_a_source_that_is_too_short_is_named(self):
        short = build_tokens(self.folder, 3, "short")
        data = self.blend()
        data["train"][1]["path"] = str(short)
        self.assert_refused(DATA, "short", "one sample of seq_len 32 needs 33", arguments=["--config", self.config(data=data)])


class ValidationSets(Sandbox):
    words = 2000

    def test_named_sets(self):
        (self.folder / "other.txt").write_text("".join(f"line {i * 7919 % 1000}: figures\n\n" for i in range(200)))
        other = self.folder / "other"
        self.assertEqual(octet("data", "build", "--input", self.folder / "other.txt", "--split-documents", "blank-lines", "--out", other).rc, OK)
        data = {"split": "100,0,0", "valid": [{"name": "far", "path": str(other)}, {"name": "near", "path": str(self.prefix)}]}
        run = self.train("run", data=data, eval={"interval": 4, "samples": 6})
        lines = records(run, "valid")
        self.assertEqual([line["step"] for line in lines], [4, 8])
        for line in lines:
            self.assertEqual(sorted(line["sets"]), ["far", "near"])
            self.assertEqual(line["loss"], line["sets"]["far"], "the first set is the one comparisons use")
            self.assertNotEqual(line["sets"]["far"], line["sets"]["near"])
        text = (run / "log.txt").read_text()
        for name in ("far", "near"):
            self.assertIn(f"validation loss {name} ", text)
        # A set is its file's first windows, whatever stands beside it.
        alone = self.train("alone", data={**data, "valid": data["valid"][1:]}, eval={"interval": 4, "samples": 6})
        self.assertEqual([line["sets"]["near"] for line in lines], [line["loss"] for line in records(alone, "valid")])

    def test_split_of_a_blend(self):
        small = build_tokens(self.class_folder, 150, "small")
        data = {"split": "95,5,0", "train": [{"path": str(self.prefix)}, {"path": str(small)}]}
        run = self.train("run", data=data, eval={"interval": 8, "samples": 6})
        self.assertNotIn("sets", records(run, "valid")[0])
        self.assertIn("small: its valid split has", (run / "log.txt").read_text())
        strict = octet("train", "--config", self.config(data=data, eval={"interval": 8, "samples": 6}), "--run-dir", self.folder / "strict", "--strict")
        self.assert_one_line(strict, CONFIG, "validation leaves it out")

    def test_padding_of_partial_samples(self):
        """With samples longer than the file one padded window is all there is; it has a loss, and trains."""
        settings = {"batch": {"micro": 1, "global": 1}, "run": {"steps": 2}, "model": {"hidden_size": 32, "num_hidden_layers": 1, "head_dim": 16}}
        tiny = build_tokens(self.class_folder, 150, "tiny")
        data = {"train": [{"path": str(tiny)}], "split": "50,50,0", "seq_len": 1024}
        self.assert_refused(DATA, "one sample of seq_len 1024", arguments=["--config", self.config(data=data, **settings)])
        run = self.train("run", data={**data, "partial_samples": "pad"}, eval={"interval": 2}, **settings)
        source = json.loads((checkpoints(run)[-1] / "manifest.json").read_text())["state"]["sources"][0]
        stream = source["sampler"]["epochs"] * source["epoch_tokens"]
        self.assertEqual(source["block_samples"], (stream - 1 + 1023) // 1024)
        seen = {step["valid_tokens"] for step in steps(run).values()}
        self.assertEqual(seen, {1024, (stream - 1) % 1024}, "with this seed one of the two steps gets the partial window")
        for step in steps(run).values():
            self.assertGreater(step["loss"], 1)
            self.assertGreaterEqual(step["data_ms"], 0)
            self.assertLessEqual(step["data_ms"], step["step_ms"])
        self.assertGreater(records(run, "valid")[-1]["loss"], 1)


if __name__ == "__main__":
    unittest.main()
