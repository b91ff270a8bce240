"""Access to a file written by `octet train --dump STEP:GLOB`.

Names: mb{m}/{M}/x, dx          [T, K]        input and input gradient of module M in micro-batch m
       {M}/{P}/w, dw            [N, K]        weight and its gradient summed over the step's micro-batches
       mb{m}/{M}/{P}/y, dy      [T, N]        output (bias included), output gradient
and for each quantized x, w, dy two images: `.row.data`, `.row.scale_inv` of the matrix, `.col.*` of its transpose.
__metadata__["dump"] is JSON: step, recipe, micro_batches, specs {M: {image: spec or null}}, delayed {"M/x", "M/P/w", "M/P/dy": {"scale"}}
and, when there are any, shared_grads ["M/P"]: weights whose dw holds more than this GEMM's gradient (a tied embedding).
"""
import json
import re

import numpy as np

from . import formats
from .quantize import QuantSpec, is_float32
from .safetensors import FormatError, SafetensorsFile

IMAGES = ("x.row", "x.col", "w.row", "w.col", "dy.row", "dy.col")
PARTS = {"attn.qkv": ("q_proj", "k_proj", "v_proj"), "attn.out": ("o_proj",), "mlp.gate_up": ("gate_proj", "up_proj"),
         "mlp.down": ("down_proj",), "head": ("lm_head",)}
CODE_DTYPES = {"e4m3": ("F8_E4M3", "U8"), "e5m2": ("F8_E5M2", "U8"), "e3m2": ("U8",), "e2m3": ("U8",), "e2m1": ("U8",)}


def parts_of(module):
    """Logical weights of a module path, in the order of a fused GEMM; () for a path that is no linear layer."""
    match = re.fullmatch(r"(?:layers\.\d+\.)?(attn\.qkv|attn\.out|mlp\.gate_up|mlp\.down|head)", module)
    return PARTS[match.group(1)] if match else ()


class Dump:
    """A dump file. Throws FormatError or OSError."""

    def __init__(self, path):
        self.path = path
        self.file = SafetensorsFile(path)
        meta = self._metadata()
        self.step, self.recipe, self.micro_batches = meta["step"], meta["recipe"], meta["micro_batches"]
        self.gemm = meta.get("gemm", "blas")  # run.cpu_gemm: "exact" models a tensor core's narrow accumulator
        self.shared_grads = set(meta.get("shared_grads", []))
        self.specs = {module: self._module_specs(module, value) for module, value in meta["specs"].items()}
        self.delayed = {key: self._scale(key, value) for key, value in (meta.get("delayed") or {}).items()}

    def _metadata(self):
        text = self.file.metadata.get("dump")
        if text is None:
            raise FormatError(f"{self.path}: no 'dump' metadata; was this file written by octet train --dump?")
        try:
            meta = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise FormatError(f"{self.path}: metadata 'dump' is not JSON: {e}") from None
        kinds = {"step": int, "recipe": str, "micro_batches": int, "specs": dict}
        if not isinstance(meta, dict) or any(type(meta.get(k)) is not t for k, t in kinds.items()):
            raise FormatError(f"{self.path}: metadata 'dump' needs step, recipe, micro_batches and specs")
        if meta["micro_batches"] < 1:
            raise FormatError(f"{self.path}: metadata 'dump': micro_batches is {meta['micro_batches']}")
        if not isinstance(meta.get("delayed") or {}, dict):
            raise FormatError(f"{self.path}: metadata 'dump': delayed must be an object")
        shared = meta.get("shared_grads", [])
        if not isinstance(shared, list) or any(not isinstance(s, str) for s in shared):
            raise FormatError(f"{self.path}: metadata 'dump': shared_grads must be a list of names")
        return meta

    def _module_specs(self, module, value):
        where = f"{self.path}: specs of '{module}'"
        if not parts_of(module):
            raise FormatError(f"{where}: not a linear layer known to this script")
        if not isinstance(value, dict) or set(value) != set(IMAGES):
            raise FormatError(f"{where}: must have exactly {', '.join(IMAGES)}")
        try:
            return {image: QuantSpec.from_json(value[image], f"{where}, {image}") for image in IMAGES}
        except ValueError as e:
            raise FormatError(str(e)) from None

    def _scale(self, key, value):
        scale = value.get("scale") if isinstance(value, dict) else None
        if not is_float32(scale):
            raise FormatError(f"{self.path}: metadata 'dump': delayed scale of '{key}' is not a finite FP32 number")
        return np.float32(scale)

    def has(self, name):
        return name in self.file

    def values(self, name):
        """float32 values of a BF16 or F32 matrix."""
        tensor = self.file.read(name)
        if tensor.dtype not in ("BF16", "F32") or len(tensor.shape) != 2:
            raise FormatError(f"{self.path}: '{name}' is {tensor.dtype} {list(tensor.shape)}, expected a BF16 or F32 matrix")
        return formats.bf16_values(tensor.array) if tensor.dtype == "BF16" else tensor.array

    def dtype(self, name):
        return self.file.entries[name][0]

    def image(self, base, spec):
        """(codes, scale_inv) of the image `base`, e.g. mb0/head/x.row; types are checked, shapes are not."""
        codes, grid = self.file.read(base + ".data"), self.file.read(base + ".scale_inv")
        if codes.dtype not in CODE_DTYPES[spec.format]:
            raise FormatError(f"{self.path}: '{base}.data' is {codes.dtype}, expected {' or '.join(CODE_DTYPES[spec.format])}")
        if grid.dtype != "F32":
            raise FormatError(f"{self.path}: '{base}.scale_inv' is {grid.dtype}, expected F32")
        return codes.array, grid.array

    def delayed_scale(self, key, spec):
        """The stored scale of a tensor key such as layers.0.attn.qkv/x, None for current scaling."""
        if spec.scaling == "current":
            return None
        if key not in self.delayed:
            raise FormatError(f"{self.path}: metadata 'dump': no delayed scale for '{key}'")
        return self.delayed[key]
