"""Quantization of a matrix [rows, k] (contraction last) in blocks that share one scale, and its inverse."""
from dataclasses import dataclass, fields

import numpy as np

from .formats import FORMATS, decode, encode
from .scales import reciprocal, scale_from_amax

FLT_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class QuantSpec:
    """How one operand is quantized. block: rows and columns that share a scale, 0 for the whole extent."""

    format: str
    block: tuple
    scale: str = "fp32"
    scaling: str = "current"
    rounding: str = "nearest"
    margin: int = 0
    amax_epsilon: float = 0.0
    overflow_scale: float = FLT_MAX
    fp64_divide: bool = False
    hadamard: bool = False

    @property
    def square(self):
        return self.block[0] == self.block[1]

    @staticmethod
    def from_json(value, where):
        """QuantSpec of a JSON object, None for null or an unquantized format. Throws ValueError naming `where`."""
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ValueError(f"{where}: a spec must be an object or null")
        if value.get("format") in ("bf16", "f32"):
            return None
        known = {f.name for f in fields(QuantSpec)}
        for key in value:
            if key not in known:
                raise ValueError(f"{where}: unknown key '{key}'")
        choices = {"format": tuple(FORMATS), "scale": ("fp32", "pow2", "e8m0", "ue4m3"), "scaling": ("current", "delayed", "static"),
                   "rounding": ("nearest", "stochastic")}
        for key, allowed in choices.items():
            if value.get(key, allowed[0]) not in allowed:
                raise ValueError(f"{where}.{key}: '{value[key]}' is not one of {', '.join(allowed)}")
        block = value.get("block")
        if not isinstance(block, list) or len(block) != 2 or any(not _is_count(b) for b in block) or "format" not in value:
            raise ValueError(f"{where}: needs 'format' and 'block' with two numbers of at least 0")
        for key in ("amax_epsilon", "overflow_scale"):
            if not is_float32(value.get(key, 0.0)):
                raise ValueError(f"{where}.{key}: must be a finite FP32 number")
        if not isinstance(value.get("margin", 0), int) or any(not isinstance(value.get(key, False), bool) for key in ("fp64_divide", "hadamard")):
            raise ValueError(f"{where}: 'margin' must be an integer, 'fp64_divide' and 'hadamard' booleans")
        return QuantSpec(**{**value, "block": tuple(block)})


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_float32(value):
    """Whether a JSON value is a number that FP32 can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= FLT_MAX


def block_extent(shape, block):
    """The block cut to the matrix, 0 being the whole extent; at least 1, so that empty matrices have a defined grid."""
    return tuple(min(b, max(n, 1)) if b else max(n, 1) for n, b in zip(shape, block))


def grid_shape(shape, block):
    """Shape of the scale grid of a matrix: ceil(rows / block rows), ceil(k / block columns)."""
    return tuple(-(-n // b) for n, b in zip(shape, block_extent(shape, block)))


def block_amax(x, block):
    """Largest |x| of each block, float32; +Inf where the block has a NaN or an Inf, since a cast would hide them."""
    rows, columns = block_extent(x.shape, block)
    grid = grid_shape(x.shape, block)
    padded = np.zeros((grid[0] * rows, grid[1] * columns), dtype=np.float32)
    padded[: x.shape[0], : x.shape[1]] = np.where(np.isfinite(x), np.abs(x), np.float32(np.inf))
    return padded.reshape(grid[0], rows, grid[1], columns).max(axis=(1, 3))


def expand(grid, shape, block):
    """The scale of each element: a grid [a, b] repeated over its blocks and cut to `shape`."""
    rows, columns = block_extent(shape, block)
    return np.repeat(np.repeat(grid, rows, axis=0), columns, axis=1)[: shape[0], : shape[1]]


HADAMARD_SIGNS = np.array([-1.0 if 0x243F >> (15 - i) & 1 else 1.0 for i in range(16)], dtype=np.float32)


def hadamard(x):
    """float32 [rows, k] -> (1/4) H16 (signs * x) on each whole group of 16 along k; each butterfly's sum and difference rounded once."""
    x = np.array(x, dtype=np.float32)
    groups = x.shape[1] // 16
    v = x[:, : 16 * groups].reshape(x.shape[0], groups, 16) * HADAMARD_SIGNS
    for distance in (1, 2, 4, 8):
        pairs = v.reshape(x.shape[0], groups, 8 // distance, 2, distance)
        a, b = pairs[:, :, :, 0, :], pairs[:, :, :, 1, :]
        v = np.stack([a + b, a - b], axis=3).reshape(x.shape[0], groups, 16)
    x[:, : 16 * groups] = (v * np.float32(0.25)).reshape(x.shape[0], 16 * groups)
    return x


def source(x, spec):
    """The values that are quantized: x, transformed along the contraction where the spec has it."""
    x = np.asarray(x, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return hadamard(x) if spec.hadamard else x


def scaled(x, spec, delayed_scale=None):
    """(fl32(x * scale) [rows, k], scale_inv grid). delayed_scale: the stored scale, required exactly by delayed and static scaling."""
    x = source(x, spec)
    if (delayed_scale is None) != (spec.scaling == "current"):
        raise ValueError("a stored scale belongs to delayed and static scaling, and only to them")
    if delayed_scale is None:
        scale, scale_inv = scale_from_amax(block_amax(x, spec.block), spec)
    else:
        scale = np.full(grid_shape(x.shape, spec.block), delayed_scale, dtype=np.float32)
        scale_inv = reciprocal(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        return x * expand(scale, x.shape, spec.block), scale_inv


def quantize(x, spec, delayed_scale=None, rng=None):
    """(uint8 codes [rows, k], float32 scale_inv grid). Stochastic rounding draws from `rng`, which it then requires."""
    if spec.rounding == "stochastic" and rng is None:
        raise ValueError("stochastic rounding needs a generator")
    values, scale_inv = scaled(x, spec, delayed_scale)
    return encode(values, spec.format, rng if spec.rounding == "stochastic" else None), scale_inv


def dequantize(codes, scale_inv, spec):
    """float64 [rows, k]: decoded codes times scale_inv, exact."""
    with np.errstate(invalid="ignore"):
        return decode(codes, spec.format).astype(np.float64) * expand(np.asarray(scale_inv, dtype=np.float64), codes.shape, spec.block)
