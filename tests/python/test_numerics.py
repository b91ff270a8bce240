"""The NumPy formats and scales against published bit patterns (CUDA 13.0 conversions) and against ml_dtypes."""
import unittest

import ml_dtypes
import numpy as np

import paths  # noqa: F401
from octet_numpy import formats, quantize, scales
from octet_numpy.quantize import QuantSpec

INF, NAN = float("inf"), float("nan")


def f32(value):
    return float(np.float32(value))


# input, E4M3 code, E5M2 code (cvt.rn.satfinite)
FP8_VECTORS = [
    (0.0, 0x00, 0x00), (-0.0, 0x80, 0x80), (1.0, 0x38, 0x3C), (f32(0.1), 0x1D, 0x2E), (f32(0.3), 0x2A, 0x35), (-1.5, 0xBC, 0xBE),
    (1.0625, 0x38, 0x3C), (1.125, 0x39, 0x3C), (1.1875, 0x3A, 0x3D), (1.375, 0x3B, 0x3E), (f32(3.14159265), 0x45, 0x42),
    (17, 0x58, 0x4C), (18, 0x59, 0x4C), (19, 0x5A, 0x4D), (21, 0x5A, 0x4D), (22, 0x5B, 0x4E), (23, 0x5C, 0x4E),
    (448, 0x7E, 0x5F), (-448, 0xFE, 0xDF), (f32(463.9), 0x7E, 0x5F), (464, 0x7E, 0x5F), (f32(464.1), 0x7E, 0x5F), (480, 0x7E, 0x60),
    (1000, 0x7E, 0x64), (57344, 0x7E, 0x7B), (61439, 0x7E, 0x7B), (61440, 0x7E, 0x7B), (1e6, 0x7E, 0x7B), (INF, 0x7E, 0x7B),
    (-INF, 0xFE, 0xFB), (NAN, 0x7F, 0x7F), (0.015625, 0x08, 0x24), (0.013671875, 0x07, 0x23), (0.0029296875, 0x02, 0x1A),
    (0.001953125, 0x01, 0x18), (0.00146484375, 0x01, 0x16), (f32(0.0009765626), 0x01, 0x14), (0.0009765625, 0x00, 0x14),
    (6.103515625e-5, 0x00, 0x04), (2.288818359375e-5, 0x00, 0x02), (1.52587890625e-5, 0x00, 0x01), (f32(7.7e-6), 0x00, 0x01),
    (7.62939453125e-6, 0x00, 0x00),
]
# FP32 bits, E8M0 code rounded up
E8M0_VECTORS = [
    (0x00000000, 0x00), (0x00000001, 0x00), (0x00400000, 0x00), (0x00400001, 0x01), (0x00600000, 0x01), (0x00800000, 0x01),
    (0x00800001, 0x02), (0x3F000000, 0x7E), (0x3F800000, 0x7F), (0x3F800001, 0x80), (0x3FC00000, 0x80), (0x40000000, 0x80),
    (0x40400000, 0x81), (0x3B124925, 0x77), (0x3F804925, 0x80), (0x7F000000, 0xFE), (0x7F000001, 0xFE), (0x7F7FFFFF, 0xFE),
    (0x7F800000, 0xFE), (0x7FC00000, 0xFF), (0xC0000000, 0x80),
]
# input, E2M1 code, E3M2 code, E2M3 code
FP46_VECTORS = [
    (0.0, 0x0, 0x00, 0x00), (-0.0, 0x8, 0x20, 0x20), (0.0625, 0x0, 0x01, 0x00), (0.09375, 0x0, 0x02, 0x01), (0.25, 0x0, 0x04, 0x02),
    (f32(0.3), 0x1, 0x05, 0x02), (0.75, 0x2, 0x0A, 0x06), (1.0625, 0x2, 0x0C, 0x08), (1.125, 0x2, 0x0C, 0x09), (1.375, 0x3, 0x0E, 0x0B),
    (-1.5, 0xB, 0x2E, 0x2C), (2.5, 0x4, 0x11, 0x12), (f32(3.14159265), 0x5, 0x12, 0x15), (5, 0x6, 0x15, 0x1A), (7, 0x7, 0x17, 0x1E),
    (7.25, 0x7, 0x17, 0x1E), (7.5, 0x7, 0x18, 0x1F), (22, 0x7, 0x1E, 0x1F), (30, 0x7, 0x1F, 0x1F), (100, 0x7, 0x1F, 0x1F),
    (INF, 0x7, 0x1F, 0x1F), (NAN, 0x7, 0x1F, 0x1F),
]
# amax, FP32 scale, power-of-two scale, E8M0 code (E4M3)
SCALE_VECTORS = [
    (1, 448, 256, 0x77), (3, f32(149.33333), 128, 0x78), (7, 64, 64, 0x79), (447, f32(1.0022371), 1, 0x7F), (448, 1, 1, 0x7F),
    (449, f32(0.99777281), 0.5, 0x80), (896, 0.5, 0.5, 0x80), (f32(1e-4), 4480000, 4194304, 0x69),
    (f32(3e38), f32(1.4933333e-36), f32(2.0**-120), 0xF7), (f32(1e-40), quantize.FLT_MAX, 2.0**127, 0x00),
]


