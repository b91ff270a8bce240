"""Bad command lines and bad configs: one clear line, the documented exit code, nothing written."""

import json
import unittest

from octet_cli import CONFIG, USAGE, Sandbox, octet, snapshot, tiny_config, write_json


class CommandLine(Sandbox):
    words = 600

    def refuse(self, *arguments, has=()):
        before = snapshot(self.folder)
        result = octet(*arguments, cwd=self.folder)
        self.assert_one_line(result, USAGE, *has)
        self.assertEqual(snapshot(self.folder), before)

    def test_unknown_subcommand_names_the_nearest(self):
        self.refuse("trian", has=["trian", "train"])

    def test_unknown_flag_names_the_nearest(self):
        self.refuse("train", "--fp8-recpie", "bf16", has=["--fp8-recpie", "--fp8-recipe"])
        self.refuse("train", "--confg=x.json", has=["--confg", "--config"])

    def test_unknown_flag_of_each_subcommand(self):
        for subcommand in (["data", "build"], ["data", "info"], ["data", "verify"], ["data", "dump"], ["compare"]):
            with self.subTest(subcommand=subcommand):
                self.refuse(*subcommand, "--no-such-flag", has=["--no-such-flag"])

    def test_unknown_data_command(self):
        self.refuse("data", "biuld", has=["biuld", "build"])

    def test_missing_value(self):
        self.refuse("train", "--config", self.config(), "--run-dir", has=["--run-dir"])
        self.refuse("train", "--config", self.config(), "--run-dir", "run", "--set", has=["--set"])
        self.refuse("data", "build", "--input", "x.txt", "--out", has=["out"])

    def test_nothing_asked_for(self):
        self.refuse(has=["--help"])

    def test_unknown_resume_mode(self):
        before = snapshot(self.folder)
        result = octet("train", "--config", self.class_folder / "none.json", "--run-dir", self.folder / "run", "--resume", "maybe")
        self.assertIn(result.rc, (USAGE, CONFIG), result)
        self.assertEqual(len(result.stderr.splitlines()), 1, result)
        self.assertEqual(snapshot(self.folder), before)

    def test_help_lists_only_what_exists(self):
        result = octet("--help")
        self.assertEqual((result.rc, result.stderr), (0, ""), result)
        for word in ("train", "data", "compare"):
            self.assertIn(word, result.stdout)
        for word in ("train", "compare"):
            self.assertEqual(octet(word, "--help").rc, 0)


