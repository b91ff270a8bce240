#!/usr/bin/env python3
"""Check what the quickstart must show: it learned, no FP8 recipe differs from BF16 by much or by nothing, the 4-bit control loses.

Reads metrics.jsonl of each run itself, so it does not depend on `octet compare`. The gap of a run is the relative difference of its last
validation loss from the baseline's. Exit codes: 0 all checks pass, 1 one does not, 2 usage, 11 a run cannot be read.
"""

import argparse
import json
import pathlib
import sys

BASELINE, CONTROL = "bf16", "harm_e2m1"
NOT_FP8 = (BASELINE, "fp32", CONTROL)
LAST_STEPS = 40
MAX_ENTROPY_RATIO = 0.9
MAX_GAP_PERCENT = 0.4
MIN_HARM_PERCENT = 2.0


class Run:
    def __init__(self, folder):
        self.name = folder.name
        train, valid = {}, {}
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["kind"] in ("train", "valid"):
                (train if record["kind"] == "train" else valid)[record["step"]] = record["loss"]
        if not train or not valid:
            raise ValueError(f"{folder}/metrics.jsonl has no training or no validation loss")
        losses = [loss for _, loss in sorted(train.items())][-LAST_STEPS:]
        # A non-finite loss is written as null; it fails every check.
        self.train_loss = sum(losses) / len(losses) if None not in losses else float("nan")
        self.valid_loss = valid[max(valid)] if valid[max(valid)] is not None else float("nan")

    def gap_percent(self, baseline):
        return 100 * (self.valid_loss - baseline.valid_loss) / baseline.valid_loss


def checks(runs, entropy):
    """Yields (passed, sentence)."""
    baseline = next((run for run in runs if run.name == BASELINE), None)
    if baseline is None:
        raise ValueError(f"there is no run named {BASELINE} to compare with")
    for run in runs:
        if run.name == CONTROL:
            gap = run.gap_percent(baseline)
            yield gap > MIN_HARM_PERCENT, f"{run.name}: loses {gap:.2f} % (a 4-bit control: must lose more than {MIN_HARM_PERCENT} %)"
            continue
        ratio = run.train_loss / entropy
        yield ratio <= MAX_ENTROPY_RATIO, (f"{run.name}: final loss {run.train_loss:.3f} = {ratio:.2f}x the unigram entropy {entropy:.3f} "
                                           f"(must be at most {MAX_ENTROPY_RATIO}x)")
        if run.name not in NOT_FP8:
            gap = run.gap_percent(baseline)
            yield 0 < abs(gap) < MAX_GAP_PERCENT, f"{run.name}: gap to {BASELINE} {gap:+.3f} % (must be within {MAX_GAP_PERCENT} % and not 0)"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--corpus", required=True, type=pathlib.Path, help="output of: octet data info PREFIX --json")
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help=f"run directories; one is named {BASELINE}")
    arguments = parser.parse_args()
    try:
        entropy = json.loads(arguments.corpus.read_text(encoding="utf-8"))["unigram_entropy"]
        results = list(checks([Run(folder) for folder in arguments.runs], entropy))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        print(f"check_quickstart.py: error: {problem!r}", file=sys.stderr)
        return 11
    for passed, sentence in results:
        print(f"{'PASS' if passed else 'FAIL'} {sentence}")
    failed = sum(not passed for passed, _ in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
