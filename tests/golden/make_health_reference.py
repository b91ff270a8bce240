"""Writes health_reference.safetensors: tensors of several distributions, and their health statistics by NumPy for several quantizations.

    .venv/bin/python tests/golden/make_health_reference.py

Inputs are stored, not generated again, so the file does not depend on a random generator's version. tests/unit/train/health_test.cpp reads it.
"""
import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
from octet_numpy import health, quantize  # noqa: E402
from octet_numpy.quantize import QuantSpec  # noqa: E402

ROWS, COLUMNS = 48, 144


def tensors():
    rng = np.random.default_rng(11)
    normal = rng.standard_normal((ROWS, COLUMNS))
    out = {"normal": normal, "heavy": normal * np.exp(2 * rng.standard_normal((ROWS, COLUMNS))),
           "extreme": normal * np.exp(4 * rng.standard_normal((ROWS, COLUMNS)))}
    hard = rng.standard_normal((ROWS, COLUMNS))
    hard[0] = 0                                                # blocks of zeros
    hard[1] = -0.0
    hard[2] *= 1e-40                                           # FP32 subnormals
    hard[3] *= 1e38
    hard[4] = np.resize([448.0, 464.0, 464.1, 480.0, 2.0**-9, 2.0**-10, 2.0**-11, -2.0**-10], COLUMNS)   # ends, ties
    hard[5, 7] = 1e30                                          # one outlier hides its row
    out["adversarial"] = hard
    bad = hard.copy()
    bad[6, 3], bad[7, 140], bad[8, :] = np.nan, np.inf, -np.inf
    out["nonfinite"] = bad
    out["zeros"] = np.zeros((ROWS, COLUMNS))
    out["exact"] = np.resize([1.0, -2.0, 0.5, 0.0], (ROWS, COLUMNS))
    with np.errstate(over="ignore"):
        return {name: x.astype(np.float32) for name, x in out.items()}


# name, spec, column image, stored scale
CASES = [("tensor e4m3", QuantSpec("e4m3", (0, 0)), False, None), ("tensor e5m2", QuantSpec("e5m2", (0, 0)), False, None),
         ("stored, saturating", QuantSpec("e4m3", (0, 0), scaling="delayed"), False, 300.0),
         ("stored, underflowing", QuantSpec("e5m2", (0, 0), scaling="static"), False, 1e-4),
         ("rowwise", QuantSpec("e4m3", (1, 0), scale="pow2", amax_epsilon=float(np.float32(1e-12)), fp64_divide=True), False, None),
         ("1x128", QuantSpec("e4m3", (1, 128), scale="pow2"), False, None), ("128x128", QuantSpec("e4m3", (128, 128), scale="pow2"), False, None),
         ("mx row", QuantSpec("e4m3", (1, 32), scale="e8m0"), False, None), ("mx column", QuantSpec("e4m3", (1, 32), scale="e8m0"), True, None),
         ("mxfp6", QuantSpec("e3m2", (1, 32), scale="e8m0"), False, None), ("nvfp4", QuantSpec("e2m1", (1, 16), scale="ue4m3"), False, None),
         ("nvfp4 hadamard", QuantSpec("e2m1", (1, 16), scale="ue4m3", hadamard=True), True, None)]


def main():
    inputs, expected = tensors(), []
    for tensor, x in inputs.items():
        for name, spec, column, stored in CASES:
            matrix = x.T if column else x
            scale = None if stored is None else np.float32(stored)
            codes, scale_inv = quantize.quantize(matrix, spec, scale)
            figures = health.statistics(health.image_sums(matrix, spec, codes, scale_inv, scale))
            expected.append({"tensor": tensor, "case": name, "column": column, "stored_scale": stored, "format": spec.format, "block": list(spec.block),
                             "scale": spec.scale, "fp64_divide": spec.fp64_divide, "amax_epsilon": spec.amax_epsilon, "hadamard": spec.hadamard, "figures": figures})
    header, data = {"__metadata__": {"expected": json.dumps(expected)}}, b""
    for name, x in inputs.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (HERE / "health_reference.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    print(f"{len(expected)} cases of {len(inputs)} tensors")


if __name__ == "__main__":
    main()