class Config(Sandbox):
    words = 600

    def refuse(self, *fragments, flags=(), **changes):
        self.assert_refused(CONFIG, *fragments, arguments=["--config", self.config(**changes), *flags])

    def refuse_text(self, content, *fragments):
        path = write_json(self.folder / "bad.json", content)
        self.assert_refused(CONFIG, *fragments, arguments=["--config", self.config(), "--config", path])

    def test_misspelt_key(self):
        self.refuse("model.hiden_size", "hidden_size", model={"hiden_size": 64})
        self.refuse("modle", "model", modle={"hidden_size": 64})
        self.refuse("optim.learning_rat", optim={"learning_rat": 1e-3})

    def test_misspelt_key_names_its_file(self):
        self.refuse_text('{"optim": {"beta_1": 0.9}}', "optim.beta_1", "beta1", "bad.json")

    def test_misspelt_key_by_set(self):
        self.refuse("model.hiden_size", "hidden_size", flags=["--set", "model.hiden_size=64"])

    def test_misspelt_recipe(self):
        self.refuse("blokwise", "blockwise", precision={"recipe": "blokwise"})
        self.refuse("blokwise", "blockwise", flags=["--fp8-recipe", "blokwise"])
        self.refuse("mxpf8", "mxfp8", flags=["--set", "precision.recipe=mxpf8"])
        self.refuse("rowise", "rowwise", precision={"rules": [{"match": "layers.0.*", "recipe": "rowise"}]})

    def test_rule_that_matches_nothing(self):
        self.refuse("layer.0.*", precision={"recipe": "blockwise", "rules": [{"match": "layer.0.*", "recipe": "bf16"}]})

    def test_other_misspelt_values(self):
        self.refuse("sched.type", "cosin", "cosine", sched={"type": "cosin"})
        self.refuse("run.device", "gpu", run={"device": "gpu"})

    def test_wrong_types(self):
        for value in ("64", 64.5, True, [64], {"a": 64}):
            with self.subTest(value=value):
                self.refuse("model.hidden_size", model={"hidden_size": value})
        self.refuse("data.train", data={"train": "corpus"})
        self.refuse("model.tie_word_embeddings", model={"tie_word_embeddings": 1})
        self.refuse("optim.lr", optim={"lr": "fast"})

    def test_section_of_wrong_type(self):
        self.refuse_text('{"model": 3}', "model")
        self.refuse_text("[1, 2]", "bad.json")

    def test_impossible_sizes(self):
        for key in ("hidden_size", "vocab_size", "num_hidden_layers", "intermediate_size", "num_attention_heads"):
            for value in (0, -1, 10**15):
                with self.subTest(key=key, value=value):
                    self.refuse(f"model.{key}", model={key: value})

    def test_sizes_beyond_64_bits(self):
        self.refuse("model.vocab_size", model={"vocab_size": 2**63})
        self.refuse("model.vocab_size", model={"vocab_size": 2**80})

    def test_sizes_whose_product_is_impossible(self):
        self.refuse("model", model={"hidden_size": 2**20, "intermediate_size": 2**22, "num_hidden_layers": 2**16, "vocab_size": 2**20})

    def test_sizes_that_do_not_fit_together(self):
        self.refuse("num_key_value_heads", model={"num_attention_heads": 3, "num_key_value_heads": 2})
        self.refuse("head_dim", model={"head_dim": 33})
        self.refuse("batch.global", batch={"micro": 3, "global": 4})
        self.refuse("seq_len", model={"max_position_embeddings": 16})
        self.refuse("warmup_steps", sched={"warmup_steps": 9})

    def test_numbers_out_of_range(self):
        self.refuse("optim.beta1", optim={"beta1": 1.0})
        self.refuse("optim.lr", optim={"lr": -1.0})
        for split in ("0,0,0", "90,x,0", "-1,2,0", ""):
            self.refuse("data.split", data={"split": split})
        self.refuse("run.steps", run={"steps": 0})

    def test_duplicate_key(self):
        self.refuse_text('{\n "optim": {\n  "lr": 1e-3,\n  "lr": 2e-3\n }\n}', "bad.json", "lr", ":4")

    def test_duplicate_section(self):
        self.refuse_text('{"run": {"seed": 1},\n "run": {"seed": 2}}', "bad.json", "run", ":2")

    def test_syntax_error_names_line(self):
        self.refuse_text('{\n "optim": {"lr": 1e-3},,\n}', "bad.json:2")
        self.refuse_text("", "bad.json")
        self.refuse_text('{"optim": {"lr": NaN}}', "bad.json:1")

    def test_config_file_that_is_not_there(self):
        self.assert_refused(CONFIG, "none.json", arguments=["--config", self.folder / "none.json"])
        self.assert_refused(CONFIG, str(self.folder), arguments=["--config", self.folder])

    def test_missing_keys_are_listed(self):
        config = tiny_config(self.prefix)
        del config["optim"]["lr"], config["run"]["steps"]
        path = write_json(self.folder / "config.json", config)
        self.assert_refused(CONFIG, "optim.lr", "run.steps", arguments=["--config", path])

    def test_refused_precisions(self):
        self.refuse("e5m2", flags=["--fp8-recipe", "delayed", "--fp8-format", "e5m2"])
        blocks = {"format": "e4m3", "block": [128, 128]}
        self.refuse("two-dimensional blocks on gradients", precision={"recipe": "custom", "custom": {"dgrad": {"dy": blocks, "w": blocks}}})

    def test_what_this_version_does_not_do(self):
        self.refuse("parallel.tp", parallel={"tp": 2})

    def test_no_run_directory(self):
        before = snapshot(self.folder)
        config = write_json(self.class_folder / "no_run_dir.json", tiny_config(self.prefix))
        result = octet("train", "--config", config, cwd=self.folder)
        self.assert_one_line(result, CONFIG, "--run-dir")
        self.assertEqual(snapshot(self.folder), before)

    def test_dry_run_checks_and_writes_nothing(self):
        config = self.config()
        before = snapshot(self.folder)
        self.assertEqual(octet("train", "--config", config, "--run-dir", self.folder / "run", "--dry-run").rc, 0)
        self.assertEqual(snapshot(self.folder), before)

    def test_print_config_round_trips(self):
        first = octet("train", "--config", self.config(), "--fp8-recipe", "mxfp8", "--run-dir", "r", "--print-config")
        self.assertEqual(first.rc, 0, first)
        self.assertEqual(json.loads(first.stdout)["precision"]["recipe"], "mxfp8")
        again = octet("train", "--config", write_json(self.folder / "resolved.json", first.stdout), "--print-config")
        self.assertEqual(again.rc, 0, again)
        self.assertEqual(json.loads(again.stdout), json.loads(first.stdout))


if __name__ == "__main__":
    unittest.main()
