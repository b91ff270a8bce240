"""The config as users meet it: schema, reference page, help, unit suffixes, and what may change on resume."""

import copy
import itertools
import json
import random
import re
import unittest

import jsonschema

from octet_cli import CONFIG, OK, SOURCE, USAGE, Sandbox, octet, records, snapshot, tiny_config, write_json

REFERENCE = SOURCE / "docs" / "reference"
CONFIGS = SOURCE / "configs"


def merge(target, patch):
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def load(path):
    """A config file; no shipped one has "//" after a space within a text."""
    return json.loads(re.sub(r"(?m)(^|\s)//.*$", "", path.read_text(encoding="utf-8")))


def schema():
    return json.loads((REFERENCE / "config.schema.json").read_text(encoding="utf-8"))


class Generated(unittest.TestCase):
    def test_committed_pages_are_what_the_program_prints(self):
        for flag, name in (("--print-schema", "config.schema.json"), ("--print-reference", "config.md")):
            result = octet("train", flag)
            self.assertEqual((result.rc, result.stderr), (OK, ""))
            self.assertTrue(result.stdout == (REFERENCE / name).read_text(encoding="utf-8"),
                            f"docs/reference/{name} is out of date: octet train {flag} > docs/reference/{name}")

    def test_schema_is_a_schema(self):
        jsonschema.Draft202012Validator.check_schema(schema())

    def test_reference_names_every_key(self):
        page = (REFERENCE / "config.md").read_text(encoding="utf-8")

        def leaves(node, path):
            for key, child in node["properties"].items():
                if child.get("type") == "object" and "description" not in child:
                    yield from leaves(child, path + [key])
                elif key != "$schema":
                    yield ".".join(path + [key])

        keys = list(leaves(schema(), []))
        self.assertGreater(len(keys), 90)
        for key in keys:
            self.assertIn(f"| `{key}` |", page)

    def test_shipped_configs_are_valid(self):
        validator = jsonschema.Draft202012Validator(schema())
        count = 0
        for model, recipe, run in itertools.product(*(sorted((CONFIGS / part).glob("*.json")) for part in ("models", "recipes", "runs"))):
            config = merge(merge(load(model), load(recipe)), load(run))
            self.assertEqual([e.message for e in validator.iter_errors(config)], [], (model.name, recipe.name, run.name))
            count += 1
        for path in (CONFIGS / "bench").glob("*.json"):
            self.assertEqual([e.message for e in validator.iter_errors(load(path))], [], path.name)
        self.assertGreater(count, 50)


