"""Bad text and token files: one clear line, exit code 11 (12 on a full disk), nothing written or overwritten."""

import shutil
import struct
import unittest

from octet_cli import DATA, OK, Sandbox, build_tokens, octet, snapshot


class TokenFiles(Sandbox):
    words = 1500

    def setUp(self):
        super().setUp()
        self.copy = self.folder / "copy"
        for suffix in (".idx", ".bin"):
            shutil.copy(f"{self.prefix}{suffix}", f"{self.copy}{suffix}")
        self.idx, self.bin = self.folder / "copy.idx", self.folder / "copy.bin"

    def refuse(self, *fragments, **changes):
        changes.setdefault("data", {})["train"] = [{"path": str(self.copy)}]
        self.assert_refused(DATA, *fragments, arguments=["--config", self.config(**changes)])
        self.assertNotEqual(octet("data", "verify", self.copy, "--vocab-size", changes.get("model", {}).get("vocab_size", 257)).rc, OK)

    def test_missing_index(self):
        self.idx.unlink()
        self.refuse("copy.idx")

    def test_missing_tokens(self):
        self.bin.unlink()
        self.refuse("copy.bin")

    def test_truncated_index(self):
        content = self.idx.read_bytes()
        for size in (0, 8, 17, 18, 33, 34, len(content) // 2, len(content) - 1):
            with self.subTest(size=size):
                self.idx.write_bytes(content[:size])
                self.refuse("copy.idx")

    def test_truncated_tokens(self):
        content = self.bin.read_bytes()
        for size in (0, 1, len(content) - 1, len(content) - 2):
            with self.subTest(size=size):
                self.bin.write_bytes(content[:size])
                self.refuse("copy.bin")

    def test_not_an_index(self):
        content = bytearray(self.idx.read_bytes())
        content[0] ^= 1
        self.idx.write_bytes(content)
        self.refuse("copy.idx")

    def test_index_that_claims_too_much(self):
        content = bytearray(self.idx.read_bytes())
        content[18:26] = struct.pack("<Q", 2**61)
        self.idx.write_bytes(content)
        self.refuse("copy.idx")

    def refuse_token(self, token, vocab_size):
        """Files of this size are read whole before anything is written."""
        self.refuse("copy.bin", str(token), str(vocab_size), model={"vocab_size": vocab_size})

    def test_token_beyond_the_vocabulary(self):
        content = bytearray(self.bin.read_bytes())
        content[200:202] = struct.pack("<H", 300)
        self.bin.write_bytes(content)
        self.refuse_token(300, 257)

    def test_vocabulary_smaller_than_the_tokens(self):
        self.refuse_token(256, 256)

    def test_corpus_too_small_for_one_sample(self):
        config = self.config(data={"train": [{"path": str(self.copy)}], "seq_len": 2**20})
        self.assert_refused(DATA, "copy", arguments=["--config", config])


class Build(Sandbox):
    words = 600

    def refuse(self, code, *fragments, arguments):
        before = snapshot(self.folder)
        result = octet("data", "build", "--tokenizer", "byte", *arguments)
        self.assert_one_line(result, code, *fragments)
        self.assertEqual(snapshot(self.folder), before)

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def test_empty_corpus(self):
        for name, content in (("empty.txt", b""), ("blank.txt", b"\n\n\n")):
            with self.subTest(name=name):
                source = self.write(name, content)
                self.refuse(DATA, name, arguments=["--input", source, "--split-documents", "blank-lines", "--out", self.folder / "out"])

    def test_missing_input(self):
        self.refuse(DATA, "none.txt", arguments=["--input", self.folder / "none.txt", "--out", self.folder / "out"])

    def test_existing_output_is_kept(self):
        prefix = build_tokens(self.folder, 100)
        self.refuse(DATA, "corpus", arguments=["--input", self.folder / "corpus.txt", "--out", prefix])

    def test_malformed_jsonl_names_the_line(self):
        for content in (b'{"text": "a"}\n{"text": \n', b'{"text": "a"}\n{"txt": "b"}\n', b'{"text": "a"}\n{"text": 3}\n', b'{"text": "a"}\n[]\n'):
            with self.subTest(content=content):
                source = self.write("bad.jsonl", content)
                self.refuse(DATA, "bad.jsonl:2", arguments=["--input", source, "--out", self.folder / "out"])

    def test_unknown_tokenizer(self):
        source = self.write("a.txt", b"some text")
        before = snapshot(self.folder)
        result = octet("data", "build", "--input", source, "--tokenizer", "bite", "--out", self.folder / "out")
        self.assertNotEqual(result.rc, OK, result)
        self.assertEqual(len(result.stderr.splitlines()), 1, result)
        self.assertIn("byte", result.stderr)
        self.assertEqual(snapshot(self.folder), before)


if __name__ == "__main__":
    unittest.main()
