#!/usr/bin/env python3
"""Peak memory of ranks on CPUs against the memory table of --dry-run, for data parallelism with every level of ZeRO and for tensor parallelism. docs/benchmarks/parallel.md
has the result.

    scripts/parallel_memory.py --data PREFIX [--octet build/release/octet] [--recipes bf16 blockwise] [--ranks 2 4] [--zero 0 1 2 3] [--parts data tensor]

Of tensor parallelism: parallel.tp 2 and 4, parallel.sequence_parallel off and on, FP8 communication where the recipe quantizes, and tp 2 x dp 2 with parallel.zero 1 and 3; the model is
smaller and the micro-batches longer there, so that activations are a large part of the table (their share is printed).

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
# 9 million, that four ranks can cut between blocks, with longer micro-batches.
CUT_MODEL = {**MODEL, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "head_dim": 128}
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
    """The table's total, the part of it that is activations, and the ranks' peaks."""
    with tempfile.TemporaryDirectory(prefix="octet-memory-") as name:
        path, peaks = pathlib.Path(name) / "config.json", pathlib.Path(name) / "peak"
        path.write_text(json.dumps(config))
        command = [octet, "train", "--config", path]
        table = mpirun(ranks, [*command, "--dry-run"])
        mpirun(ranks, [sys.executable, __file__, "--keep-peak", peaks, *command, "--run-dir", f"{peaks}.run"])
        return entry(table, "total"), entry(table, "activations"), [int(pathlib.Path(f"{peaks}.{r}").read_text()) for r in range(ranks)]


def entry(text, name):
    number, unit = re.search(rf"(?m)^{name} .*?([0-9.]+) (\w+)$", text).groups()
    return float(number) * UNITS[unit]


def data_layouts(options, ranks, recipe):
    for zero in options.zero:
        yield {"zero": zero}


def tensor_layouts(options, ranks, recipe):
    for tp in (2, 4):
        for zero in ([0] if tp == ranks else [1, 3] if tp < ranks else []):
            for sequence in (False, True):
                yield {"tp": tp, "sequence_parallel": sequence, "zero": zero}
            if recipe not in ("fp32", "bf16"):
                yield {"tp": tp, "sequence_parallel": True, "zero": zero, "fp8_activation_gather": True, "fp8_param_gather": zero > 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=pathlib.Path, help="prefix of token files of bytes")
    parser.add_argument("--octet", type=pathlib.Path, default=ROOT / "build/release/octet")
    parser.add_argument("--recipes", nargs="+", default=["bf16", "blockwise"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--zero", nargs="+", type=int, default=[0, 1, 2, 3], help="of data parallelism alone")
    parser.add_argument("--parts", nargs="+", choices=["data", "tensor"], default=["data", "tensor"])
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    octet, data, missed, programs = options.octet.resolve(), options.data.resolve(), False, {}
    mib = lambda b: f"{b / (1 << 20):.1f}"
    line = "{:<10} {:>5} {:>2} {:<8} {:>4} {:<4} {:>9} {:>11} {:>8} {:>7} {:>7} {:>8} {:>8}  {}"
    print(line.format("recipe", "ranks", "tp", "sequence", "zero", "fp8", "plan MiB", "activations", "program", "rank 0", "largest", "rank 0", "largest", ""), flush=True)
    for part in options.parts:
        for ranks in options.ranks:
            for recipe in options.recipes:
                config = {"data": {"train": [{"path": str(data)}], "seq_len": 128}, "optim": {"lr": 1e-4}, "precision": {"recipe": recipe},
                          "eval": {"samples": 4, "interval": 2}, "run": {"steps": options.steps, "device": "cpu", "threads": 1}}
                small, _, next_to_nothing = measure(octet, ranks, {**config, "model": NEXT_TO_NOTHING, "batch": {"micro": 1, "global": 2 * ranks}})
                program = max(next_to_nothing) - small
                for parallel in (data_layouts if part == "data" else tensor_layouts)(options, ranks, recipe):
                    tp = parallel.get("tp", 1)
                    model, micro, length, micro_batches = (MODEL, 1, 128, 2) if part == "data" else (CUT_MODEL, 4, 512, 1)
                    plan, activations, peaks = measure(octet, ranks, {**config, "model": model, "data": {**config["data"], "seq_len": length}, "parallel": parallel,
                                                                      "batch": {"micro": micro, "global": micro * micro_batches * ranks // tp}})
                    offs = [(p - program) / plan - 1 for p in (peaks[0], max(peaks))]
                    verdict = "ok" if all(abs(off) <= BAR for off in offs) else "MISS"
                    missed |= verdict == "MISS"
                    fp8 = ("w" if parallel.get("fp8_param_gather") else "") + ("a" if parallel.get("fp8_activation_gather") else "") or "off"
                    print(line.format(recipe, ranks, tp, "yes" if parallel.get("sequence_parallel") else "no", parallel["zero"], fp8, mib(plan), f"{100 * activations / plan:.0f} %", mib(program),
                                      mib(peaks[0]), mib(max(peaks)), *(f"{100 * off:+.1f} %" for off in offs), verdict), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--keep-peak"]:
        sys.exit(keep_peak(sys.argv[2], sys.argv[3:]))
    sys.exit(main())
