#!/usr/bin/env python3
"""Error of the weight-gradient GEMM by how its operands are scaled, emulated from one dump: ||dw_q - dw|| / ||dw|| with dw = dy^T x of the dump's high-precision x and dy.

The dump must be of a bf16 or fp32 run, whose x and dy no recipe has touched. A micro-batch is what shares a scale over all tokens; --tokens cuts the dump's into
others. Outliers are put in by hand: --outlier-tokens N multiplies x, dy or both at N random tokens by --outlier-factor, --outlier-channels N at N random features of each.
With outlier tokens the columns `others` are the error of what the other tokens add, relative to that: an outlier's own large share would hide it.
Columns: mean over the weights of a kind of module. Underflow: share of the elements of x and dy that are not zero and whose code is.
Exit codes: 0 done, 2 usage, 11 unreadable, 12 a table cannot be written.
"""
import argparse
import json
import math
import sys

import numpy as np

from grad_error import need
from octet_numpy.dump import Dump, parts_of
from octet_numpy.quantize import QuantSpec, dequantize, quantize
from octet_numpy.safetensors import FormatError

EXIT_UNREADABLE, EXIT_CANNOT_WRITE = 11, 12

BLOCKS, ROWS, TENSOR = (1, 128), (1, 0), (0, 0)
# Name: (dy, x), as operands with the tokens last. "1x128 pow2" is what recipe blockwise has, "channel pow2" blockwise_with_gw_rowwise, "tensor fp32, dy e5m2" tensorwise.
VARIANTS = {
    "1x128 fp32": (QuantSpec("e4m3", BLOCKS), QuantSpec("e4m3", BLOCKS)),
    "1x128 pow2": (QuantSpec("e4m3", BLOCKS, "pow2"), QuantSpec("e4m3", BLOCKS, "pow2")),
    "channel pow2": (QuantSpec("e4m3", ROWS, "pow2"), QuantSpec("e4m3", ROWS, "pow2")),
    "channel fp32": (QuantSpec("e4m3", ROWS), QuantSpec("e4m3", ROWS)),
    "dy channel fp32, x 1x128 fp32": (QuantSpec("e4m3", ROWS), QuantSpec("e4m3", BLOCKS)),
    "dy 1x128 fp32, x channel fp32": (QuantSpec("e4m3", BLOCKS), QuantSpec("e4m3", ROWS)),
    "channel fp32, dy e5m2": (QuantSpec("e5m2", ROWS), QuantSpec("e4m3", ROWS)),
    "tensor fp32": (QuantSpec("e4m3", TENSOR), QuantSpec("e4m3", TENSOR)),
    "tensor fp32, dy e5m2": (QuantSpec("e5m2", TENSOR), QuantSpec("e4m3", TENSOR)),
}


class Outliers:
    """Tokens and channels that are multiplied by a factor; the same ones for every weight of a dump with as many of them."""

    def __init__(self, tokens, channels, factor, roles, seed):
        self.tokens, self.channels, self.factor, self.roles, self.seed = tokens, channels, factor, roles, seed

    def token_mask(self, count):
        mask = np.zeros(count, dtype=bool)
        mask[np.random.default_rng(self.seed).permutation(count)[: self.tokens]] = True
        return mask

    def put_in(self, values, role):
        """values [features, tokens] -> a changed copy."""
        out = np.array(values, dtype=np.float32)
        if role in self.roles:
            out[:, self.token_mask(values.shape[1])] *= np.float32(self.factor)
            out[np.random.default_rng(self.seed + 1).permutation(values.shape[0])[: self.channels]] *= np.float32(self.factor)
        return out


def micro_batches(dump, name, tokens):
    """[features, tokens] of each micro-batch, or of the dump's tokens cut into pieces of `tokens`; what does not fill one is left out."""
    parts = [need(dump, name.format(m)).T for m in range(dump.micro_batches)]
    if not tokens:
        return parts
    whole = np.concatenate(parts, axis=1)
    if whole.shape[1] < tokens:
        raise FormatError(f"{dump.path}: {whole.shape[1]} tokens, fewer than --tokens {tokens}")
    return [whole[:, at : at + tokens] for at in range(0, whole.shape[1] - tokens + 1, tokens)]


def images_of(batches, role, outliers, cache):
    """Values and, by spec, quantized values of an operand's micro-batches; `cache` keeps them for the next product that reads it."""
    values = [outliers.put_in(b, role) for b in batches]

    def quantized(spec):
        if spec not in cache:
            cache[spec] = [quantize(v, spec) for v in values]
        return [dequantize(*image, spec) for image in cache[spec]]

    def underflow(spec):
        quantized(spec)
        zero = sum(int(np.sum((v != 0) & ((codes & 0x7F) == 0))) for v, (codes, _) in zip(values, cache[spec]))
        return zero / max(1, sum(int(np.sum(v != 0)) for v in values))

    return [v.astype(np.float64) for v in values], quantized, underflow


def relative(difference, reference):
    norm = float(np.linalg.norm(reference))
    return float(np.linalg.norm(difference)) / norm if norm > 0 else float("nan")


