"""Builds dumps as `octet train --dump` writes them, in memory, for the tests of the dump scripts."""
import json

import numpy as np

import paths  # noqa: F401
from octet_numpy import formats, quantize, safetensors
from octet_numpy.dump import IMAGES, parts_of

FLT_MAX = 3.4028234663852886e38
BF16_MAX = 3.3895313892515355e38


def spec(fmt, block, **options):
    return {"format": fmt, "block": list(block), "scale": "fp32", "scaling": "current", "rounding": "nearest", "margin": 0,
            "amax_epsilon": 0.0, "overflow_scale": FLT_MAX, "fp64_divide": False, **options}


def six(x, w, dy, **changes):
    result = {"x.row": x, "x.col": x, "w.row": w, "w.col": w, "dy.row": dy, "dy.col": dy}
    result.update({name.replace("_", "."): value for name, value in changes.items()})
    return result


def recipes():
    """Name -> the six specs of a module."""
    blockwise = {"scale": "pow2", "overflow_scale": BF16_MAX}
    row = spec("e4m3", (1, 0), scale="pow2", amax_epsilon=1e-12, fp64_divide=True)
    line, tile, mx = spec("e4m3", (1, 16), **blockwise), spec("e4m3", (16, 16), **blockwise), spec("e4m3", (1, 8), scale="e8m0")
    tensor, tensor_dy = spec("e4m3", (0, 0)), spec("e5m2", (0, 0))
    delayed, delayed_dy = spec("e4m3", (0, 0), scaling="delayed"), spec("e5m2", (0, 0), scaling="delayed")
    return {
        "bf16": six(None, None, None),
        "tensorwise": six(tensor, tensor, tensor_dy),
        "delayed": six(delayed, delayed, delayed_dy),
        "rowwise": six(row, row, row),
        "blockwise": six(line, tile, line),
        "mxfp8": six(mx, mx, mx),
        "custom": six(spec("e2m3", (1, 16)), spec("e3m2", (4, 16)), spec("e2m1", (1, 8), scale="e8m0"), x_col=None, dy_col=None),
        "stochastic": six(tensor, tensor, spec("e5m2", (1, 0), rounding="stochastic")),
    }


class Builder:
    """One step of some modules. tensors: name -> (dtype, array) as safetensors.write takes; meta: the dump metadata."""

    def __init__(self, recipe, modules=("layers.0.attn.qkv", "layers.1.mlp.down"), micro_batches=2, precise=False, seed=0):
        self.rng = np.random.default_rng(seed)
        self.quantizer_rng = np.random.default_rng(seed + 1)  # of its own, so that every recipe gets the same values
        self.precise = precise  # everything in FP32, as the recipe fp32 has it
        self.tensors = {}
        self.meta = {"step": 3, "recipe": "fp32" if precise else recipe, "micro_batches": micro_batches,
                     "specs": {m: recipes()[recipe] for m in modules}, "delayed": {}}
        for module in modules:
            self._module(module, recipes()[recipe])

    def put(self, name, x):
        x = np.asarray(x, dtype=np.float32)
        self.tensors[name] = ("F32", x) if self.precise else ("BF16", formats.bf16_bits(x))
        return x if self.precise else formats.bf16_round(x)

    def operand(self, base, key, x, row, col):
        x = self.put(base, x)
        result = {"row": x, "col": x.T}
        for side, matrix, value in (("row", x, row), ("col", x.T, col)):
            s = quantize.QuantSpec.from_json(value, base)
            if s is None:
                continue
            scale = None
            if s.scaling == "delayed":
                stale = np.float32(formats.FORMATS[s.format].max_value * self.quantizer_rng.uniform(0.4, 0.9) / np.abs(x).max())
                scale = np.float32(self.meta["delayed"].setdefault(key, {"scale": float(stale)})["scale"])
            codes, grid = quantize.quantize(matrix, s, scale, self.quantizer_rng)
            dtype = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}.get(s.format, "U8")
            self.tensors[f"{base}.{side}.data"] = (dtype, codes)
            self.tensors[f"{base}.{side}.scale_inv"] = ("F32", grid)
            result[side] = quantize.dequantize(codes, grid, s)
        return result

    def _module(self, module, specs):
        tokens, k, n = 24, 40, 20
        weights, gradients = {}, {}
        for part in parts_of(module):
            base = f"{module}/{part}/w"
            weights[part] = self.operand(base, base, 0.1 * self.rng.standard_normal((n, k)), specs["w.row"], specs["w.col"])
            gradients[part] = 0.0
        for m in range(self.meta["micro_batches"]):
            heavy = np.exp(self.rng.standard_normal((tokens, k)))
            x = self.operand(f"mb{m}/{module}/x", f"{module}/x", heavy * self.rng.standard_normal((tokens, k)), specs["x.row"], specs["x.col"])
            dx = 0.0
            for part, w in weights.items():
                base = f"mb{m}/{module}/{part}"
                self.put(base + "/y", x["row"] @ w["row"].T)
                dy = self.operand(base + "/dy", f"{module}/{part}/dy", 0.01 * self.rng.standard_normal((tokens, n)),
                                  specs["dy.row"], specs["dy.col"])
                dx = dx + dy["row"] @ w["col"].T
                gradients[part] = gradients[part] + dy["col"] @ x["col"].T
            self.put(f"mb{m}/{module}/dx", dx)
        for part, dw in gradients.items():
            self.tensors[f"{module}/{part}/dw"] = ("F32", np.asarray(dw, dtype=np.float32))

    def write(self, path):
        safetensors.write(path, self.tensors, {"dump": json.dumps(self.meta)})
        return str(path)


assert set(recipes()["bf16"]) == set(IMAGES)
