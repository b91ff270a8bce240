"""Vocabularies trained on the spot and strings that are hard to tokenize; shared by test_tokenizers.py and scripts/check_tokenizers.sh."""

import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

import numpy
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = ("|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]))
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def _split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def _byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def training_text(lines=4000, seed=5):
    """Words of several scripts with a Zipf-like distribution, punctuation, numbers, odd spaces."""
    rng = random.Random(seed)
    scripts = [(0x61, 0x7A)] * 6 + [(0x41, 0x5A), (0xE0, 0xFF), (0x3B1, 0x3C9), (0x430, 0x44F), (0x5D0, 0x5EA), (0x4E00, 0x4E80), (0x3041, 0x3090)]
    words = []
    for _ in range(900):
        low, high = rng.choice(scripts)
        words.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 9))))
    words += ["I'm", "don't", "we'll", "they've", "You're", "it's", "IT'S", "1234", "2026", "3.14", "e\u0301te\u0301", "\U0001F468\u200D\U0001F469", "    "]
    out = []
    for _ in range(lines):
        count = rng.randint(1, 14)
        out.append(rng.choice([" ", "  ", ", ", "\n"]).join(words[min(int(rng.paretovariate(0.6)), len(words)) - 1] for _ in range(count)))
    return out


def _trained(normalizer, steps, vocab_size, ignore_merges=False, added=(), lines=4000):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=ALPHABET, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(training_text(lines), trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(list(added))
    document = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = ignore_merges
    return json.dumps(document, ensure_ascii=False)


def vocabularies():
    """The three public styles: name -> text of tokenizer.json."""
    return {
        "gpt2": _trained(None, [_byte_level(regex=True)], 2000),
        "llama3": _trained(None, [_split(LLAMA3), _byte_level()], 2500, ignore_merges=True),
        "qwen2": _trained(normalizers.NFC(), [_split(QWEN2), _byte_level()], 2500,
                          added=[AddedToken("strip me", lstrip=True, rstrip=True), AddedToken("lone", single_word=True), AddedToken("caf\u00e9"),
                                 AddedToken("raw e\u0301", normalized=False)]),
    }


def other_vocabularies():
    """Further parts of the format: other patterns (PCRE2), behaviors, Digits, prefix spaces, normal forms."""
    return {
        "o200k": _trained(None, [_split(O200K), _byte_level()], 700, lines=500),
        "deepseek": _trained(None, [pre_tokenizers.Digits(True), _split(r"\p{N}{1,3}"), _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), _split(DEEPSEEK), _byte_level()], 700, lines=500),
        "prefix": _trained(normalizers.Sequence([normalizers.NFD(), normalizers.NFKC()]), [_byte_level(True, True)], 700, lines=500),
        "digits": _trained(normalizers.NFKD(), [pre_tokenizers.Digits(False), _byte_level(True, False)], 700, lines=500),
        "removed": _trained(None, [_split(LLAMA3, "removed", True), _byte_level()], 700, lines=500),
        "previous": _trained(None, [_split(r"\s", "merged_with_previous"), _byte_level(True, False)], 700, lines=500),
        "next": _trained(None, [_split(r"[\s\p{P}]", "merged_with_next"), _byte_level()], 700, lines=500),
        "contiguous": _trained(None, [_split(r"\p{Lu}|\p{S}", "contiguous"), pre_tokenizers.Split(" ", "removed"), _byte_level()], 700, lines=500),
        "qwen_by_pcre2": _trained(None, [_split("(?:" + QWEN2 + ")"), _byte_level()], 700, lines=500),
    }


