"""Synthetic runs for the report's tests and screenshots: deterministic loss curves, FP8 statistics, troubles and hostile names.

The files are those of the run directory's contract (docs/reference/compare.md); nothing is taken from the program.
"""

import json
import math
import pathlib
import random

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e&\"'"
MODULES = ("attn.qkv", "attn.out", "mlp.gate_up", "mlp.down")


def loss(step, gap_percent=0.0, noise=0.0):
    return (2.0 + 3.4 * math.exp(-step / 45) + 0.5 * math.exp(-step / 300) + noise) * (1 + gap_percent / 100)


def sites(layers):
    out = []
    for layer in range(layers):
        for module in MODULES:
            path = f"layers.{layer}.{module}"
            for role, images in (("x", ("row", "col")), ("w", ("both",)), ("dy", ("row", "col"))):
                for image in images:
                    name = f"{path}/{role}.{image}" if image != "both" else f"{path}/{role}"
                    out.append({"name": name, "module": path, "tensor": role, "role": role, "image": image, "format": "e5m2" if role == "dy" else "e4m3"})
    return out


def stats_line(step, steps, places, rng):
    """Underflow grows with depth in gradients, saturation has a burst in the down projections, weights hold still."""
    columns = {key: [] for key in ("elements", "amax", "scale_min", "scale_max", "underflow", "saturation", "sqnr_db", "cosine", "nonfinite")}
    share = step / steps
    for i, site in enumerate(places):
        layer = int(site["module"].split(".")[1])
        down, dy, w = "down" in site["module"], site["role"] == "dy", site["role"] == "w"
        underflow = (2e-5 if w else 3e-4) * (1 + 6 * layer * dy) * math.exp(rng.gauss(0, 0.25)) * (1 + 30 * share * dy)
        burst = down and site["role"] == "x" and 0.45 < share < 0.6
        saturation = rng.uniform(1e-4, 3e-3) if burst else (rng.uniform(1e-7, 3e-6) if dy and rng.random() < 0.3 else 0.0)
        sqnr = None if w and step == 0 else (31.5 if not dy else 25.0) - 2 * math.log10(1 + 2000 * underflow) - 5 * burst + rng.gauss(0, 0.25)
        columns["elements"].append(65536)
        columns["amax"].append((0.2 if w else 3 + 9 * share + 20 * burst) * (1e-3 if dy else 1) * math.exp(rng.gauss(0, 0.1)))
        columns["scale_min"].append(0.5)
        columns["scale_max"].append(2.0)
        columns["underflow"].append(underflow)
        columns["saturation"].append(saturation)
        columns["sqnr_db"].append(sqnr)
        columns["cosine"].append(None if sqnr is None else 1 - 10 ** (-sqnr / 10) / 2)
        columns["nonfinite"].append(3 if step == 90 and i == 4 else 0)
    return {"kind": "stats", "step": step, **columns}


def write_run(folder, recipe, seed=1, steps=200, gap=0.0, end_gap=None, layers=0, stats_interval=5, bad_steps=(), speed=9000.0, config=None, name=None, tokens_per_step=1024, noise=0.03):
    """One run directory; returns its path. gap moves towards end_gap; bad_steps are skipped with a non-finite loss."""
    path = pathlib.Path(folder) / (name or f"{recipe}-s{seed}")
    path.mkdir(parents=True)
    resolved = {"model": {"hidden_size": 128}, "data": {"seq_len": 256, "train": [{"path": "data/words"}]}, "batch": {"global": tokens_per_step // 256},
                "optim": {"lr": 5e-4}, "precision": {"recipe": recipe}, "run": {"seed": seed, "steps": steps}}
    for key, value in (config or {}).items():
        section, _, field = key.partition(".")
        resolved.setdefault(section, {})[field] = value
    (path / "config.resolved.json").write_text(json.dumps(resolved))
    shared, own = random.Random(seed), random.Random(f"{recipe} {seed}")  # seeds are paired: the same noise in every recipe
    places = sites(layers)
    lines = [{"kind": "event", "event": "stats_sites", "sites": places}] if layers else []
    for step in range(1, steps + 1):
        noise_now = shared.gauss(0, noise)
        share = step / steps
        now = gap if end_gap is None else gap + (end_gap - gap) * share
        bad = step in bad_steps
        value = loss(step, now + own.gauss(0, 0.05), noise_now)
        norm = 0.45 + 2.2 * math.exp(-step / 25) + abs(own.gauss(0, 0.06))
        rate = 5e-4 * min(1, step / 20) * (0.55 + 0.45 * math.cos(math.pi * share))
        rate_s = speed * (0.02 if step == 1 else 1 + own.gauss(0, 0.015))
        lines.append({"kind": "train", "step": step, "tokens": step * tokens_per_step, "loss": None if bad else value, "grad_norm": None if bad else norm, "lr": rate,
                      "tokens_per_s": rate_s, "step_ms": 1000 * tokens_per_step / rate_s, **({"skipped": True, "nonfinite": ["loss", "grad_norm"]} if bad else {})})
        if bad:
            lines.append({"kind": "event", "event": "nonfinite", "step": step, "tensor": "layers.1.mlp.down/dy", "elements": 12, "consecutive": 1})
        if layers and step % stats_interval == 0:
            lines.append(stats_line(step, steps, places, own))
        if step % max(1, steps // 8) == 0:
            lines.append({"kind": "valid", "step": step, "tokens": step * tokens_per_step, "loss": loss(step, now) + 0.04})
    elements = 0 if recipe == "bf16" else 4e6
    lines.append({"kind": "event", "event": "summary", "step": steps, "quantized": {"x": {"e4m3": elements}, "w": {"e4m3": elements / 2}, "dy": {"e5m2": elements}}})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def example(folder, layers=2, steps=200, hostile=True):
    """Three paired seeds of four recipes with statistics, one twin, a run with bad steps, a hostile name. Returns (runs, twins)."""
    runs = []
    for seed in (1, 2, 3):
        d = 0.02 * (seed - 2)
        runs.append(write_run(folder, "bf16", seed, steps))
        runs.append(write_run(folder, "blockwise", seed, steps, gap=0.4, end_gap=0.07 + d, layers=layers if seed == 1 else 0, speed=11800, config={"precision.wgrad": "fp8"}))
        runs.append(write_run(folder, "delayed", seed, steps, gap=0.5, end_gap=0.22 + 4 * d, speed=12400, layers=layers if seed == 1 else 0, bad_steps=(90, 91) if seed == 2 else ()))
        runs.append(write_run(folder, "harm_e2m1", seed, steps, gap=1.2, end_gap=3.4 + 3 * d, speed=12900))
    twins = [write_run(folder, "bf16", 1, steps, end_gap=0.03, name="twin-s1")]
    if hostile:
        runs.append(write_run(folder, HOSTILE, 1, steps, end_gap=0.3, name=HOSTILE.replace("/", ""), config={"data.train": HOSTILE, "optim.note": "</title>\u2028"}))
    return runs, twins
