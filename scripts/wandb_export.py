#!/usr/bin/env python3
"""Sends a run's metrics.jsonl (training, validation, FP8 health, events) and resolved config to Weights & Biases.

    scripts/wandb_export.py RUN --project octet                 # a finished run
    scripts/wandb_export.py RUN --project octet --follow        # a run in progress, until its summary is written
    scripts/wandb_export.py RUN --project octet --offline       # no network; `wandb sync` sends it later

The wandb package is needed for this script alone; training does not know it. Names are those of the TensorBoard files
(docs/reference/logging.md). A resumed run repeats steps: the later lines count, and what a killed run wrote behind its last checkpoint
is left out. W&B cannot take back what was sent, so when a followed run starts over from an earlier step, its W&B run is finished, and
a new one with the same name and group gets the history that counts.
"""

import argparse
import json
import math
import pathlib
import sys
import time

TRAIN_NAMES = {"loss": "train/loss", "z_loss": "train/z_loss", "grad_norm": "train/grad_norm", "lr": "train/lr", "tokens": "train/tokens",
               "tokens_per_s": "perf/tokens_per_s", "step_ms": "perf/step_ms", "mfu_causal": "perf/mfu"}
# Health arrays: how the sites of a role become one number.
HEALTH = {"amax": ("amax_max", max), "underflow": ("underflow_max", max), "saturation": ("saturation_max", max), "sqnr_db": ("sqnr_db_min", min),
          "cosine": ("cosine_min", min), "nonfinite": ("nonfinite", sum)}
POLL_S = 1.0


def fail(message):
    print(f"wandb_export: error: {message}", file=sys.stderr)
    sys.exit(1)


def number(line, key):
    """The value of a key; NaN where JSON could not hold it, None where there is none."""
    value = line.get(key)
    if value is None and key in line.get("nonfinite", []):
        return math.nan
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class History:
    """The lines that count, as W&B points: [(step, {name: value})] in the order of steps."""

    def __init__(self, each_site=False):
        self.points = []
        self.each_site = each_site
        self.sites = []          # of the latest stats_sites event
        self.newest = 0          # last training step
        self.counts = {}         # events by name
        self.summary = None

    def add(self, line):
        """Takes one line of metrics.jsonl. Returns its points, and the step from which earlier ones became void (None: none did)."""
        kind = line.get("kind")
        void_from = None
        if kind == "train":
            void_from = self.start_over(line["step"])
            self.newest = line["step"]
        elif kind == "event" and line.get("event") == "start":
            void_from = self.start_over(line["step"] + 1)
            self.newest = min(self.newest, line["step"])
        values = {"train": self.train, "valid": self.valid, "stats": self.stats, "event": self.event}.get(kind, lambda _: {})(line)
        if not values:
            return [], void_from
        step = line.get("step")
        # W&B wants steps that do not fall; an event without a step, or about an earlier one, belongs to now.
        point = (max(step, self.newest) if isinstance(step, int) else self.newest, values)
        self.points.append(point)
        return [point], void_from

    def start_over(self, step):
        if step > self.newest:
            return None
        self.points = [p for p in self.points if p[0] < step]
        return step

    def train(self, line):
        out = {name: number(line, key) for key, name in TRAIN_NAMES.items()}
        return {name: value for name, value in out.items() if value is not None}

    def valid(self, line):
        out = {"valid/loss": number(line, "loss")}
        for name, loss in (line.get("sets") or {}).items():
            out[f"valid/{name}/loss"] = math.nan if loss is None else loss
        return {name: value for name, value in out.items() if value is not None}

    def stats(self, line):
        out = {}
        for key, (name, combine) in HEALTH.items():
            by_role = {}
            for site, value in zip(self.sites, line.get(key) or []):
                if value is None:
                    continue
                by_role.setdefault(site["role"], []).append(value)
                if self.each_site:
                    out[f"fp8_sites/{site['name']}/{key}"] = value
            for role, values in by_role.items():
                out[f"fp8/{role}/{name}"] = combine(values)
        return out

    def event(self, line):
        name = line.get("event", "unnamed")
        if name == "stats_sites":
            self.sites = line["sites"]
            return {}
        if name == "summary":
            self.summary = {key: value for key, value in line.items() if key not in ("kind", "event")}
            return {}
        if name == "start":
            self.summary = None  # a resumed run is not at its end
        self.counts[name] = self.counts.get(name, 0) + 1
        return {f"events/{name}": self.counts[name]}


