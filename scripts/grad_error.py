#!/usr/bin/env python3
"""Table of gradient error by recipe and module, from dumps of the same step with the same weights and batch.

Against the dump of an fp32 run: relative L2 error ||dw - dw_ref|| / ||dw_ref|| and cosine of each weight gradient. It holds everything the
recipe does to the step: forward, backward and the weight-gradient GEMM itself.
With --emulate also the error of that GEMM alone, ||dw - dw_hp|| / ||dw_hp|| with dw_hp = dy^T x from the high-precision tensors of the
same dump, beside the same number from a NumPy emulation of the recipe; the two must agree to --emulate-tolerance.
Exit codes: 0 done, 1 measured and emulated error disagree, 2 usage, 10 the dumps do not belong together,
11 unreadable, 12 a table cannot be written.
"""
import argparse
import json
import sys

import numpy as np

from octet_numpy import formats, quantize
from octet_numpy.dump import Dump, parts_of
from octet_numpy.safetensors import FormatError

EXIT_DISAGREE, EXIT_MISMATCH, EXIT_UNREADABLE, EXIT_CANNOT_WRITE = 1, 10, 11, 12
FIRST_LINEAR = "layers.0.attn.qkv"
SAME_BATCH_ERROR = 0.1  # rounding of the first layer's input stays below a hundredth; another batch differs by about 1.4


class MismatchError(Exception):
    """Two dumps are not of the same weights and batch."""


def weights_of(dump):
    return [(module, part) for module in dump.specs for part in parts_of(module)]


def relative_error(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b)) if np.any(b) else float(np.linalg.norm(a))


def cosine(a, b):
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / norms if norms > 0 else float("nan")


def need(dump, name):
    if not dump.has(name):
        raise FormatError(f"{dump.path}: no tensor '{name}'")
    return dump.values(name).astype(np.float64)


def check_same(reference, dump):
    """Throws MismatchError unless both dumps have the same step, modules, weights (in BF16) and batch."""
    for what in ("step", "micro_batches"):
        if getattr(reference, what) != getattr(dump, what):
            raise MismatchError(f"{dump.path}: {what} {getattr(dump, what)}, but {getattr(reference, what)} in {reference.path}")
    if weights_of(reference) != weights_of(dump):
        raise MismatchError(f"{dump.path}: other modules than {reference.path} (write both with the same --dump glob)")
    for module, part in weights_of(dump):
        name = f"{module}/{part}/w"
        ours, theirs = (formats.bf16_bits(need(d, name)) for d in (dump, reference))
        if ours.shape != theirs.shape or np.any(ours != theirs):
            raise MismatchError(f"{dump.path}: weights '{name}' differ from {reference.path} (dump the same step of runs with equal weights)")
    for m in range(dump.micro_batches):
        name = f"mb{m}/{FIRST_LINEAR}/x"
        if FIRST_LINEAR in dump.specs:
            ours, theirs = need(dump, name), need(reference, name)
            if ours.shape != theirs.shape or relative_error(ours, theirs) > SAME_BATCH_ERROR:
                raise MismatchError(f"{dump.path}: '{name}' differs from {reference.path}: not the same batch")


def against_reference(name, dump, reference):
    """Rows of relative error and cosine, one a weight and one over all of them."""
    rows, ours_all, theirs_all = [], [], []
    for module, part in weights_of(dump):
        ours, theirs = (need(d, f"{module}/{part}/dw") for d in (dump, reference))
        if ours.shape != theirs.shape:
            raise MismatchError(f"{dump.path}: shape of '{module}/{part}/dw' differs from {reference.path}")
        rows.append({"recipe": name, "module": f"{module}/{part}", "rel_error": relative_error(ours, theirs), "cosine": cosine(ours, theirs)})
        ours_all.append(ours.ravel())
        theirs_all.append(theirs.ravel())
    if rows:
        ours, theirs = np.concatenate(ours_all), np.concatenate(theirs_all)
        rows.append({"recipe": name, "module": "all", "rel_error": relative_error(ours, theirs), "cosine": cosine(ours, theirs)})
    return rows


