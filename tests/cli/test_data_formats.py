"""Token files of other writers: Megatron's documented layout written here, llm.c, datatrove, raw tokens and patterns."""

import json
import struct
import unittest

from octet_cli import CONFIG, DATA, OK, Sandbox, octet, records, steps

EOD = 256


def documents(seed=3, count=60):
    """Lists of token ids, each ended by EOD."""
    state, out = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append([(state >> (8 * (i % 7))) % 90 + 32 for i in range(5 + (state >> 40) % 60)] + [EOD])
    return out


def write_megatron(prefix, docs, code=8, kind="H"):
    """Written from the layout (ECOSYSTEM.md 1.1), not from anyone's code."""
    lengths = [len(d) for d in docs]
    pointers = [sum(lengths[:i]) * struct.calcsize(kind) for i in range(len(docs))]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(docs), len(docs) + 1)
    index += struct.pack(f"<{len(docs)}i", *lengths) + struct.pack(f"<{len(docs)}q", *pointers) + struct.pack(f"<{len(docs) + 1}q", *range(len(docs) + 1))
    prefix.with_suffix(".idx").write_bytes(index)
    prefix.with_suffix(".bin").write_bytes(b"".join(struct.pack(f"<{len(d)}{kind}", *d) for d in docs))
    return prefix


def flat(docs):
    return [t for d in docs for t in d]


class Formats(Sandbox):
    words = 400

    def setUp(self):
        super().setUp()
        self.docs = documents()
        ids = flat(self.docs)
        write_megatron(self.folder / "mega", self.docs)
        header = lambda magic, version: struct.pack("<256i", magic, version, len(ids), *[0] * 253)  # noqa: E731
        narrow, wide = struct.pack(f"<{len(ids)}H", *ids), struct.pack(f"<{len(ids)}I", *ids)
        (self.folder / "gpt2.bin").write_bytes(header(20240520, 1) + narrow)
        (self.folder / "llama3.bin").write_bytes(header(20240801, 7) + wide)
        (self.folder / "plain16").write_bytes(narrow)
        (self.folder / "plain32").write_bytes(wide)
        ends = [len(flat(self.docs[:i + 1])) for i in range(len(self.docs))]
        for name, tokens, size in (("a.ds", narrow, 2), ("b.ds", wide, 4)):
            (self.folder / name).write_bytes(tokens)
            (self.folder / f"{name}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
            (self.folder / f"{name}.metadata").write_text(f"some/tokenizer|{size}\n{len(ids)}\n0.0 M")
        write_megatron(self.folder / "part_0", self.docs[:20])
        write_megatron(self.folder / "part_1", self.docs[20:45], code=4, kind="i")
        write_megatron(self.folder / "part_2", self.docs[45:])
        self.all = [("mega", "auto"), ("gpt2.bin", "auto"), ("llama3.bin", "llmc"), ("a.ds", "auto"), ("b", "datatrove"), ("plain16", "raw_u16"),
                    ("plain32", "raw_u32"), ("part_*", "auto")]

    def test_the_same_tokens_train_the_same_in_every_format(self):
        first = None
        for k, (path, form) in enumerate(self.all):
            with self.subTest(path=path):
                data = {"train": [{"path": str(self.folder / path), "format": form}]}
                run = self.train(f"run{k}", data=data, run={"steps": 3}, eval={"interval": 3, "samples": 3})
                got = [(s["loss"], s["grad_norm"], s["sample_hash"]) for s in steps(run).values()] + [records(run, "valid")[-1]["loss"]]
                first = first or got
                self.assertEqual(got, first)

    def test_info_verify_and_dump(self):
        count = len(flat(self.docs))
        for path, form in self.all:
            with self.subTest(path=path):
                source = [self.folder / path, "--format", form]
                info = json.loads(octet("data", "info", *source, "--json").stdout)
                self.assertEqual((info["tokens"], info["documents"], info["max_id"]), (count, len(self.docs), EOD))
                self.assertEqual(info["files"], 3 if "*" in path else 1)
                good = octet("data", "verify", *source, "--vocab-size", 257)
                self.assertEqual(good.rc, OK, good)
                self.assertIn(f"{len(self.docs)} documents, {count} tokens", good.stdout)
                self.assert_one_line(octet("data", "verify", *source, "--vocab-size", 256), DATA, "token id 256")
                dump = octet("data", "dump", *source, "--document", 21, "--as", "tokens")
                self.assertEqual([int(t) for t in dump.stdout.split()], self.docs[21])
                sample = octet("data", "dump", *source, "--sample", 2, "--seq-len", 32, "--as", "tokens")
                self.assertEqual(sample.stdout, octet("data", "dump", self.folder / "mega", "--sample", 2, "--seq-len", 32, "--as", "tokens").stdout)

    def test_our_pair_is_byte_for_byte_the_documented_layout(self):
        texts = ["one\n", "second document\n", "3\n"]
        (self.folder / "t.txt").write_text("\n".join(texts))
        self.assertEqual(octet("data", "build", "--input", self.folder / "t.txt", "--split-documents", "blank-lines", "--out", self.folder / "ours").rc, OK)
        write_megatron(self.folder / "theirs", [list(t.encode()) + [EOD] for t in texts])
        for suffix in (".idx", ".bin"):
            self.assertEqual((self.folder / f"ours{suffix}").read_bytes(), (self.folder / f"theirs{suffix}").read_bytes(), suffix)

    def test_golden_index(self):
        golden = ("4d4d4944494458000001000000000000000802000000000000000300000000000000030000000500000000000000000000000600000000000000"
                  "000000000000000001000000000000000200000000000000")
        write_megatron(self.folder / "golden", [[1, 2, 3], [10, 11, 12, 13, 14]])
        self.assertEqual((self.folder / "golden.idx").read_bytes().hex(), golden)
        self.assertEqual(octet("data", "verify", self.folder / "golden").rc, OK)

    def test_mistakes_are_one_line(self):
        (self.folder / "cut.bin").write_bytes((self.folder / "gpt2.bin").read_bytes()[:-2])
        (self.folder / "b.ds.loss").write_bytes(b"\0" * len(flat(self.docs)))
        for path, form, *fragments in (("cut.bin", "auto", "cut.bin", "announces"), ("b.ds", "auto", "b.ds.loss", "masks the loss"), ("plain16", "auto", "raw_u16"),
                                       ("none*", "auto", "matches no file"), ("plain16", "llmc", "plain16"), ("mega.bin", "auto", "without .idx/.bin")):
            with self.subTest(path=path, form=form):
                config = self.config(data={"train": [{"path": str(self.folder / path), "format": form}]})
                self.assert_refused(DATA, *fragments, arguments=["--config", config])
        self.assert_one_line(octet("data", "info", self.folder / "mega", "--format", "parquet"), CONFIG, "parquet")


if __name__ == "__main__":
    unittest.main()
