"""Reading and writing safetensors files (https://github.com/huggingface/safetensors, format section of its README).

A file is: u64 little-endian header length, a JSON header name -> {dtype, shape, data_offsets}, then the bytes of all tensors without
holes. Files are not trusted: every size is checked against the file before it is used.
"""
import json
import math
import os
import struct

import numpy as np

DTYPES = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4"), "BF16": np.dtype("<u2"), "U8": np.dtype("u1"),
          "F8_E4M3": np.dtype("u1"), "F8_E5M2": np.dtype("u1"), "F64": np.dtype("<f8")}
MAX_HEADER_BYTES = 100_000_000


class FormatError(Exception):
    """The file is not what it claims to be; the message names the file and the place."""


class Tensor:
    """Name of the stored type and the raw array (BF16 as uint16 bits, FP8 as uint8 codes)."""

    def __init__(self, dtype, array):
        self.dtype = dtype
        self.array = array

    @property
    def shape(self):
        return self.array.shape


class SafetensorsFile:
    """Header of a file and lazy access to its tensors. Throws FormatError, or OSError when the file cannot be opened."""

    def __init__(self, path):
        self.path = path
        self.size = os.path.getsize(path)
        with open(path, "rb") as f:
            head = f.read(8)
            if len(head) < 8:
                raise FormatError(f"{path}: shorter than the 8 bytes of a safetensors header")
            (length,) = struct.unpack("<Q", head)
            if length > min(MAX_HEADER_BYTES, self.size - 8):
                raise FormatError(f"{path}: header of {length} bytes does not fit in the file of {self.size}")
            text = f.read(length)
        self.data_start = 8 + length
        header = self._parse(text)
        self.metadata = header.pop("__metadata__", {})
        if not isinstance(self.metadata, dict) or any(not isinstance(v, str) for v in self.metadata.values()):
            raise FormatError(f"{path}: __metadata__ must map strings to strings")
        self.entries = {name: self._entry(name, value) for name, value in header.items()}
        self._check_covered()

    def _parse(self, text):
        def unique(pairs):
            result = dict(pairs)
            if len(result) != len(pairs):
                raise FormatError(f"{self.path}: duplicate key in the header")
            return result

        try:
            header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
        except (ValueError, RecursionError) as e:
            raise FormatError(f"{self.path}: header is not JSON: {e}") from None
        if not isinstance(header, dict):
            raise FormatError(f"{self.path}: header is not a JSON object")
        return header

    def _entry(self, name, value):
        where = f"{self.path}: tensor '{name}'"
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise FormatError(f"{where}: needs dtype, shape and data_offsets")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise FormatError(f"{where}: dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        for numbers in (shape, offsets):
            if not isinstance(numbers, list) or any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in numbers):
                raise FormatError(f"{where}: shape and data_offsets must be lists of numbers of at least 0")
        if len(shape) > 8 or math.prod(max(n, 1) for n in shape) >= 1 << 48:
            raise FormatError(f"{where}: shape {shape} is beyond any tensor")
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * DTYPES[dtype].itemsize:
            raise FormatError(f"{where}: data_offsets {offsets} do not fit {dtype} {shape}")
        if offsets[1] > self.size - self.data_start:
            raise FormatError(f"{where}: ends at byte {offsets[1]}, but the file has {self.size - self.data_start} data bytes")
        return dtype, tuple(shape), offsets[0]

    def _check_covered(self):
        end = 0
        spans = sorted((start, start + math.prod(shape) * DTYPES[dtype].itemsize) for dtype, shape, start in self.entries.values())
        for start, stop in spans:
            if start != end:
                raise FormatError(f"{self.path}: tensors overlap or leave a hole at data byte {min(start, end)}")
            end = stop
        if self.data_start + end != self.size:
            raise FormatError(f"{self.path}: {self.size - self.data_start - end} bytes after the last tensor")

    def __contains__(self, name):
        return name in self.entries

    def __iter__(self):
        return iter(self.entries)

    def read(self, name):
        """The tensor of that name. Throws KeyError."""
        dtype, shape, start = self.entries[name]
        count = math.prod(shape)
        array = np.fromfile(self.path, dtype=DTYPES[dtype], count=count, offset=self.data_start + start)
        if array.size != count:
            raise FormatError(f"{self.path}: tensor '{name}' could not be read whole")
        return Tensor(dtype, array.reshape(shape))


def write(path, tensors, metadata=None):
    """tensors: name -> (dtype name, array of the stored type). Widest types first, then by name, so that every tensor is aligned."""
    order = sorted(tensors, key=lambda n: (-DTYPES[tensors[n][0]].itemsize, n))
    header, offset, blobs = {}, 0, []
    if metadata:
        header["__metadata__"] = metadata
    for name in order:
        dtype, array = tensors[name]
        stored = np.asarray(array)
        if stored.dtype != DTYPES[dtype]:
            raise ValueError(f"{name}: array of {stored.dtype} for dtype {dtype}")
        blob = stored.tobytes()
        header[name] = {"dtype": dtype, "shape": list(stored.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        f.writelines(blobs)
