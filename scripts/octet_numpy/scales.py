"""Scale formulas. A scale multiplies before the cast; scale_inv multiplies after decoding.

fp32, pow2  s = fl32(max / amax), 1 for a zero or non-finite amax, `overflow_scale` instead of Inf; pow2 rounds s down to a power of two.
ue4m3       one s_t = fl32(448 max / amax) a tensor; code = e4m3(fl32(fl32(amax_b / max) * s_t)) a block, scale fl32(s_t / code), 0 for code 0 (NVFP4).
e8m0        code = smallest power of two at or above fl32(amax * fl32(1 / max)), biased by 127 (round up, arXiv 2506.08027).
Sources: NVIDIA Transformer Engine (per-tensor, block, MXFP8), torchao float8 (row-wise), OCP Microscaling 1.0 (E8M0).
"""
import numpy as np

from .formats import FORMATS, decode, encode

E8M0_NAN = 0xFF


def e8m0_round_up(value):
    """float32 -> uint8 E8M0 code of the next power of two at or above |value|, saturating at 0xFE; NaN gives 0xFF."""
    value = np.abs(np.asarray(value, dtype=np.float32).astype(np.float64))
    finite = np.isfinite(value)
    fraction, exponent = np.frexp(np.where(finite, value, 1.0))
    power = np.where(fraction == 0.5, exponent - 1, exponent)
    code = np.where(value == 0.0, 0, np.clip(power + 127, 0, 0xFE))
    code = np.where(finite, code, 0xFE)
    return np.where(np.isnan(value), E8M0_NAN, code).astype(np.uint8)


def e8m0_value(code):
    """uint8 E8M0 code -> float32; code 0 is the subnormal 2^-127, 0xFF is NaN."""
    code = np.asarray(code, dtype=np.uint8)
    value = np.ldexp(1.0, np.minimum(code, 0xFE).astype(np.int64) - 127).astype(np.float32)
    return np.where(code == E8M0_NAN, np.float32(np.nan), value)


def pow2_floor(scale):
    """Largest power of two at or below each positive normal float32."""
    _, exponent = np.frexp(np.asarray(scale, dtype=np.float32))
    return np.ldexp(np.float32(1.0), exponent - 1).astype(np.float32)


def scale_from_amax(amax, spec):
    """(scale, scale_inv), float32 arrays of the shape of amax, for a spec with current scaling."""
    max_value = np.float32(FORMATS[spec.format].max_value)
    amax = np.asarray(amax, dtype=np.float32)
    amax = np.where(amax < np.float32(spec.amax_epsilon), np.float32(spec.amax_epsilon), amax)
    if spec.scale == "e8m0":
        with np.errstate(invalid="ignore"):
            code = e8m0_round_up(amax * np.float32(1.0 / float(max_value)))
        scale = np.where(code == E8M0_NAN, np.nan, np.ldexp(1.0, 127 - code.astype(np.int64))).astype(np.float32)
        return scale, e8m0_value(code)
    if spec.scale == "ue4m3":
        return two_level_scale(amax, max_value)
    usable = np.isfinite(amax) & (amax > 0)
    divisor = np.where(usable, amax, np.float32(1.0))
    with np.errstate(over="ignore"):
        if spec.fp64_divide:
            scale = (np.float64(max_value) / divisor.astype(np.float64)).astype(np.float32)
        else:
            scale = (max_value / divisor).astype(np.float32)
    scale = np.where(np.isinf(scale), np.float32(spec.overflow_scale), scale)
    scale = np.where(usable, scale, np.float32(1.0))
    if spec.scale == "pow2":
        scale = pow2_floor(scale)
    return scale, reciprocal(scale)


def two_level_scale(amax, max_value):
    """(scale, scale_inv) of NVFP4's two levels for a grid of block amaxes."""
    tensor_amax = np.max(amax, initial=np.float32(0.0))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        tensor = np.float32(448.0) * max_value / tensor_amax if np.isfinite(tensor_amax) and tensor_amax > 0 else np.float32(1.0)
        tensor = np.float32(np.finfo(np.float32).max) if np.isinf(tensor) else np.float32(tensor)
        level = decode(encode((amax / max_value).astype(np.float32) * tensor, "e4m3"), "e4m3").astype(np.float32)
        scale = np.where(level == 0, np.float32(0.0), tensor / np.where(level == 0, np.float32(1.0), level)).astype(np.float32)
        return scale, (level / tensor).astype(np.float32)


def delayed_scale(amax, spec, old_scale=1.0):
    """The scale a delayed update makes of the window's amax: fl32(max * 2^-margin / amax) within [2^-127, overflow_scale].

    A zero or non-finite amax keeps the old scale.
    """
    amax = np.float32(amax)
    if not (np.isfinite(amax) and amax > 0):
        return np.float32(old_scale)
    with np.errstate(over="ignore"):
        quotient = np.ldexp(FORMATS[spec.format].max_value, -spec.margin) / np.float64(amax)
        scale = np.float32(max(quotient, 2.0**-127))
    if np.isinf(scale):
        scale = np.float32(spec.overflow_scale)
    return np.float32(pow2_floor(scale)) if spec.scale == "pow2" else scale


def reciprocal(scale):
    """fl32(1 / scale)."""
    return (np.float32(1.0) / np.asarray(scale, dtype=np.float32)).astype(np.float32)
