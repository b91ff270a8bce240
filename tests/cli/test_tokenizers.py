"""Tokenizers and `octet data build`: agreement with the tokenizers and sentencepiece packages, interrupted builds, errors."""

import gzip
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
import unittest

import sentencepiece
import tokenizer_cases
from octet_cli import CONFIG, DATA, OK, TIMEOUT_S, Sandbox, binary, octet, text


def output_bytes(prefix):
    return [prefix.with_name(prefix.name + e).read_bytes() for e in (".idx", ".bin", ".meta.json")]


class Agreement(Sandbox):
    """Ids equal the packages' on random and hard strings; scripts/check_tokenizers.sh is the longer run."""

    def compare(self, vocabularies, texts):
        source = self.folder / "texts.jsonl"
        tokenizer_cases.write_jsonl(source, texts)
        for name, tokenizer_json in vocabularies.items():
            with self.subTest(vocabulary=name):
                prefix = tokenizer_cases.build(binary(), tokenizer_json, name, [source], self.folder)
                wrong = tokenizer_cases.mismatches(tokenizer_json, prefix, texts)
                self.assertEqual(len(wrong), 0, ascii(wrong[:3]))

    def test_public_styles(self):
        hard = [t for t in tokenizer_cases.hard_cases() if t]
        self.compare(tokenizer_cases.vocabularies(), hard + tokenizer_cases.random_strings(100_000, seed=11))

    def test_other_parts_of_the_format(self):
        self.compare(tokenizer_cases.other_vocabularies(), tokenizer_cases.random_strings(8_000, seed=12))

    def test_the_comparison_sees_a_difference(self):
        vocabulary = tokenizer_cases.vocabularies()["gpt2"]
        texts = ["the same", "words 12"]
        source = self.folder / "texts.jsonl"
        tokenizer_cases.write_jsonl(source, texts)
        prefix = tokenizer_cases.build(binary(), vocabulary, "gpt2", [source], self.folder)
        content = prefix.with_name("gpt2.bin").read_bytes()
        prefix.with_name("gpt2.bin").write_bytes(content[:-2] + b"\x01\x00")
        self.assertEqual([w[0] for w in tokenizer_cases.mismatches(vocabulary, prefix, texts)], ["words 12"])

    def test_sentencepiece(self):
        corpus = self.folder / "corpus.txt"
        corpus.write_text("\n".join(tokenizer_cases.training_text(600)), encoding="utf-8")
        texts = tokenizer_cases.training_text(300, seed=9) + [t for t in tokenizer_cases.random_strings(2000, seed=3) if t.strip() and "\x00" not in t]
        source = self.folder / "texts.jsonl"
        tokenizer_cases.write_jsonl(source, texts)
        for kind, size in (("bpe", 1500), ("unigram", 600)):
            with self.subTest(kind=kind):
                model, prefix = self.folder / f"{kind}.model", self.folder / kind
                trained = octet("data", "train-tokenizer", "--input", corpus, "--model-type", kind, "--vocab-size", size, "--out", model)
                self.assertEqual(trained.rc, OK, trained)
                built = octet("data", "build", "--input", source, "--tokenizer", f"sentencepiece:{model}", "--out", prefix)
                self.assertEqual(built.rc, OK, built)
                package = sentencepiece.SentencePieceProcessor(model_file=str(model))
                documents = tokenizer_cases.read_documents(prefix)
                self.assertEqual(len(documents), len(texts))
                for ours, theirs in zip(documents, package.encode(texts)):
                    self.assertEqual(ours.tolist(), theirs + [package.eos_id()])