class Formats(unittest.TestCase):
    def expect(self, name, vectors):
        values, codes = zip(*vectors)
        np.testing.assert_array_equal(formats.encode(np.array(values, dtype=np.float32), name), np.array(codes, dtype=np.uint8), err_msg=name)

    def test_published_vectors(self):
        self.expect("e4m3", [(v[0], v[1]) for v in FP8_VECTORS])
        self.expect("e5m2", [(v[0], v[2]) for v in FP8_VECTORS])
        self.expect("e2m1", [(v[0], v[1]) for v in FP46_VECTORS])
        self.expect("e3m2", [(v[0], v[2]) for v in FP46_VECTORS])
        self.expect("e2m3", [(v[0], v[3]) for v in FP46_VECTORS])

    def test_every_code_survives_a_round_trip(self):
        for name, fmt in formats.FORMATS.items():
            codes = np.arange(2 * fmt.sign_code, dtype=np.uint8)
            values = formats.decode(codes, name)
            finite = np.isfinite(values)
            np.testing.assert_array_equal(formats.encode(values, name)[finite], codes[finite])
            self.assertEqual(values[finite].max(), fmt.max_value)
            self.assertTrue(np.all(np.isnan(formats.decode(np.arange(2 * fmt.sign_code, 256), name))))

    def test_every_bf16_value_against_ml_dtypes(self):
        values = formats.bf16_values(np.arange(65536))
        values = values[np.isfinite(values)]
        for name, fmt in formats.FORMATS.items():
            other = getattr(ml_dtypes, {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e3m2": "float6_e3m2fn", "e2m3": "float6_e2m3fn",
                                        "e2m1": "float4_e2m1fn"}[name])
            with np.errstate(over="ignore"):
                expected = np.clip(values, -fmt.max_value, fmt.max_value).astype(other)
            np.testing.assert_array_equal(formats.encode(values, name), expected.view(np.uint8), err_msg=name)
            np.testing.assert_array_equal(formats.decode(expected.view(np.uint8), name), expected.astype(np.float32), err_msg=name)

    def test_bf16_rounding_against_ml_dtypes(self):
        rng = np.random.default_rng(7)
        bits = np.concatenate([rng.integers(0, 1 << 32, 200000, dtype=np.uint32),
                               (np.arange(65536, dtype=np.uint32) << 16) | 0x8000, (np.arange(65536, dtype=np.uint32) << 16) | 0x8001])
        values = bits.view(np.float32)
        values = values[~np.isnan(values)]
        with np.errstate(over="ignore"):
            expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
        np.testing.assert_array_equal(formats.bf16_bits(values), expected)
        self.assertEqual(formats.bf16_bits(np.float32(NAN)), 0x7FFF)

    def test_stochastic_rounding_is_unbiased_and_bracketed(self):
        rng = np.random.default_rng(3)
        values = np.full(40000, 1.03125)  # a quarter of the way from 1 to 1.125
        codes = formats.encode(values, "e4m3", rng)
        self.assertTrue(formats.brackets(codes, values, "e4m3").all())
        self.assertAlmostEqual(formats.decode(codes, "e4m3").mean(), 1.03125, delta=4 * 0.125 * np.sqrt(0.1875 / 40000))
        self.assertFalse(formats.brackets(np.uint8([0x3A]), np.array([1.03125]), "e4m3")[0])
        self.assertFalse(formats.brackets(np.uint8([0xB8]), np.array([1.03125]), "e4m3")[0])


