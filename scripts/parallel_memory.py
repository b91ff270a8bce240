#!/usr/bin/env python3
"""Peak memory of data-parallel ranks on CPUs against the memory table of --dry-run, for every level of ZeRO. docs/benchmarks/parallel.md has the result.

    scripts/parallel_memory.py --data PREFIX [--octet build/release/octet] [--recipes bf16 blockwise] [--ranks 2 4] [--zero 0 1 2 3]

The peak is the high-water mark of a rank's resident memory (VmHWM) when its run is over, before the process's libraries clean up. `program` is that of a run whose model
is next to nothing, less that model's own table: code, libraries and what they allocate. Bar: the peak less `program` is within 5 % of the table's total, of rank 0, whose table it
is, and of the rank with the largest peak; exit code 1 when one is not.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism", "none"]
BAR = 0.05
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# 39 million parameters; a byte vocabulary, so that any text will do.
MODEL = {"vocab_size": 257, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 96,
         "tie_word_embeddings": False}
NEXT_TO_NOTHING = {**MODEL, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}


def keep_peak(path, command):
    """What a rank runs: octet, whose peak in bytes goes to PATH.RANK."""
    metrics, peak = pathlib.Path(f"{path}.run/metrics.jsonl"), 0
    child = subprocess.Popen(command)
    while child.poll() is None:
        status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
        if metrics.exists() and b'"summary"' in metrics.read_bytes():
            break
        if found := re.search(r"VmHWM:\s+(\d+) kB", status):
            peak = int(found[1]) * 1024
        time.sleep(0.02)
    pathlib.Path(f"{path}.{os.environ['OMPI_COMM_WORLD_RANK']}").write_text(str(peak))
    return child.wait()


def mpirun(ranks, command):
    done = subprocess.run([*MPIRUN, "-np", str(ranks), *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def measure(octet, ranks, config):
    """The table's total, and the ranks' peaks."""
    with tempfile.TemporaryDirectory(prefix="octet-memory-") as name:
        path, peaks = pathlib.Path(name) / "config.json", pathlib.Path(name) / "peak"
        path.write_text(json.dumps(config))
        command = [octet, "train", "--config", path]
        plan = table_total(mpirun(ranks, [*command, "--dry-run"]))
        mpirun(ranks, [sys.executable, __file__, "--keep-peak", peaks, *command, "--run-dir", f"{peaks}.run"])
        return plan, [int(pathlib.Path(f"{peaks}.{r}").read_text()) for r in range(ranks)]


def table_total(text):
    number, unit = re.search(r"(?m)^total +([0-9.]+) (\w+)$", text).groups()
    return float(number) * UNITS[unit]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=pathlib.Path, help="prefix of token files of bytes")
    parser.add_argument("--octet", type=pathlib.Path, default=ROOT / "build/release/octet")
    parser.add_argument("--recipes", nargs="+", default=["bf16", "blockwise"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--zero", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    octet, data, missed = options.octet.resolve(), options.data.resolve(), False
    mib = lambda b: f"{b / (1 << 20):.1f}"
    line = "{:<10} {:>5} {:>4} {:>9} {:>8} {:>7} {:>7} {:>8} {:>8}  {}"
    print(line.format("recipe", "ranks", "zero", "plan MiB", "program", "rank 0", "largest", "rank 0", "largest", ""), flush=True)
    for ranks in options.ranks:
        for recipe in options.recipes:
            for zero in options.zero:
                config = {"model": MODEL, "data": {"train": [{"path": str(data)}], "seq_len": 128}, "batch": {"micro": 1, "global": 2 * ranks},
                          "optim": {"lr": 1e-4}, "precision": {"recipe": recipe}, "parallel": {"zero": zero}, "eval": {"samples": 4, "interval": 2},
                          "run": {"steps": options.steps, "device": "cpu", "threads": 1}}
                plan, peaks = measure(octet, ranks, config)
                small, next_to_nothing = measure(octet, ranks, {**config, "model": NEXT_TO_NOTHING})
                program = max(next_to_nothing) - small
                offs = [(p - program) / plan - 1 for p in (peaks[0], max(peaks))]
                verdict = "ok" if all(abs(off) <= BAR for off in offs) else "MISS"
                missed |= verdict == "MISS"
                print(line.format(recipe, ranks, zero, mib(plan), mib(program), mib(peaks[0]), mib(max(peaks)), *(f"{100 * off:+.1f} %" for off in offs), verdict), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--keep-peak"]:
        sys.exit(keep_peak(sys.argv[2], sys.argv[3:]))
    sys.exit(main())