SPACES = "\t\n\x0b\x0c\r\x1c\x1f \x85\xa0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
MARKS = "\u0301\u0308\u0323\u0345\u05b4\u093c\u09be\u0f71\u1161\u11a8\u20dd\u3099\ua670\U0001d165\U00010eab\U0001e8d0\U0001133b\u0898"
PIECES = ["'s", "'S", "'ll", "'LL", "'Ll", "'re", "'VE", "'d", "'M", "'t", "'\u017f", "'\u017F", "''s", "'", "'r", "'l", "'v", " ", "  ", "   ", "\n", "\r\n", "\r", "\n\n",
          "\t", "\u3000", "a", "B", "word", " word", "WORD", "\u00e9", "e\u0301", "\u0130", "\u0131", "\u00df", "\ufb06", "1", "12", "1234", "\u0661\u0662", "\u2167", "\u00bd",
          "\u3042", "\u4e2d\u6587", "\uac00", "\u1100\u1161", "\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\u2764\ufe0f", "\U0001F1E9\U0001F1EA", "!", "...", "_", "$5",
          "\x00", "\x7f", "\ue000", "\U000f0000", "\u0378", "\U000e0080", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_", "<|endoftext|", "strip me", " strip me ", "lone",
          "alone", "lone.", "caf\u00e9", "cafe\u0301", "raw e\u0301", "raw \u00e9", "\ufffd", "\U0010ffff"]

# Characters newer than the normalizer of the package, than PCRE2 10.42, than ICU 72; and their neighbours.
NEW = [0x0870, 0x0898, 0x0CF3, 0x1C89, 0x1C8A, 0x2C2F, 0xA7D0, 0xA7DC, 0x10D40, 0x10D50, 0x11F50, 0x11DE0, 0x16FF4, 0x16D63, 0x1CCF0, 0x1E4F0, 0x2EBF0, 0x2FFC, 0x31350,
       0x1FAE9, 0x1FBCB, 0x1171E, 0x11938, 0x11935, 0x11930, 0x32FF, 0xA7F2]


def hard_cases(every_plane=False):
    """Without every_plane, those planes are left out that have neither assigned characters nor any before Unicode 17."""
    limit = 0x110000 if every_plane else 0x32400
    every = [chr(c) for c in range(limit) if not 0xD800 <= c < 0xE000]
    every += [] if every_plane else [chr(c) for c in [*range(0xE0000, 0xE0200), 0xF0000, 0xFFFFD, 0x100000, 0x10FFFE]]
    out = ["", " ", "  ", "\n", "x" * 20000, "ab" * 5000, " " * 3000 + "x", "\n" * 999 + " ", "\u0301" * 300, "1" * 1000, "'" * 500, "\u4e2d" * 3000, "<|endoftext|>" * 50,
           "a\x00b\x00", "".join(PIECES), " ".join(PIECES), "\n".join(PIECES), SPACES, SPACES[::-1], "x".join(SPACES), MARKS, "e" + MARKS, "e" + MARKS[::-1]]
    out += [a + b for a in PIECES for b in PIECES]
    out += [a + chr(c) + b for c in NEW for a in ("", " ", "a", "1", "'", "\u0323") for b in ("", "a", "1", "\u0301", " ", "s")]
    if not every_plane:  # of long uniform stretches (Han, Hangul, unassigned) one block in sixteen
        groups = [every[i:i + 128] for i in range(0, len(every), 128)]
        uniform = [len({unicodedata.category(c) for c in g}) == 1 for g in groups]
        every = [c for i, g in enumerate(groups) if not uniform[i] or i % 16 == 0 for c in g]
    # Every code point: alone among its neighbours, between letters, behind an apostrophe, behind a space and before a mark.
    for block in range(0, len(every), 128):
        group = every[block:block + 128]
        out += ["".join(group), "".join(f"a{c}b" for c in group), "".join(f"'{c}'r{c}'l{c}" for c in group), "".join(f" {c}\u0301 \u0323{c}1" for c in group)]
    return out