def errors_of_weight(x, dy, outliers):
    """{variant: {error, others, underflow_x, underflow_dy}} of one weight. x, dy: what images_of() returns."""
    (x_values, x_quantized, x_underflow), (dy_values, dy_quantized, dy_underflow) = x, dy
    ordinary = [~outliers.token_mask(v.shape[1]) for v in x_values]
    exact = sum(b @ a.T for a, b in zip(x_values, dy_values))
    exact_others = sum(b[:, keep] @ a[:, keep].T for a, b, keep in zip(x_values, dy_values, ordinary)) if outliers.tokens else None
    out = {}
    for name, (dy_spec, x_spec) in VARIANTS.items():
        pairs = list(zip(x_quantized(x_spec), dy_quantized(dy_spec)))
        out[name] = {"error": relative(sum(b @ a.T for a, b in pairs) - exact, exact)}
        if outliers.tokens:
            out[name]["others"] = relative(sum(b[:, keep] @ a[:, keep].T for (a, b), keep in zip(pairs, ordinary)) - exact_others, exact_others)
        out[name].update(underflow_x=x_underflow(x_spec), underflow_dy=dy_underflow(dy_spec))
    return out


def table_of(dump, tokens, outliers):
    """Rows of variant, and by kind of module the means of the figures."""
    by_kind = {}
    for module in dump.specs:
        kind, x_cache = module.rpartition("attn." if "attn." in module else "mlp.")[2], {}
        batches = micro_batches(dump, f"mb{{}}/{module}/x", tokens)
        if outliers.tokens >= min(b.shape[1] for b in batches):
            raise FormatError(f"{dump.path}: --outlier-tokens {outliers.tokens}, but a micro-batch has {min(b.shape[1] for b in batches)} tokens, of which some must stay")
        x = images_of(batches, "x", outliers, x_cache)
        for part in parts_of(module):
            dy = images_of(micro_batches(dump, f"mb{{}}/{module}/{part}/dy", tokens), "dy", outliers, {})
            by_kind.setdefault(kind, []).append(errors_of_weight(x, dy, outliers))
    rows = []
    for name in VARIANTS:
        row = {"variant": name}
        for figure in ("error", "others"):
            for kind, weights in by_kind.items():
                if figure in weights[0][name]:
                    row[f"{figure} {kind}"] = float(np.mean([w[name][figure] for w in weights]))
        for figure in ("underflow_x", "underflow_dy"):
            row[figure] = float(np.mean([w[name][figure] for weights in by_kind.values() for w in weights]))
        rows.append(row)
    return rows


def markdown(rows):
    """Figures in percent."""
    names = list(rows[0])
    lines = [names, ["---"] + ["---:"] * (len(names) - 1)]
    lines += [[row["variant"]] + [f"{100 * row[n]:.2f}" for n in names[1:]] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def count(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def finite(text):
    value = float(text)
    if not math.isfinite(np.float32(value)):
        raise argparse.ArgumentTypeError("must be a finite FP32 number")
    return value


def main(arguments, out=sys.stdout, err=sys.stderr):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", help="octet train --dump of a bf16 or fp32 run")
    parser.add_argument("--tokens", type=count, default=0, metavar="N", help="tokens of a micro-batch (default: the dump's)")
    parser.add_argument("--outlier-tokens", type=count, default=0, metavar="N", help="tokens of a micro-batch that are multiplied")
    parser.add_argument("--outlier-channels", type=count, default=0, metavar="N", help="features of each operand that are multiplied")
    parser.add_argument("--outlier-factor", type=finite, default=100.0, metavar="F", help="by what (default 100)")
    parser.add_argument("--outlier-of", choices=("x", "dy", "both"), default="both", help="which operands (default both)")
    parser.add_argument("--seed", type=count, default=0, help="of the choice of tokens and channels")
    parser.add_argument("--json", metavar="OUT", help="also write the figures as JSON, as fractions")
    options = parser.parse_args(arguments)
    roles = ("x", "dy") if options.outlier_of == "both" else (options.outlier_of,)
    outliers = Outliers(options.outlier_tokens, options.outlier_channels, options.outlier_factor, roles, options.seed)
    try:
        dump = Dump(options.dump)
        if not dump.specs:
            raise FormatError(f"{dump.path}: holds no module")
        if dump.recipe not in ("bf16", "fp32"):
            raise FormatError(f"{dump.path}: a dump of recipe '{dump.recipe}', whose x and dy come from quantized products (dump a bf16 or fp32 run)")
        rows = table_of(dump, options.tokens, outliers)
    except (FormatError, OSError) as e:
        err.write(f"wgrad_error: {e}\n")
        return EXIT_UNREADABLE
    out.write(markdown(rows))
    if options.json:
        try:
            with open(options.json, "w", encoding="utf-8") as f:
                json.dump(rows, f, indent=1)
        except OSError as e:
            err.write(f"wgrad_error: cannot write the table: {e}\n")
            return EXIT_CANNOT_WRITE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