class Export:
    """One W&B run after the other; the last one holds what counts."""

    def __init__(self, wandb, arguments, config):
        self.wandb, self.arguments, self.config = wandb, arguments, config
        self.run = None
        self.restart([])

    def restart(self, points):
        if self.run is not None:
            self.run.summary.update({"octet/superseded": True})
            self.run.finish()
        mode = {"mode": "offline"} if self.arguments.offline else {}
        name = self.arguments.name or self.arguments.run_dir.resolve().name
        self.run = self.wandb.init(project=self.arguments.project, name=name, group=name, config=self.config,
                                   dir=str(self.arguments.run_dir), **mode)
        for point in points:
            self.send(point)

    def send(self, point):
        self.run.log(point[1], step=point[0])

    def finish(self, summary):
        if summary:
            self.run.summary.update({f"octet/{key}": value for key, value in summary.items()})
        self.run.finish()


def whole_lines(path, begin):
    """The whole lines from a byte on, and the byte behind them. An unfinished line is read again next time: a resumed run removes or
    completes the one that its killed predecessor left."""
    with open(path, "rb") as file:
        file.seek(begin)
        text = file.read()
    text = text[:text.rfind(b"\n") + 1]
    return text.splitlines(), begin + len(text)


def take(history, text, path):
    line = parse(text, path)
    try:
        return history.add(line)
    except (KeyError, TypeError, AttributeError) as error:
        fail(f"{path}: a line lacks what its kind needs ({error!r}): {text[:80].decode(errors='replace')}")


def parse(text, path):
    try:
        line = json.loads(text)
        if not isinstance(line, dict):
            raise ValueError("no object")
        return line
    except ValueError as error:
        fail(f"{path}: a line is not JSON ({error}): {text[:80].decode(errors='replace')}")


def read_all(path, history):
    lines, end = whole_lines(path, 0)
    for text in lines:
        take(history, text, path)
    if end < path.stat().st_size:
        print(f"wandb_export: warning: {path}: the unfinished last line is left out", file=sys.stderr)


def follow(path, history, export, pause):
    """Until the run's summary; a reader may come before, during or after it."""
    end = 0
    while True:
        lines, end = whole_lines(path, end)
        for text in lines:
            points, void_from = take(history, text, path)
            if void_from is not None:
                export.restart(history.points)
            else:
                for point in points:
                    export.send(point)
        if history.summary is not None:
            return
        pause(POLL_S)


def read_config(run_dir):
    try:
        return json.loads((run_dir / "config.resolved.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fail(f"{run_dir / 'config.resolved.json'}: {error}; give a run directory of octet train")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", metavar="RUN", type=pathlib.Path, help="run directory of octet train")
    parser.add_argument("--project", default="octet", help="W&B project (default: octet)")
    parser.add_argument("--name", help="name and group of the W&B run (default: the directory's)")
    parser.add_argument("--offline", action="store_true", help="write W&B's files into the run directory, send nothing")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--sites", action="store_true", help="FP8 health of each quantization site, not only the worst of each role")
    arguments = parser.parse_args()
    path = arguments.run_dir / "metrics.jsonl"
    if not path.is_file():
        fail(f"{path} is not there; give a run directory of octet train")
    config = read_config(arguments.run_dir)
    try:
        import wandb
    except ImportError:
        fail("the Python package wandb is not installed here; `pip install wandb`, or run this script with a Python that has it")

    history = History(arguments.sites)
    if not arguments.follow:
        read_all(path, history)
    export = Export(wandb, arguments, config)
    if arguments.follow:
        try:
            follow(path, history, export, time.sleep)
        except KeyboardInterrupt:
            print("wandb_export: stopped; the run may go on", file=sys.stderr)
    else:
        for point in history.points:
            export.send(point)
    export.finish(history.summary)


if __name__ == "__main__":
    main()