def random_strings(count, seed):
    """Random Unicode: any scalar values, mixtures of blocks, and sequences of the hard pieces."""
    rng = random.Random(seed)
    assigned = [c for c in range(0x30000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
    out = []
    for _ in range(count):
        kind = rng.random()
        length = rng.randint(1, 12)
        if kind < 0.35:
            out.append("".join(rng.choices(PIECES, k=length)))
        elif kind < 0.6:
            block = rng.randrange(len(assigned) - 200)
            out.append("".join(chr(assigned[block + rng.randrange(200)]) if rng.random() < 0.7 else rng.choice(PIECES) for _ in range(length)))
        elif kind < 0.75:
            out.append("".join(chr(rng.choice(assigned)) for _ in range(length)))
        elif kind < 0.85:
            out.append("".join(rng.choices(SPACES, k=rng.randint(1, 5))) + rng.choice(PIECES) + "".join(rng.choices(SPACES + "ab1.", k=4)))
        elif kind < 0.95:
            out.append("".join(rng.choice("aeio\u0391") + "".join(rng.choices(MARKS, k=rng.randint(0, 4))) for _ in range(length)))
        else:
            points = (rng.randrange(0x110000 - 0x800) for _ in range(length))
            out.append("".join(chr(c if c < 0xD800 else c + 0x800) for c in points))
    return out


def read_documents(prefix):
    """Ids of every document of a token file, by its documented layout."""
    index = prefix.with_name(prefix.name + ".idx").read_bytes()
    magic, version, code, count, _ = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\x00\x00", 1)
    lengths = numpy.frombuffer(index, "<i4", count, 34)
    ids = numpy.fromfile(prefix.with_name(prefix.name + ".bin"), {8: "<u2", 4: "<i4"}[code])
    assert len(ids) == lengths.sum()
    return numpy.split(ids, numpy.cumsum(lengths)[:-1])


def write_jsonl(path, texts):
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def mismatches(tokenizer_json, prefix, texts, batch=20000):
    """(text, ours, the package's) where a built file differs from the package. Texts without tokens are not in the file."""
    package = tokenizers.Tokenizer.from_str(tokenizer_json)
    documents = iter(read_documents(prefix))
    out = []
    for first in range(0, len(texts), batch):
        part = texts[first:first + batch]
        for text, encoding in zip(part, package.encode_batch_fast(part, add_special_tokens=False)):
            theirs = encoding.ids
            if not theirs:
                continue
            ours = next(documents).tolist()
            if ours != theirs:
                out.append((text, ours, theirs))
    assert next(documents, None) is None, "more documents than texts"
    return out


def build(octet, tokenizer_json, name, inputs, folder):
    """Builds token files with a tokenizer and returns their prefix."""
    file, prefix = folder / f"{name}.json", folder / name
    file.write_text(tokenizer_json, encoding="utf-8")
    command = [str(octet), "data", "build", "--input", *map(str, inputs), "--tokenizer", f"hf:{file}", "--no-append-eod", "--out", str(prefix)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: octet data build failed: {done.stderr}")
    return prefix


def main():
    parser = argparse.ArgumentParser(description="Compares octet's BPE with the tokenizers package on random strings and hard cases.")
    parser.add_argument("--octet", default="build/release/octet")
    parser.add_argument("--strings", type=int, default=1_000_000, help="random strings for each of the three vocabularies")
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    print(f"tokenizers {tokenizers.__version__}, seed {arguments.seed}")
    hard = [t for t in hard_cases(every_plane=True) if t]
    main_vocabularies = vocabularies()
    every = {**main_vocabularies, **other_vocabularies()}
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for label, strings, chosen in (("random", arguments.strings, main_vocabularies), ("hard", 0, every)):
            if not strings and label == "random":
                continue
            for first in range(0, strings, 100_000) if strings else [0]:
                texts = random_strings(min(100_000, strings - first), arguments.seed + first) if strings else hard
                for vocabulary, text in chosen.items():
                    began = time.monotonic()
                    inputs = folder / "texts.jsonl"
                    write_jsonl(inputs, texts)
                    prefix = build(arguments.octet, text, vocabulary, [inputs], folder)
                    wrong = mismatches(text, prefix, texts)
                    failed = failed or bool(wrong)
                    print(f"{label:6} {vocabulary:14} {first + len(texts):8} strings: {len(wrong)} mismatches ({time.monotonic() - began:.0f} s)", flush=True)
                    for example in wrong[:3]:
                        print("   ", ascii(example[0])[:200], example[1][:20], example[2][:20])
                    for extension in (".bin", ".idx", ".meta.json"):
                        prefix.with_name(prefix.name + extension).unlink()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