class Resume(Sandbox):
    def test_killed_at_random_points(self):
        lines = [json.dumps({"text": text(300, seed=i)}) + "\n" for i in range(6000)]
        source = self.folder / "corpus.jsonl.gz"
        with gzip.open(source, "wt", compresslevel=1) as file:
            file.writelines(lines)
        tokenizer = self.folder / "t.json"
        tokenizer.write_text(tokenizer_cases.vocabularies()["gpt2"], encoding="utf-8")
        arguments = ["data", "build", "--input", source, "--tokenizer", f"hf:{tokenizer}", "--threads", "2"]
        straight, resumed = self.folder / "straight", self.folder / "resumed"
        began = time.monotonic()
        self.assertEqual(octet(*arguments, "--out", straight).rc, OK)
        duration = time.monotonic() - began
        rng = random.Random(4)
        journal = resumed.with_name("resumed.resume.json")

        def state():
            try:
                return journal.stat().st_mtime_ns
            except FileNotFoundError:
                return None

        kills = resumes = 0
        for attempt in range(60):
            before = state()
            process = subprocess.Popen([binary(), *map(str, arguments), "--out", str(resumed), "--resume", "--commit-mib", "0"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if kills < 6:
                # At some time, or soon after the next commit; the last kill right behind a commit, so that there is one to go on from.
                last, timed = kills == 5, kills != 5 and attempt % 2 == 1
                deadline = time.monotonic() + (rng.uniform(0, 0.7) * duration if timed else 60)
                while process.poll() is None and time.monotonic() < deadline and (timed or state() == before):
                    time.sleep(0.001)
                time.sleep(0 if last else rng.uniform(0, 0.02))
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    kills += 1
                    continue
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, OK, err)
            # A kill that came behind the last rename left a complete build: this attempt found nothing to do.
            resumes += "went on behind" in out
            if resumes >= 1 and kills >= 4:
                break
            for path in self.folder.glob("resumed.*"):
                path.unlink()
            kills = min(kills, 5)   # so that another one is made
        self.assertGreaterEqual(kills, 4)
        self.assertGreaterEqual(resumes, 1)
        self.assertEqual(output_bytes(resumed), output_bytes(straight))
        self.assertEqual(sorted(p.name for p in self.folder.glob("resumed*")), ["resumed.bin", "resumed.idx", "resumed.meta.json"])

    def test_of_a_finished_build(self):
        source, prefix = self.folder / "a.txt", self.folder / "out"
        source.write_text(text(50), encoding="ascii")
        arguments = ["data", "build", "--input", source, "--out", prefix, "--resume"]
        first = octet(*arguments)
        self.assertEqual(first.rc, OK, first)
        self.assertIn("wrote", first.stdout)
        whole = output_bytes(prefix)
        again = octet(*arguments)
        self.assertEqual(again.rc, OK, again)
        self.assertRegex(again.stdout, r"complete already: 1 documents, \d+ tokens")
        self.assertEqual(output_bytes(prefix), whole)
        # Anything else than the same job, and files that are not whole.
        for other in ([*arguments, "--no-append-eod"], [*arguments, "--split-documents", "blank-lines"]):
            self.assert_one_line(octet(*other), DATA, "exists already", "other inputs")
        self.assert_one_line(octet(*arguments[:-1]), DATA, "exists already")
        index, tokens, meta = (prefix.with_name("out" + e) for e in (".idx", ".bin", ".meta.json"))
        for part in (index, tokens, meta):
            kept = part.read_bytes()
            part.write_bytes(kept[:-3])
            self.assert_one_line(octet(*arguments), DATA, part.name)
            part.unlink()
            self.assert_one_line(octet(*arguments), DATA, "exists already")
            part.write_bytes(kept)
        self.assertEqual(octet(*arguments).rc, OK)
        # The same name elsewhere, a changed time, a changed size.
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        shutil.copy2(source, elsewhere)
        again = octet("data", "build", "--input", "a.txt", "--out", prefix, "--resume", cwd=elsewhere)
        self.assert_one_line(again, DATA, "other inputs")
        self.assertEqual(octet("data", "build", "--input", "a.txt", "--out", prefix, "--resume", cwd=self.folder).rc, OK)
        was = source.stat()
        os.utime(source, (1e9, 1e9))
        self.assert_one_line(octet(*arguments), DATA, "other inputs")
        os.utime(source, ns=(was.st_atime_ns, was.st_mtime_ns))
        self.assertEqual(octet(*arguments).rc, OK)
        self.assertEqual(output_bytes(prefix), whole)

    def test_an_input_that_goes_while_the_build_runs(self):
        first, second, prefix = self.folder / "a.txt", self.folder / "b.txt", self.folder / "out"
        first.write_text(text(50), encoding="ascii")
        os.mkfifo(second)
        self.assert_one_line(octet("data", "build", "--input", first, second, "--out", prefix), DATA, "b.txt")   # a pipe is refused
        second.unlink()
        second.write_text(text(4000) * 200, encoding="ascii")
        process = subprocess.Popen([binary(), "data", "build", "--input", str(first), str(second), "--threads", "1", "--commit-mib", "0", "--out", str(prefix)], stdout=subprocess.DEVNULL)
        while process.poll() is None and not prefix.with_name("out.resume.json").exists():
            time.sleep(0.001)
        first.unlink()
        self.assertEqual(process.wait(100), OK)   # it was read already

    def test_killed_while_publishing(self):
        source, prefix = self.folder / "a.txt", self.folder / "out"
        source.write_text(text(50), encoding="ascii")
        arguments = ["data", "build", "--input", source, "--out", prefix]
        self.assertEqual(octet(*arguments).rc, OK)
        whole = output_bytes(prefix)
        # As a kill among the renames leaves it.
        for renamed in ([], [".bin"], [".bin", ".meta.json"], [".bin", ".meta.json", ".idx"]):
            with self.subTest(renamed=renamed):
                for extension in (".bin", ".meta.json", ".idx"):
                    path = prefix.with_name("out" + extension)
                    if path.exists() and extension not in renamed:
                        path.rename(path.with_name(path.name + ".tmp"))
                prefix.with_name("out.resume.json").write_text(self.journal(source), encoding="utf-8")
                result = octet(*arguments, "--resume")
                self.assertEqual(result.rc, OK, result)
                self.assertEqual(output_bytes(prefix), whole)
                self.assertFalse(prefix.with_name("out.resume.json").exists())

    @staticmethod
    def journal(source):
        status = os.stat(source)
        job = {"inputs": [[str(source.resolve()), status.st_size, status.st_mtime_ns // 10**9, status.st_mtime_ns % 10**9]], "format": 0, "split": 0, "json_key": "text",
               "tokenizer": "byte", "tokenizer_xxh64": "ef46db3751d8e999", "eod_id": 256, "append_eod": True, "replace_invalid_utf8": False}
        return json.dumps({"format": "octet-build", "version": 1, "publishing": True, "input": 1, "offset": 0, "line": 1, "documents": 1, "tokens": 1,
                           "empty_documents": 0, "bytes_read": 1, "job": json.dumps(job, separators=(",", ":"))})

    def test_existing_and_interrupted_outputs(self):
        source, prefix = self.folder / "a.txt", self.folder / "out"
        source.write_text("some text", encoding="ascii")
        for extension in (".bin", ".idx", ".meta.json"):
            path = prefix.with_name("out" + extension)
            path.write_bytes(b"kept")
            self.assert_one_line(octet("data", "build", "--input", source, "--out", prefix), DATA, "out" + extension, "exists already")
            self.assertEqual(path.read_bytes(), b"kept")
            path.unlink()
        journal = prefix.with_name("out.resume.json")
        journal.write_text(self.journal(source), encoding="utf-8")
        self.assert_one_line(octet("data", "build", "--input", source, "--out", prefix), DATA, "out.resume.json", "--resume")
        self.assert_one_line(octet("data", "build", "--input", source, "--no-append-eod", "--out", prefix, "--resume"), DATA, "other inputs, options")


class Refused(Sandbox):
    def refuse(self, code, *fragments, arguments):
        before = sorted(self.folder.iterdir())
        self.assert_one_line(octet("data", *arguments), code, *fragments)
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def test_tokenizers(self):
        source = self.write("a.txt", b"some text")
        build = ["build", "--input", source, "--out", self.folder / "out", "--tokenizer"]
        good = json.loads(tokenizer_cases.vocabularies()["gpt2"])
        self.refuse(CONFIG, "is no tokenizer", "hf:tokenizer.json", arguments=[*build, "gpt2"])
        self.refuse(CONFIG, "none.json", arguments=[*build, f"hf:{self.folder}/none.json"])
        self.refuse(CONFIG, "none.model", arguments=[*build, f"sentencepiece:{self.folder}/none.model"])
        bad = self.write("bad.model", b"no model at all")
        self.refuse(CONFIG, "bad.model", arguments=[*build, f"sentencepiece:{bad}"])
        for name, change, fragment in (("normalizer", {"type": "Lowercase"}, "normalizer.type"), ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer.type"),
                                       ("model", {**good["model"], "type": "Unigram"}, "model.type"), ("model", {**good["model"], "dropout": 0.1}, "model.dropout"),
                                       ("model", {**good["model"], "merges": ["q q q"]}, "model.merges")):
            with self.subTest(fragment=fragment):
                file = self.write("t.json", json.dumps({**good, name: change}).encode())
                self.refuse(CONFIG, "t.json", fragment, arguments=[*build, f"hf:{file}"])
        file = self.write("t.json", json.dumps(good).encode())
        self.refuse(CONFIG, "--eod-token", arguments=[*build, f"hf:{file}", "--eod-token", "<none>"])
        self.write("t.json", json.dumps(good).encode()[:-100])
        self.refuse(CONFIG, "t.json", "JSON", arguments=[*build, f"hf:{file}"])

    def test_inputs(self):
        out = ["--out", self.folder / "out"]
        self.refuse(DATA, "none.gz", arguments=["build", "--input", self.folder / "none.gz", *out])
        whole = gzip.compress(text(2000).encode())
        cut = self.write("cut.txt.gz", whole[:-9])
        self.refuse(DATA, "cut.txt.gz", "truncated", arguments=["build", "--input", cut, *out])
        source = self.write("a.txt", b"some text")
        for option, value in (("--threads", "-1"), ("--threads", "x"), ("--invalid-utf8", "maybe"), ("--commit-mib", "1.5"), ("--format", "csv")):
            self.refuse(CONFIG, value, arguments=["build", "--input", source, option, value, *out])

    def most_memory_kib(self, source):
        """Peak memory of a build of `source`, which is refused in the end: it holds no document."""
        command = [binary(), "data", "build", "--input", source, "--split-documents", "blank-lines", "--threads", "1", "--out", self.folder / "out"]
        # The address sanitizer would keep what was freed.
        environment = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"}
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        most_kib = 0
        while process.poll() is None:  # VmHWM begins anew with the program, ru_maxrss counts this interpreter's memory too
            try:
                lines = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
            except OSError:
                lines = []
            if "Name:\toctet" in lines[:1]:
                most_kib = max([most_kib] + [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")])
            time.sleep(0.005)
        self.assertEqual(process.returncode, DATA)
        self.assertGreater(most_kib, 0)
        return most_kib

    def test_decompression_bomb_needs_little_memory(self):
        small = self.write("small.txt.gz", gzip.compress(b"\n" * (2 << 20), 6))
        bomb = self.write("bomb.txt.gz", gzip.compress(b"\n" * (100 << 20), 6))
        self.assertLess(self.most_memory_kib(bomb) - self.most_memory_kib(small), 32 << 10)

    def test_train_tokenizer(self):
        source = self.write("a.txt", text(3000).encode())
        base = ["train-tokenizer", "--input", source, "--out", self.folder / "m.model", "--vocab-size"]
        self.refuse(CONFIG, "SentencePiece", arguments=[*base, "100000"])
        self.refuse(CONFIG, "--vocab-size", arguments=[*base, "many"])
        self.refuse(CONFIG, "--model-type", arguments=[*base, "300", "--model-type", "wordpiece"])
        self.refuse(DATA, "none.txt", arguments=["train-tokenizer", "--input", self.folder / "none.txt", "--out", self.folder / "m", "--vocab-size", "300"])
        self.write("m.model", b"kept")
        self.refuse(DATA, "m.model", "exists already", arguments=[*base, "300"])


if __name__ == "__main__":
    unittest.main()