class Schema(Sandbox):
    words = 600

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.validator = jsonschema.Draft202012Validator(schema())
        # Every key is there, so that each can be mutated; the custom recipe and the lists are filled.
        config = tiny_config(cls.prefix, precision={
            "recipe": "custom", "rules": [{"match": "layers.0.*", "recipe": "bf16"}],
            "custom": {"fprop": {"x": {"format": "e4m3", "block": [1, 32]}, "w": {"format": "e4m3", "block": "tensor"}}}})
        resolved = octet("train", "--config", write_json(cls.class_folder / "base.json", config), "--print-config")
        assert resolved.rc == OK, resolved
        cls.base = json.loads(resolved.stdout)

    def program(self, config):
        """'ok', 'field' (one key is wrong) or 'cross' (keys do not fit together) as octet sees a config."""
        path = write_json(self.folder / "mutant.json", config)
        result = octet("train", "--config", path, "--print-config")
        if result.rc == OK:
            return "ok", result
        self.assertEqual(result.rc, CONFIG, result)
        line = result.stderr
        return ("field" if str(path) in line or "the config lacks" in line else "cross"), result

    def check(self, config, what):
        valid = self.validator.is_valid(config)
        verdict, result = self.program(config)
        if valid:
            self.assertIn(verdict, ("ok", "cross"), f"{what}: valid by the schema, but\n{result}")
        else:
            self.assertNotEqual(verdict, "ok", f"{what}: the schema refuses it, octet does not")
        return valid

    def test_resolved_config_of_a_run_is_valid(self):
        self.assertEqual([e.message for e in self.validator.iter_errors(self.base)], [])
        run = self.train("run", run={"steps": 2})
        written = json.loads((run / "config.resolved.json").read_text())
        self.assertEqual([e.message for e in self.validator.iter_errors(written)], [])

    def test_bad_configs_are_refused_by_both(self):
        cases = [{"model": {"hiden_size": 1}}, {"modle": {}}, {"model": {"hidden_size": 0}}, {"model": {"hidden_size": "64"}}, {"model": 3}, {"optim": {"lr": 0}},
                 {"optim": {"lr": "1k"}}, {"optim": {"beta2": 1.0}}, {"precision": {"recipe": "blokwise"}}, {"precision": {"format": "e5m2"}},
                 {"precision": {"custom": {"wgrad": {"x": {"format": "e4m3"}}}}}, {"precision": {"custom": {"fpropp": {}}}},
                 {"precision": {"rules": [{"match": "*"}]}}, {"data": {"train": [{"weight": 1}]}}, {"data": {"train": "x"}}, {"data": {"train": [{"path": ""}]}},
                 {"data": {"valid": [{"name": "a", "path": "b", "fmt": "c"}]}}, {"recompute": {"modules": ["nrom"]}}, {"run": {"steps": "many"}},
                 {"run": {"steps": "32 k"}}, {"run": {"seed": -1}}, {"run": {"seed": 2**64}}, {"run": {"seed": "1k"}}, {"model": {"vocab_size": 2**63}},
                 {"ckpt": {"interval": "4Kb"}}, {"precision": {"custom": {"wgrad": {"dy": {"format": "e4m3", "block": [1]}, "x": {"format": "e4m3"}}}}},
                 {"run": {"dir": "a\u0000b"}}, {"$schema": 1}]
        for patch in cases:
            with self.subTest(patch=patch):
                self.assertFalse(self.check(merge(self.base, patch), patch))
        for section, key in (("model", "vocab_size"), ("optim", "lr"), ("data", "train"), ("run", "steps")):
            config = copy.deepcopy(self.base)
            del config[section][key]
            self.assertFalse(self.check(config, f"no {key}"))
            del config[section]
            self.assertFalse(self.check(config, f"no {section}"))

    def test_good_spellings_pass_both(self):
        for patch in ({"run": {"steps": "2k"}}, {"eval": {"samples": "0.5k"}}, {"data": {"seq_len": 32}}, {"run": {"seed": 2**64 - 1}, "data": {"seed": 1}},
                      {"$schema": "../docs/reference/config.schema.json"}, {"optim": {"lr": 1}}, {"precision": {"static_amax": {"x": 3.5}}}):
            with self.subTest(patch=patch):
                config = merge(self.base, patch)
                self.assertTrue(self.check(config, patch))
                self.assertEqual(self.program(config)[0], "ok")
        config = merge(self.base, {"run": {"steps": None, "tokens": "1M"}})
        self.assertTrue(self.check(config, "tokens instead of steps"))

    def places(self, value, path=()):
        yield path, value
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in children:
            yield from self.places(child, (*path, key))

    def test_mutations_meet_the_same_verdict(self):
        """Random damage at every place of a full config: what the schema says of one key, octet says too."""
        rng = random.Random(20240731)
        places = [p for p, _ in self.places(self.base)]
        values = [True, -1, 0, 1, 2, 0.5, -0.5, 2**31, 2**63, 1e30, "", "x", "1k", "0.5Ki", "32 k", "bf16", [], [1], ["norm"], {}, {"x": 1}]
        seen = {True: 0, False: 0}
        # Unknown keys in every object, then values at random places.
        mutants = [(p, "unknwon", 1) for p, v in self.places(self.base) if isinstance(v, dict)]
        mutants += [(p, None, rng.choice(values)) for p in places[1:] for _ in range(2)]
        for path, key, value in mutants:
            config = copy.deepcopy(self.base)
            at = config
            for part in path if key else path[:-1]:
                at = at[part]
            at[key if key else path[-1]] = value
            seen[self.check(config, (path, key, value))] += 1
        self.assertGreater(seen[False], 100)
        self.assertGreater(seen[True], 5)


