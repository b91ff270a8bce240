"""Small floating-point formats: encode (round to nearest even or stochastic, saturating) and decode. One code a byte, right-aligned.

Formats (sign/exponent/mantissa bits): E4M3 "fn" 1/4/3, E5M2 1/5/2, E3M2 1/3/2, E2M3 1/2/3, E2M1 1/2/1, BF16 1/8/7.
Sources: OCP OFP8 1.0 and OCP Microscaling 1.0 for the layouts; PTX cvt.rn.satfinite for saturation, the code of NaN and signed zero.
"""
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """Layout of one format. nan_code: what encoding a NaN gives (FP4 and FP6 have no NaN: the largest positive value)."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_value: float
    nan_code: int

    @property
    def sign_code(self):
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def min_exponent(self):
        return 1 - self.bias


FORMATS = {
    f.name: f
    for f in (
        Format("e4m3", 4, 3, 7, 448.0, 0x7F),
        Format("e5m2", 5, 2, 15, 57344.0, 0x7F),
        Format("e3m2", 3, 2, 3, 28.0, 0x1F),
        Format("e2m3", 2, 3, 1, 7.5, 0x1F),
        Format("e2m1", 2, 1, 1, 6.0, 0x07),
    )
}


def decode_table(fmt):
    """float32[256] of the value of each code; codes beyond the format's width are NaN (no encoder produces them)."""
    table = np.full(256, np.nan, dtype=np.float32)
    for code in range(2 * fmt.sign_code):
        sign = -1.0 if code & fmt.sign_code else 1.0
        exponent = (code & (fmt.sign_code - 1)) >> fmt.mantissa_bits
        mantissa = code & ((1 << fmt.mantissa_bits) - 1)
        fraction = mantissa / (1 << fmt.mantissa_bits)
        top = exponent == (1 << fmt.exponent_bits) - 1
        if fmt.name == "e4m3" and top and mantissa == 7:
            value = np.nan
        elif fmt.name == "e5m2" and top:
            value = np.nan if mantissa else np.inf
        elif exponent == 0:
            value = fraction * 2.0**fmt.min_exponent
        else:
            value = (1.0 + fraction) * 2.0 ** (exponent - fmt.bias)
        table[code] = sign * value
    return table


_TABLES = {name: decode_table(fmt) for name, fmt in FORMATS.items()}


def decode(codes, format_name):
    """uint8 codes -> float32 values, exact."""
    return _TABLES[format_name][np.asarray(codes, dtype=np.uint8)]


def grid_step(magnitude, fmt):
    """Distance of neighbouring grid values around each magnitude (float64, finite), below the next power of two."""
    _, exponent = np.frexp(magnitude)
    return np.ldexp(1.0, np.maximum(exponent - 1, fmt.min_exponent) - fmt.mantissa_bits)


def encode(x, format_name, rng=None):
    """float values -> uint8 codes. rng None: round to nearest even, else stochastic rounding with uniforms of that numpy Generator."""
    fmt = FORMATS[format_name]
    x = np.asarray(x, dtype=np.float64)
    nan = np.isnan(x)
    magnitude = np.minimum(np.abs(np.where(nan, 0.0, x)), 2.0 * fmt.max_value)
    step = grid_step(magnitude, fmt)
    units = magnitude / step
    rounded = np.rint(units) if rng is None else np.floor(units + rng.random(x.shape))
    codes = _codes_of_grid_values(np.minimum(rounded * step, fmt.max_value), fmt)
    codes = np.where(np.signbit(x), codes | fmt.sign_code, codes)
    return np.where(nan, fmt.nan_code, codes).astype(np.uint8)


def _codes_of_grid_values(value, fmt):
    fraction, exponent = np.frexp(value)
    normal = value >= 2.0**fmt.min_exponent
    scale = 1 << fmt.mantissa_bits
    normal_code = (exponent - 1 + fmt.bias) * scale + (2.0 * fraction - 1.0) * scale
    subnormal_code = np.ldexp(value, fmt.mantissa_bits - fmt.min_exponent)
    return np.where(normal, normal_code, subnormal_code).astype(np.int64)


def brackets(codes, x, format_name):
    """True where the code is one of the two grid values around x (all that can be said of stochastic rounding), or x is off the scale."""
    fmt = FORMATS[format_name]
    x = np.asarray(x, dtype=np.float64)
    nan = np.isnan(x)
    magnitude = np.minimum(np.abs(np.where(nan, 0.0, x)), fmt.max_value)
    step = grid_step(magnitude, fmt)
    value = np.abs(decode(codes, format_name).astype(np.float64))
    near = (value == np.floor(magnitude / step) * step) | (value == np.ceil(magnitude / step) * step)
    sign_agrees = ((np.asarray(codes) & fmt.sign_code) != 0) == np.signbit(x)
    return np.where(nan, np.asarray(codes) == fmt.nan_code, near & sign_agrees)


def bf16_bits(x):
    """float32 -> uint16 BF16 bits, round to nearest even; NaN becomes 0x7FFF."""
    x = np.asarray(x, dtype=np.float32)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(x)
        magnitude = np.abs(np.where(finite, wide, 0.0))
        _, exponent = np.frexp(magnitude)
        step = np.ldexp(1.0, np.maximum(exponent - 1, -126) - 7)
        rounded = np.copysign(np.rint(magnitude / step) * step, wide)
        rounded = np.where(finite, rounded, wide).astype(np.float32)  # beyond the largest BF16 this overflows to Inf, as it must
    bits = (rounded.view(np.uint32) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), bits).astype(np.uint16)


def bf16_values(bits):
    """uint16 BF16 bits -> float32, exact."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def bf16_round(x):
    """float32 -> the nearest BF16 value, as float32."""
    return bf16_values(bf16_bits(x))