class Scales(unittest.TestCase):
    def test_e8m0_vectors(self):
        bits, codes = zip(*E8M0_VECTORS)
        np.testing.assert_array_equal(scales.e8m0_round_up(np.array(bits, dtype=np.uint32).view(np.float32)), np.array(codes, dtype=np.uint8))
        self.assertEqual(scales.e8m0_value(np.uint8(0)).view(np.uint32), 0x00400000)
        self.assertEqual(float(scales.e8m0_value(np.uint8(0xFE))), 2.0**127)
        self.assertTrue(np.isnan(scales.e8m0_value(np.uint8(0xFF))))

    def test_formula_table(self):
        amax = np.array([v[0] for v in SCALE_VECTORS], dtype=np.float32)
        for kind, column in (("fp32", 1), ("pow2", 2)):
            expected = np.array([v[column] for v in SCALE_VECTORS], dtype=np.float32)
            for wide in (False, True):
                got = scales.scale_from_amax(amax, QuantSpec("e4m3", (1, 0), kind, fp64_divide=wide))
                np.testing.assert_array_equal(got[0], expected)
                np.testing.assert_array_equal(got[1], np.float32(1) / expected)
        codes = np.array([v[3] for v in SCALE_VECTORS])
        scale, scale_inv = scales.scale_from_amax(amax, QuantSpec("e4m3", (1, 0), "e8m0"))
        np.testing.assert_array_equal(scale_inv, np.ldexp(1.0, codes - 127).astype(np.float32))
        np.testing.assert_array_equal(scale.astype(np.float64) * scale_inv, 1.0)

    def test_power_of_two_scale_equals_e8m0(self):
        amax = np.exp(np.random.default_rng(5).uniform(-20, 20, 100000)).astype(np.float32)
        pow2 = scales.scale_from_amax(amax, QuantSpec("e4m3", (1, 0), "pow2"))[1]
        np.testing.assert_array_equal(pow2, scales.scale_from_amax(amax, QuantSpec("e4m3", (1, 0), "e8m0"))[1])

    def test_degenerate_amax(self):
        amax = np.array([0.0, INF], dtype=np.float32)
        np.testing.assert_array_equal(scales.scale_from_amax(amax, QuantSpec("e4m3", (0, 0)))[0], [1, 1])
        epsilon = QuantSpec("e4m3", (0, 0), "pow2", amax_epsilon=1e-12)
        self.assertEqual(scales.scale_from_amax(np.float32(0), epsilon)[0], 2.0 ** np.floor(np.log2(448 / 1e-12)))
        bf16_max = QuantSpec("e4m3", (1, 128), overflow_scale=float(np.array(0x7F7F0000, np.uint32).view(np.float32)))
        self.assertEqual(scales.scale_from_amax(np.float32(1e-40), bf16_max)[0].view(np.uint32), 0x7F7F0000)
        self.assertEqual(scales.scale_from_amax(np.float32(INF), QuantSpec("e4m3", (1, 32), "e8m0"))[1], 2.0**127)

    def test_delayed(self):
        spec = QuantSpec("e4m3", (0, 0), scaling="delayed", margin=2)
        self.assertEqual(scales.delayed_scale(7.0, spec), 16.0)
        self.assertEqual(scales.delayed_scale(0.0, spec, 5.0), 5.0)
        self.assertEqual(scales.delayed_scale(INF, spec, 5.0), 5.0)
        self.assertEqual(scales.delayed_scale(1e-40, spec), np.float32(quantize.FLT_MAX))
        self.assertEqual(scales.delayed_scale(7.0, QuantSpec("e5m2", (0, 0), scaling="delayed")), 8192.0)


