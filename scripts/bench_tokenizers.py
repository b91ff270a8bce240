"""Called by bench_tokenizers.sh, which fixes the package to one thread."""

import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cli"))

import tokenizer_cases  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import models, normalizers, pre_tokenizers, trainers  # noqa: E402


def train(style, documents, vocab_size):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if style == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        pattern = tokenizer_cases.LLAMA3 if style == "llama3" else tokenizer_cases.QWEN2
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
                                                           pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if style == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=tokenizer_cases.ALPHABET, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(documents, trainer)
    document = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = style == "llama3"
    return json.dumps(document, ensure_ascii=False)


def timed(work):
    """Wall and processor seconds (of this process and its children)."""
    def used():
        return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
    wall, cpu = time.monotonic(), used()
    result = work()
    return time.monotonic() - wall, used() - cpu, result


def main():
    parser = argparse.ArgumentParser(prog="bench_tokenizers.sh")
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--octet", default="build/release/octet")
    arguments = parser.parse_args()

    text = arguments.text.read_bytes()[: arguments.mib << 20].decode("utf-8", errors="ignore")
    documents = [d for d in re.split(r"\n\s*\n", text) if d]
    # Paragraphs in groups of about 4 KiB, as documents of the web are.
    grouped, group, size = [], [], 0
    for d in documents:
        group.append(d)
        size += len(d)
        if size > 4096:
            grouped.append("\n\n".join(group))
            group, size = [], 0
    grouped += ["\n\n".join(group)] if group else []
    mb = sum(len(d.encode()) for d in grouped) / 1e6
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    print(f"{cpu}; {mb:.1f} MB in {len(grouped)} documents; tokenizers {tokenizers.__version__}; load {os.getloadavg()[0]:.1f}")
    print("style   who       median MB/s (min to max) by wall clock   median MB/s (min to max) a processor second")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer_cases.write_jsonl(folder / "texts.jsonl", grouped)
        for style in ("gpt2", "llama3", "qwen2"):
            file = folder / f"{style}.json"
            file.write_text(train(style, grouped[:: max(1, len(grouped) // 1000)], arguments.vocab_size), encoding="utf-8")
            prefix = folder / "out"

            def by_octet():
                subprocess.run([arguments.octet, "data", "build", "--input", folder / "texts.jsonl", "--tokenizer", f"hf:{file}", "--no-append-eod",
                                "--threads", "1", "--out", prefix], check=True, stdout=subprocess.DEVNULL)

            package = tokenizers.Tokenizer.from_file(str(file))
            rates = {"octet": ([], []), "package": ([], [])}
            for _ in range(arguments.rounds):
                wall, cpu_s, _ = timed(by_octet)
                rates["octet"][0].append(mb / wall)
                rates["octet"][1].append(mb / cpu_s)
                wall, cpu_s, encoded = timed(lambda: package.encode_batch_fast(grouped, add_special_tokens=False))
                rates["package"][0].append(mb / wall)
                rates["package"][1].append(mb / cpu_s)
                assert [d.tolist() for d in tokenizer_cases.read_documents(prefix)] == [e.ids for e in encoded], "ids differ"
                for path in folder.glob("out.*"):
                    path.unlink()
            for who, (wall, by_cpu) in rates.items():
                print(f"{style:7} {who:8} {statistics.median(wall):8.1f} ({min(wall):.1f} to {max(wall):.1f}) {'':18} "
                      f"{statistics.median(by_cpu):8.1f} ({min(by_cpu):.1f} to {max(by_cpu):.1f})")
            print(f"{style:7} ratio    {statistics.median(rates['octet'][0]) / statistics.median(rates['package'][0]):8.2f} {'':32} "
                  f"{statistics.median(rates['octet'][1]) / statistics.median(rates['package'][1]):8.2f}", flush=True)


if __name__ == "__main__":
    main()