def local_errors(dump, module, part, rng):
    """(measured, emulated) relative error of one weight-gradient GEMM against dy^T x in high precision."""
    specs = dump.specs[module]
    exact, emulated = 0.0, 0.0
    for m in range(dump.micro_batches):
        dy, x = need(dump, f"mb{m}/{module}/{part}/dy").T, need(dump, f"mb{m}/{module}/x").T
        if dy.shape[1] != x.shape[1]:
            raise FormatError(f"{dump.path}: dy and x of '{module}/{part}' in micro-batch {m} have different token counts")
        exact = exact + dy @ x.T
        dy_hat = emulate(dump, dy, specs["dy.col"], f"{module}/{part}/dy", rng)
        emulated = emulated + dy_hat @ emulate(dump, x, specs["x.col"], f"{module}/x", rng).T
    stored = need(dump, f"{module}/{part}/dw")
    if stored.shape != exact.shape:
        raise FormatError(f"{dump.path}: '{module}/{part}/dw' is {list(stored.shape)}, expected {list(exact.shape)}")
    return relative_error(stored, exact), relative_error(emulated, exact)


def emulate(dump, x, spec, key, rng):
    if spec is None:
        return x
    return quantize.dequantize(*quantize.quantize(x, spec, dump.delayed_scale(key, spec), rng), spec)


def add_emulation(rows, dump, tolerance):
    """Adds local_error, emulated and agrees to the rows of one dump. Returns whether all agree."""
    rng = np.random.default_rng(0)
    every = True
    for row, (module, part) in zip(rows, weights_of(dump)):
        if f"{module}/{part}" in dump.shared_grads:
            continue
        measured, emulated = local_errors(dump, module, part, rng)
        agrees = bool(abs(measured - emulated) <= tolerance)
        row.update(local_error=measured, emulated=emulated, agrees=agrees)
        every = every and agrees
    return every


COLUMNS = (("recipe", str), ("module", str), ("rel_error", "{:.5f}".format), ("cosine", "{:.7f}".format), ("local_error", "{:.5f}".format),
           ("emulated", "{:.5f}".format), ("agrees", lambda v: "yes" if v else "NO"))


def table_cells(rows):
    columns = [c for c in COLUMNS if any(c[0] in row for row in rows)]
    return [[name for name, _ in columns]] + [[show(row[name]) if name in row else "-" for name, show in columns] for row in rows]


def aligned(rows):
    cells = table_cells(rows)
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "".join("  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip() + "\n" for line in cells)


def markdown(rows):
    cells = table_cells(rows)
    cells.insert(1, ["---", "---"] + ["---:"] * (len(cells[0]) - 2))
    return "".join("| " + " | ".join(line) + " |\n" for line in cells)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", required=True, metavar="FP32_DUMP", help="dump of the fp32 run")
    parser.add_argument("--dump", required=True, action="append", nargs="+", metavar="NAME=DUMP", help="a named dump; may be repeated")
    parser.add_argument("--emulate", action="store_true", help="compare the local error of each GEMM with its NumPy emulation")
    parser.add_argument("--emulate-tolerance", type=float, default=1e-3, metavar="ABS", help="largest difference of the two (default 1e-3)")
    parser.add_argument("--json", metavar="OUT", help="also write the table as JSON")
    parser.add_argument("--markdown", metavar="OUT", help="also write the table in Markdown")
    options = parser.parse_args(arguments)
    options.named = []
    for text in (t for group in options.dump for t in group):
        name, equals, path = text.partition("=")
        if not name or not equals or not path:
            parser.error(f"--dump {text}: expected NAME=DUMP")
        options.named.append((name, path))
    return options


def main(arguments, out=sys.stdout, err=sys.stderr):
    options = parse(arguments)
    rows, agree = [], True
    try:
        reference = Dump(options.reference)
        if reference.recipe != "fp32":
            raise MismatchError(f"{reference.path}: recipe is {reference.recipe}; the reference must be a dump of an fp32 run")
        if not weights_of(reference):
            raise MismatchError(f"{reference.path}: holds no module")
        for name, path in options.named:
            dump = Dump(path)
            check_same(reference, dump)
            new = against_reference(name, dump, reference)
            if options.emulate:
                agree = add_emulation(new, dump, options.emulate_tolerance) and agree
            rows += new
    except MismatchError as e:
        err.write(f"grad_error: {e}\n")
        return EXIT_MISMATCH
    except (FormatError, OSError) as e:
        err.write(f"grad_error: {e}\n")
        return EXIT_UNREADABLE
    out.write(aligned(rows))
    try:
        for path, text in ((options.json, json.dumps({"reference": options.reference, "rows": rows}, indent=1)), (options.markdown, markdown(rows))):
            if path:
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
    except OSError as e:
        err.write(f"grad_error: cannot write the table: {e}\n")
        return EXIT_CANNOT_WRITE
    if not agree:
        err.write(f"grad_error: the emulated error differs from the measured one by more than {options.emulate_tolerance} (rows marked NO)\n")
    return 0 if agree else EXIT_DISAGREE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
