"""The safetensors writer against a file of the reference implementation, and a round trip of every type."""
import os
import tempfile
import unittest

import numpy as np

import paths  # noqa: F401
from octet_numpy import formats, safetensors


class Safetensors(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "x.safetensors")

    def test_bytes(self):
        safetensors.write(self.path, {"w": ("BF16", formats.bf16_bits(np.float32([[1, 2], [3, 4]])))})
        header = b'{"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}'
        with open(self.path, "rb") as f:
            data = f.read()
        length = len(header) + -len(header) % 8
        self.assertEqual(data[:8], length.to_bytes(8, "little"))
        self.assertEqual(data[8 : 8 + length].rstrip(b" "), header)
        self.assertEqual(data[8 + length :], bytes.fromhex("803f004040408040"))

    def test_round_trip(self):
        rng = np.random.default_rng(0)
        tensors = {f"{dtype}/{shape}": (dtype, rng.integers(0, 100, shape).astype(kind))
                   for dtype, kind in safetensors.DTYPES.items() for shape in ((3, 5), (1,), (), (0, 4))}
        safetensors.write(self.path, tensors, {"note": "text"})
        file = safetensors.SafetensorsFile(self.path)
        self.assertEqual(file.metadata, {"note": "text"})
        self.assertEqual(set(file), set(tensors))
        for name, (dtype, array) in tensors.items():
            read = file.read(name)
            self.assertEqual((read.dtype, read.shape), (dtype, array.shape))
            np.testing.assert_array_equal(read.array, array)

    def test_wrong_type_is_not_written(self):
        with self.assertRaises(ValueError):
            safetensors.write(self.path, {"w": ("F32", np.zeros(3))})
        self.assertFalse(os.path.exists(self.path))


if __name__ == "__main__":
    unittest.main()