class Quantize(unittest.TestCase):
    def test_blocks_against_a_loop_over_ml_dtypes(self):
        rng = np.random.default_rng(11)
        x = formats.bf16_round((rng.standard_normal((13, 37)) * np.exp(3 * rng.standard_normal((13, 37)))).astype(np.float32))
        x[3, :20] = 0
        for block in ((0, 0), (1, 0), (0, 1), (1, 16), (4, 8), (16, 16), (1, 64)):
            codes, grid = quantize.quantize(x, QuantSpec("e4m3", block))
            rows, columns = block[0] or 13, block[1] or 37
            self.assertEqual(grid.shape, (-(-13 // rows), -(-37 // columns)))
            for i in range(grid.shape[0]):
                for j in range(grid.shape[1]):
                    part = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
                    amax = np.abs(x[part]).max()
                    scale = np.float32(448) / amax if amax > 0 else np.float32(1)
                    expected = np.clip(x[part] * scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
                    np.testing.assert_array_equal(codes[part], expected)
                    self.assertEqual(grid[i, j], np.float32(1) / scale)

    def test_error_is_within_half_a_step(self):
        x = np.random.default_rng(2).standard_normal((32, 64)).astype(np.float32)
        for name, fmt in formats.FORMATS.items():
            for kind in ("fp32", "pow2", "e8m0"):
                spec = QuantSpec(name, (1, 16), kind)
                back = quantize.dequantize(*quantize.quantize(x, spec), spec)
                amax = quantize.expand(quantize.block_amax(x, spec.block), x.shape, spec.block)
                bound = np.abs(x) * 2.0 ** (-fmt.mantissa_bits - 1) + amax * 2 * 2.0 ** (fmt.min_exponent - fmt.mantissa_bits - 1) / fmt.max_value
                self.assertTrue(np.all(np.abs(back - x) <= bound * 1.0001), (name, kind))

    def test_non_finite_values_leave_a_trace_in_the_scale(self):
        x = np.ones((2, 32), dtype=np.float32)
        x[0, 3], x[1, 3] = NAN, INF
        codes, grid = quantize.quantize(x, QuantSpec("e4m3", (1, 32)))
        np.testing.assert_array_equal(grid, [[1], [1]])
        np.testing.assert_array_equal(codes[:, 3], [0x7F, 0x7E])
        np.testing.assert_array_equal(quantize.quantize(x, QuantSpec("e4m3", (1, 32), "e8m0"))[1], [[2.0**127]] * 2)

    def test_specs_are_parsed_strictly(self):
        good = {"format": "e4m3", "block": [1, 128]}
        self.assertEqual(QuantSpec.from_json(good, "s"), QuantSpec("e4m3", (1, 128)))
        self.assertIsNone(QuantSpec.from_json(None, "s"))
        self.assertIsNone(QuantSpec.from_json({"format": "bf16"}, "s"))
        for change in ({"format": "e9m9"}, {"block": [1]}, {"block": [1, -1]}, {"block": [True, 1]}, {"scale": "odd"}, {"surprise": 1},
                       {"amax_epsilon": "x"}, {"overflow_scale": 10**400}, {"margin": 0.5}, {"fp64_divide": 1}, {"scaling": None}):
            with self.assertRaises(ValueError, msg=change):
                QuantSpec.from_json({**good, **change}, "s")


if __name__ == "__main__":
    unittest.main()
