#!/usr/bin/env python3
"""Check a dump of `octet train --dump STEP:GLOB` against an independent NumPy implementation of every recipe.

Bit for bit: codes and scales of each quantized image, made again from the high-precision tensor beside it. Within a rounding bound: the
results of the three GEMMs, made again in double precision from the dump's own images,
  y = x_hat w_hat^T      dx = sum over parts of dy_hat w_hat      dw = sum over micro-batches of dy_hat^T x_hat,
where an operand without an image enters in high precision. Exit codes: 0 all as it should be, 1 something is not, 2 usage, 11 unreadable,
12 the JSON table cannot be written.
"""
import argparse
import json
import math
import sys

import numpy as np

from octet_numpy import formats, quantize
from octet_numpy.dump import Dump, parts_of
from octet_numpy.safetensors import FormatError

EXIT_WRONG, EXIT_UNREADABLE, EXIT_CANNOT_WRITE = 1, 11, 12
UNQUANTIZED_RECIPES = ("fp32", "bf16")
BF16_ROUNDOFF = 2.0**-8
TENSOR_CORE_TOLERANCE = 2e-3


class Report:
    """Rows of the printed table; a row is wrong when it has a mismatch or a problem."""

    def __init__(self):
        self.rows = []
        self.images = 0

    def add(self, module, tensor, elements=0, codes=0, scales=0, max_err=0.0, problem=""):
        self.rows.append({"module": module, "tensor": tensor, "elements": elements, "mismatching_codes": int(codes),
                          "mismatching_scales": int(scales), "max_err": float(max_err), "problem": problem,
                          "ok": not (codes or scales or problem)})

    @property
    def ok(self):
        return all(row["ok"] for row in self.rows)

    def print(self, out):
        head = ("module", "tensor", "elements", "bad codes", "bad scales", "max err", "")
        lines = [head] + [(r["module"], r["tensor"], str(r["elements"]), str(r["mismatching_codes"]), str(r["mismatching_scales"]),
                           f"{r['max_err']:.3g}", "ok" if r["ok"] else f"WRONG {r['problem']}".strip()) for r in self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(6)]
        for line in lines:
            cells = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
            out.write("  ".join(cells + [line[6]]).rstrip() + "\n")