class Help(unittest.TestCase):
    def help(self, *words):
        result = octet(*words)
        self.assertEqual((result.rc, result.stderr), (OK, ""), result)
        return result.stdout

    def test_overview_lists_subcommands_with_a_line_each(self):
        text = self.help("--help")
        for line in ("train", "compare", "data", "ckpt", "bench", "doctor"):
            self.assertRegex(text, rf"(?m)^  {line} +\w+")
        self.assertLess(len(text.splitlines()), 25)
        self.assertEqual(text, self.help("help"))

    def test_each_subcommand_explains_itself(self):
        for words in (["train"], ["compare"], ["data"], ["data", "build"], ["data", "info"], ["data", "verify"], ["data", "dump"], ["ckpt"], ["bench"], ["doctor"]):
            with self.subTest(words=words):
                text = self.help(*words, "--help")
                self.assertIn("Usage:", text)
                self.assertLess(len(text.splitlines()), 45)
                self.assertTrue(text.endswith("\n"))
                self.assertEqual(text, self.help(*words, "-h"))
        self.assertEqual(self.help("help", "ckpt"), self.help("ckpt", "--help"))

    def test_short_help_is_for_newcomers(self):
        text = self.help("train", "--help")
        needed = ["--config", "--data-path", "--run-dir", "--fp8-recipe", "--train-iters", "--lr", "--micro-batch-size", "--global-batch-size", "--seq-length",
                  "--eval-interval", "--save-interval", "--resume", "--set", "--dry-run", "--print-config"]
        listed = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
        self.assertEqual(sorted(listed), sorted(needed))
        self.assertEqual(text.count("\n  octet train --config"), 3)
        self.assertIn("--help=all", text)

    def test_all_help_has_every_key_and_flag(self):
        text = self.help("train", "--help=all")
        for word in ("model.vocab_size", "precision.static_amax.dy", "run.tokens", "--fp8-recipe", "--fp8-format", "--dump", "--allow-config-change", "--strict",
                     "--exit-after", "--init-from", "--profile", "--print-schema"):
            self.assertIn(word, text)
        page = (REFERENCE / "config.md").read_text(encoding="utf-8")
        for key in [line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and "." in line.split("`")[1]]:
            self.assertIn(f"  {key} ", text)

    def test_topics(self):
        self.assertIn("precision.recipe", self.help("train", "--help", "precision"))
        self.assertNotIn("optim.lr", self.help("train", "--help", "precision"))
        self.assertIn("--lr V", self.help("train", "--help", "optim.lr"))
        self.assertEqual(self.help("train", "--help", "optim.lr"), self.help("train", "--help=--lr"))
        self.assertIn("--strict", self.help("train", "--help", "command"))
        result = octet("train", "--help", "precison")
        self.assertEqual((result.rc, result.stdout), (USAGE, ""), result)
        self.assertIn("precision", result.stderr)


class Units(Sandbox):
    words = 600

    def resolved(self, *flags):
        result = octet("train", "--config", self.config(), *flags, "--print-config")
        self.assertEqual(result.rc, OK, result)
        return json.loads(result.stdout)

    def test_flags_and_set_take_suffixes(self):
        config = self.resolved("--train-iters", "2k", "--save-interval=0.1k", "--set", "eval.samples=1Ki")
        self.assertEqual((config["run"]["steps"], config["ckpt"]["interval"], config["eval"]["samples"]), (2000, 100, 1024))
        config = self.resolved("--set", "run.steps=null", "run.tokens=1.28k")
        self.assertEqual(config["run"]["steps"], 10)

    def test_a_suffix_elsewhere_is_an_error_that_says_so(self):
        for flags, has in ((["--hidden-size", "1k"], ["model.hidden_size", "no unit suffix", "1000"]), (["--lr", "1k"], ["optim.lr", "no unit suffix"]),
                           (["--train-iters", "1.0005k"], ["run.steps", "whole number"]), (["--train-iters", "2q"], ["run.steps", "32k"])):
            self.assert_refused(CONFIG, *has, arguments=["--config", self.config(), *flags])


