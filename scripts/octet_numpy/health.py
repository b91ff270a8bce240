"""FP8 health statistics of a quantized image, by their definitions (docs/numerics.md, "Health statistics"), in float64.

Everything is over the finite elements of the values that were quantized, except `elements` and `nonfinite`.
"""
import numpy as np

from .formats import FORMATS, decode
from .quantize import block_amax, dequantize, expand, source
from .scales import scale_from_amax


def saturation_limit(name):
    """Largest value plus half its spacing, found from the codes themselves."""
    values = decode(np.arange(256, dtype=np.uint8), name).astype(np.float64)
    values = np.unique(values[np.isfinite(values) & (values <= FORMATS[name].max_value)])
    return values[-1] + (values[-1] - values[-2]) / 2


def image_sums(x, spec, codes, scale_inv, stored_scale=None):
    """Counts, maxima and sums of one image: x [rows, k] high precision, contraction last, with the codes and scale_inv grid made of it."""
    values = source(x, spec)
    amax = block_amax(values, spec.block)
    scale = scale_from_amax(amax, spec)[0] if stored_scale is None else np.full(amax.shape, stored_scale, dtype=np.float32)
    finite = np.isfinite(values)
    wide = np.where(finite, values, 0).astype(np.float64)
    read = np.where(finite, dequantize(codes, scale_inv, spec), 0)
    zero_code = decode(codes, spec.format) == 0
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.abs(values * expand(scale, values.shape, spec.block))
    used = np.isfinite(amax) & (amax > 0)
    return {"elements": values.size, "nonfinite": int(np.sum(~finite)),
            "underflow": int(np.sum(finite & (values != 0) & zero_code)),
            "saturated": int(np.sum(finite & (scaled > saturation_limit(spec.format)))),
            "amax": float(np.max(np.abs(wide), initial=0.0)),
            "scale_min": float(np.min(scale[used], initial=np.inf)), "scale_max": float(np.max(scale[used], initial=0.0)),
            "xx": float(np.sum(wide * wide)), "qq": float(np.sum(read * read)), "xq": float(np.sum(wide * read)),
            "ee": float(np.sum((read - wide) ** 2))}


def merged(parts):
    """The sums of several micro-batches as one."""
    rule = {"amax": max, "scale_min": min, "scale_max": max}
    return {key: rule.get(key, sum)(part[key] for part in parts) for key in parts[0]}


def statistics(sums):
    """The published figures: shares, decibels, cosine; None where undefined."""
    n = sums["elements"]
    return {"elements": n, "nonfinite": sums["nonfinite"], "amax": sums["amax"],
            "scale_min": sums["scale_min"] if sums["scale_max"] > 0 else None, "scale_max": sums["scale_max"] if sums["scale_max"] > 0 else None,
            "underflow": sums["underflow"] / n if n else 0.0, "saturation": sums["saturated"] / n if n else 0.0,
            "sqnr_db": 10 * np.log10(sums["xx"] / sums["ee"]) if sums["xx"] > 0 and sums["ee"] > 0 else None,
            "cosine": sums["xq"] / np.sqrt(sums["xx"]) / np.sqrt(sums["qq"]) if sums["xx"] > 0 and sums["qq"] > 0 else None}