class Checker:
    """Checks the modules of one dump. gemm_tolerance: accumulation error allowed, as a share of sum |a||b|; None: that of an FP32 sum."""

    def __init__(self, dump, gemm_tolerance=None):
        self.dump = dump
        self.gemm_tolerance = TENSOR_CORE_TOLERANCE if gemm_tolerance is None and dump.gemm in ("exact", "cublaslt") else gemm_tolerance
        self.report = Report()
        self.expected = set()

    def run(self):
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and Inf of a diverged run are compared, not computed with
            for module in self.dump.specs:
                self._module(module)
        self._unexpected()
        if self.report.images == 0 and self.dump.recipe not in UNQUANTIZED_RECIPES:
            self.report.add("*", "images", problem=f"no image although recipe {self.dump.recipe} quantizes (does the glob match a quantized module?)")
        if not self.dump.specs:
            self.report.add("*", "specs", problem="the dump holds no module")
        return self.report

    def _unexpected(self):
        for name in self.dump.file:
            if name.endswith((".data", ".scale_inv")) and name not in self.expected:
                self.report.add("*", name, problem="unexpected: no spec asks for this image")

    def _module(self, module):
        specs = self.dump.specs[module]
        weights = {}
        for part in parts_of(module):
            base = f"{module}/{part}/w"
            weights[part] = self._operand(module, part + "/w", base, base, specs["w.row"], specs["w.col"])
        gradients = {part: [] for part in weights}
        for m in range(self.dump.micro_batches):
            x = self._operand(module, f"mb{m}/x", f"mb{m}/{module}/x", f"{module}/x", specs["x.row"], specs["x.col"])
            outputs = {}
            for part, w in weights.items():
                base = f"mb{m}/{module}/{part}"
                dy = self._operand(module, f"mb{m}/{part}/dy", base + "/dy", f"{module}/{part}/dy", specs["dy.row"], specs["dy.col"])
                self._gemm(module, f"mb{m}/{part}/y", base + "/y", [(x["row"], w["row"])], self._bias(module, part))
                outputs[part] = dy["row"]
                gradients[part].append((dy["col"], x["col"]))
            self._gemm(module, f"mb{m}/dx", f"mb{m}/{module}/dx", [(outputs[part], w["col"]) for part, w in weights.items()])
        for part, terms in gradients.items():
            self._weight_gradient(module, part, terms)

    def _weight_gradient(self, module, part, terms):
        name = f"{module}/{part}/dw"
        if f"{module}/{part}" in self.dump.shared_grads:
            self.expected.add(name)
            self.report.add(module, part + "/dw (shared with the embedding: not checked)")
            return
        self._gemm(module, part + "/dw", name, terms)

    def _matrix(self, module, label, name):
        """Values of a required high-precision matrix, None (and a wrong row) when it is missing."""
        self.expected.add(name)
        if not self.dump.has(name):
            self.report.add(module, label, problem="missing")
            return None
        return self.dump.values(name)

    def _operand(self, module, label, base, key, row_spec, col_spec):
        """Checks both images of a tensor. Returns {"row", "col"}: what the GEMMs must have read, contraction last; None where unknown."""
        x = self._matrix(module, label, base)
        if x is None:
            return {"row": None, "col": None}
        result = {"row": x.astype(np.float64), "col": x.astype(np.float64).T}
        images = {}
        for side, spec, matrix in (("row", row_spec, x), ("col", col_spec, x.T)):
            if spec is not None:
                images[side] = self._image(module, f"{label}.{side}", f"{base}.{side}", key, spec, matrix)
                result[side] = None if images[side] is None else quantize.dequantize(*images[side], spec)
        if row_spec is not None and row_spec == col_spec and row_spec.square and not row_spec.hadamard and row_spec.rounding == "nearest" and None not in images.values():
            (row_codes, row_grid), (col_codes, col_grid) = images["row"], images["col"]
            codes, scales = np.sum(row_codes.T != col_codes), differing(row_grid.T, col_grid)
            self.report.add(module, label + ".col = .row^T", x.size, codes, scales)
        return result

    def _image(self, module, label, base, key, spec, matrix):
        """Compares one image with our own quantization. Returns the stored (codes, scale_inv), None when they cannot be used."""
        names = (base + ".data", base + ".scale_inv")
        self.expected.update(names)
        missing = [n for n in names if not self.dump.has(n)]
        if missing:
            self.report.add(module, label, problem=f"missing {missing[0]}")
            return None
        codes, grid = self.dump.image(base, spec)
        want = (matrix.shape, quantize.grid_shape(matrix.shape, spec.block))
        if (codes.shape, grid.shape) != want:
            self.report.add(module, label, problem=f"shapes {codes.shape} and {grid.shape}, expected {want[0]} and {want[1]}")
            return None
        scale = self.dump.delayed_scale(key, spec)
        values, our_grid = quantize.scaled(matrix, spec, scale)
        if spec.rounding == "stochastic":
            bad, max_err = ~formats.brackets(codes, values, spec.format), 0.0
        else:
            ours = formats.encode(values, spec.format)
            bad = ours != codes
            max_err = relative_to_largest(quantize.dequantize(codes, grid, spec), quantize.dequantize(ours, our_grid, spec))
        problem = "" if scale is None or scale > 0 else f"stored scale is {scale}"
        self.report.add(module, label, codes.size, np.sum(bad), differing(grid, our_grid), max_err, problem)
        self.report.images += 1
        return codes, grid

    def _bias(self, module, part):
        """The projection's bias as a row, 0 without one."""
        name = f"{module}/{part}/bias"
        if not self.dump.has(name):
            return 0.0
        self.expected.add(name)
        return self.dump.values(name).astype(np.float64).reshape(1, -1)

    def _gemm(self, module, label, name, pairs, bias=0.0):
        """Compares a stored GEMM result with bias + the sum of a b^T over pairs of operands."""
        stored = self._matrix(module, label, name)
        if stored is None or any(a is None or b is None for a, b in pairs):
            if stored is not None:
                self.report.add(module, label, problem="an operand is missing")
            return
        shape = (pairs[0][0].shape[0], pairs[0][1].shape[0])
        if stored.shape != shape or any(a.shape[1] != b.shape[1] or (a.shape[0], b.shape[0]) != shape for a, b in pairs):
            operands = " + ".join(f"{list(a.shape)} . {list(b.shape)}^T" for a, b in pairs)
            self.report.add(module, label, problem=f"shape {list(stored.shape)} does not fit operands {operands}")
            return
        result, partial, accumulated = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for a, b in pairs:
            result += a @ b.T
            partial += np.abs(result)
            accumulated += np.abs(a) @ np.abs(b).T
        result += bias
        partial += np.abs(bias)
        contraction = sum(a.shape[1] for a, _ in pairs)
        share = self.gemm_tolerance if self.gemm_tolerance is not None else max(2.0**-20, 4.0 * math.sqrt(contraction) * 2.0**-24)
        # Results of several products may be rounded to BF16 after each of them.
        rounding = BF16_ROUNDOFF * partial if self.dump.dtype(name) == "BF16" else 2.0**-23 * np.abs(result)
        excess = ~(np.abs(stored - result) <= rounding + share * accumulated + 2.0**-126)
        excess &= ~(np.isnan(stored) & np.isnan(result))
        problem = f"{int(excess.sum())} elements beyond the rounding bound" if excess.any() else ""
        self.report.add(module, label, stored.size, max_err=relative_to_largest(stored, result), problem=problem)