class ResumeChanges(Sandbox):
    def start(self):
        run = self.train("run", run={"steps": 4}, sched={"type": "constant"})
        return run

    def resume(self, run, *flags, steps=6):
        return octet("train", "--config", self.config(run={"steps": steps}, sched={"type": "constant"}), "--run-dir", run, "--resume", "must", *flags)

    def test_changes_are_printed_as_a_table(self):
        run = self.start()
        result = self.resume(run, "--lr", "0.001", "--save-interval", "3")
        self.assertEqual(result.rc, OK, result)
        lines = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line and "." in line.split()[0]}
        self.assertEqual(lines["optim.lr"][1:4], ["0.002", "0.001", "warning:"])
        self.assertEqual(lines["ckpt.interval"][1:], ["0", "3"])
        self.assertEqual(lines["run.steps"][1:], ["4", "6"])
        events = {r["path"]: r["class"] for r in records(run, "event") if r["event"] == "config_change"}
        self.assertEqual(events["optim.lr"], "warning")
        self.assertEqual(events["run.steps"], "free")

    def test_the_same_config_resumes_without_a_word(self):
        run = self.start()
        for _ in range(2):
            result = self.resume(run, "--strict", "--exit-after", "0.0000001", steps=400)
            self.assertEqual(result.rc, 21, result)
        self.assertNotIn("changed on resume", result.stdout)

    def test_strict_refuses_what_warns(self):
        run = self.start()
        self.assert_one_line(self.resume(run, "--lr", "0.001", "--strict"), CONFIG, "optim.lr", "0.002", "0.001")

    def test_forbidden_changes_need_to_be_named(self):
        run = self.start()
        before = snapshot(run)
        change = ["--set", "data.split=80,20,0", "run.seed=8"]
        self.assert_one_line(self.resume(run, *change), CONFIG, "data.split", '"90,10,0"', '"80,20,0"', "--allow-config-change data.split")
        self.assert_one_line(self.resume(run, *change, "--allow-config-change", "data.split"), CONFIG, "run.seed", "--allow-config-change run.seed")
        self.assertEqual(snapshot(run), before)
        result = self.resume(run, *change, "--allow-config-change", "data.split", "--allow-config-change", "run.seed", "--strict")
        self.assertEqual(result.rc, OK, result)
        self.assertIn("allowed by --allow-config-change", result.stdout)
        self.assertEqual(json.loads((run / "config.resolved.json").read_text())["run"]["seed"], 8)

    def test_allowed_batch_and_length_changes_train_on(self):
        run = self.start()
        result = self.resume(run, "--global-batch-size", "8", "--seq-length", "16", "--allow-config-change", "batch.global", "data.seq_len")
        self.assertEqual(result.rc, OK, result)

    def test_shapes_cannot_change(self):
        run = self.start()
        result = self.resume(run, "--ffn-hidden-size", "192", "--allow-config-change", "model.intermediate_size")
        self.assert_one_line(result, CONFIG, "model.intermediate_size", "128", "192", "shape")

    def test_names_must_be_keys(self):
        run = self.start()
        self.assert_one_line(self.resume(run, "--allow-config-change", "run.sed"), CONFIG, "run.sed", "run.seed")
        self.assert_one_line(self.resume(run, "--allow-config-change"), USAGE, "--allow-config-change")


if __name__ == "__main__":
    unittest.main()