def differing(a, b):
    """Number of float32 elements whose bits differ, all NaN counted equal; the larger size when the shapes differ."""
    if a.shape != b.shape:
        return max(a.size, b.size)
    same = np.ascontiguousarray(a).view(np.uint32) == np.ascontiguousarray(b).view(np.uint32)
    return int(np.sum(~(same | (np.isnan(a) & np.isnan(b)))))


def relative_to_largest(a, b):
    """max |a - b| / max |b| over finite elements, 0 for equal arrays."""
    finite = np.isfinite(a) & np.isfinite(b)
    largest = np.max(np.abs(b), initial=0.0, where=finite)
    worst = np.max(np.abs(np.where(finite, a, 0.0) - np.where(finite, b, 0.0)), initial=0.0)
    return worst / largest if largest > 0 else worst


def main(arguments, out=sys.stdout, err=sys.stderr):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", metavar="DUMP.safetensors")
    parser.add_argument("--json", metavar="OUT", help="also write the table as JSON")
    parser.add_argument("--gemm-tolerance", type=float, metavar="EPS",
                        help="accumulation error allowed, as a share of sum |a||b| (default: that of an FP32 sum; 2e-3 for a dump of run.cpu_gemm exact, which models a tensor core)")
    options = parser.parse_args(arguments)
    try:
        dump = Dump(options.dump)
        report = Checker(dump, options.gemm_tolerance).run()
    except (FormatError, OSError) as e:
        err.write(f"check_dump: {e}\n")
        return EXIT_UNREADABLE
    report.print(out)
    wrong = sum(not row["ok"] for row in report.rows)
    out.write(f"\n{options.dump}: step {dump.step}, recipe {dump.recipe}, {report.images} images checked, "
              f"{len(report.rows)} rows, {wrong} wrong\n")
    if options.json:
        result = {"dump": options.dump, "step": dump.step, "recipe": dump.recipe, "images": report.images, "ok": report.ok, "rows": report.rows}
        try:
            with open(options.json, "w", encoding="utf-8") as f:
                json.dump(result, f, indent=1)
        except OSError as e:
            err.write(f"check_dump: cannot write the JSON table: {e}\n")
            return EXIT_CANNOT_WRITE
    return 0 if report.ok else EXIT_WRONG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
