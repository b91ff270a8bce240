// MXFP8 and NVFP4 operands as cuBLASLt reads them: bytes against the documentation's formula, and whole products on a device that has them.
#include <fmt/format.h>

#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/gemm/plans.h"
#include "cuda/kernels/block_scales.h"
#include "images.h"
#include "numerics/scale.h"

using namespace parity;

namespace {

constexpr Capability hopper{9, 0}, blackwell{10, 0};
const QuantSpec mx = block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0), mx_e5m2 = block_spec(Dtype::e5m2, 1, 32, ScaleKind::e8m0);
const QuantSpec nv = block_spec(Dtype::e2m1, 1, 16, ScaleKind::ue4m3), nv_weight = block_spec(Dtype::e2m1, 16, 16, ScaleKind::ue4m3);

// Where cuBLAS' documentation puts the scale of row `outer` and block `inner` of a matrix with `blocks` in a row.
size_t documented_offset(int64_t outer, int64_t inner, int64_t blocks) {
  const int64_t sf_inner_dim = (blocks + 3) / 4 * 4, tile = inner / 4 * 4 + outer / 128 * sf_inner_dim;
  return static_cast<size_t>(tile * 128 + outer % 32 * 16 + outer % 128 / 32 * 4 + inner % 4);
}

struct Grid {
  int64_t rows, blocks, block_rows;
  bool by_columns;   // as scales of 1xN blocks lie, else as those of 16x16
};
// Whole tiles, one of everything, ragged both ways, several tiles both ways.
constexpr Grid grids[] = {{128, 4, 1, true}, {1, 1, 1, true}, {130, 5, 1, true}, {300, 9, 1, true}, {160, 6, 16, false}, {40, 3, 16, false}, {272, 8, 1, false}};

// The tiles that the kernel makes of `scales` [grid rows, blocks].
std::vector<uint8_t> tiles_of(Rig& rig, const Grid& g, const std::vector<float>& scales, cuda::TwoLevelFit* fit) {
  const int64_t grid_rows = block_count(g.rows, g.block_rows), stride = g.by_columns ? grid_rows : (g.blocks + 3) / 4 * 4;
  Host stored(Dtype::f32, {g.by_columns ? g.blocks : grid_rows, stride});   // NaN where no scale is
  for (int64_t r = 0; r < grid_rows; ++r) {
    for (int64_t c = 0; c < g.blocks; ++c) stored.set(g.by_columns ? c * stride + r : r * stride + c, scales[static_cast<size_t>(r * g.blocks + c)]);
  }
  const Tensor on_device = rig.upload(stored), tiles = rig.upload(Host(Dtype::u8, {cuda::tiled_scale_bytes(g.rows, g.blocks)}), true);
  cuda::BlockScales s{on_device.as<float>(), g.by_columns ? 1 : stride, g.by_columns ? stride : 1, grid_rows, g.blocks, g.rows, g.block_rows, tiles.as<uint8_t>(), nullptr};
  if (fit) s.fit = rig.upload_value(*fit);
  cuda::launch_scale_tiles(rig.device().stream(), s);
  rig.device().synchronize();
  if (fit) *fit = rig.download_value(s.fit);
  std::vector<uint8_t> bytes = rig.download(tiles).bytes();
  rig.reset();
  return bytes;
}

TEST(block_scales, e8m0_tiles) {
  Rig rig;
  for (const Grid& g : grids) {
    std::vector<float> scales;
    std::vector<uint8_t> want(static_cast<size_t>(cuda::tiled_scale_bytes(g.rows, g.blocks)), 0);
    const int64_t grid_rows = block_count(g.rows, g.block_rows);
    for (int64_t i = 0; i < grid_rows * g.blocks; ++i) scales.push_back(e8m0_decode(static_cast<uint8_t>(i * 7 % 255)));   // with 2^-127, a subnormal
    for (int64_t r = 0; r < g.rows; ++r) {
      for (int64_t c = 0; c < g.blocks; ++c) want[documented_offset(r, c, g.blocks)] = static_cast<uint8_t>((r / g.block_rows * g.blocks + c) * 7 % 255);
    }
    EXPECT_EQ(tiles_of(rig, g, scales, nullptr), want) << g.rows << " rows, " << g.blocks << " blocks";
  }
}

// top: the largest code. With 448 the codes come back as they were; with another one scales are what they were.
TEST(block_scales, e4m3_tiles) {
  Rig rig;
  const float tensor_scale = two_level_tensor_scale(0.37f, 6.0f, 0.0f);
  for (const uint8_t top : {uint8_t{0x7E}, uint8_t{0x75}, uint8_t{0x03}, uint8_t{0}}) {
    for (const Grid& g : grids) {
      std::vector<uint8_t> codes;
      std::vector<float> scales;
      for (int64_t i = 0; i < block_count(g.rows, g.block_rows) * g.blocks; ++i) {
        codes.push_back(static_cast<uint8_t>((top + i * 11) % (top + 1)));
        scales.push_back(two_level_scale_inv(codes.back(), tensor_scale));
      }
      cuda::TwoLevelFit fit{~0u, ~0u};
      const std::vector<uint8_t> got = tiles_of(rig, g, scales, &fit);
      const float largest = float_from_bits(fit.largest), factor = largest / two_level_top_code(two_level_candidate(fit.misfits));
      EXPECT_EQ(largest, two_level_scale_inv(top, tensor_scale));
      std::vector<uint8_t> want(got.size(), 0);
      for (int64_t r = 0; r < g.rows; ++r) {
        for (int64_t c = 0; c < g.blocks; ++c) {
          const size_t at = documented_offset(r, c, g.blocks), block = static_cast<size_t>(r / g.block_rows * g.blocks + c);
          want[at] = top == 0x7E ? codes[block] : got[at];
          EXPECT_NEAR(decode<Dtype::e4m3>(got[at]) * factor, scales[block], scales[block] * 1e-6f) << "row " << r << ", block " << c << ", largest code " << int(top);
        }
      }
      EXPECT_EQ(got, want) << g.rows << " rows, " << g.blocks << " blocks, largest code " << int(top);
    }
  }
}

TEST(block_scales, codes_two_a_byte) {
  Rig rig;
  for (const auto& [rows, k, ld] : {std::array<int64_t, 3>{1, 32, 32}, {3, 96, 96}, {70, 64, 80}}) {
    Host codes(Dtype::u8, {rows, ld});
    for (int64_t i = 0; i < codes.elements(); ++i) codes.bytes()[static_cast<size_t>(i)] = static_cast<uint8_t>(i * 5 % 16);
    const Tensor on_device = rig.upload(codes), packed = rig.upload(Host(Dtype::u8, {rows, k / 2}), true);
    cuda::launch_pack_e2m1(rig.device().stream(), on_device.as<uint8_t>(), ld, rows, k, packed.as<uint8_t>());
    const Host got = rig.download(packed);
    for (int64_t i = 0; i < rows * k / 2; ++i) {
      const int64_t first = 2 * i / k * ld + 2 * i % k;
      ASSERT_EQ(got.bytes()[static_cast<size_t>(i)], first * 5 % 16 | (first + 1) * 5 % 16 << 4) << "byte " << i << " of " << rows << "x" << k;
    }
    rig.reset();
  }
}

TEST(block_scales, extents_that_products_have) {
  const auto refusal = [](const QuantSpec& a, const QuantSpec& b, int64_t m, int64_t n, int64_t k) {
    Arena counting;
    const GemmTerm term{alloc_image(counting, a, m, k, false, ImageLayout::gemm), alloc_image(counting, b, n, k, false, ImageLayout::gemm)};
    const cuda::GemmProblem p = cuda::problem_of(term, Tensor{nullptr, Dtype::bf16, {m, n}}, 0.0f, Accumulate::fast, {});
    EXPECT_EQ(cuda::why_emulated(p, blackwell), "");
    EXPECT_NE(cuda::why_emulated(p, hopper), "");
    EXPECT_FALSE(p.fast) << "the flag is for 8.9 and 9.0";
    return cuda::why_refused(p);
  };
  for (const auto& [a, b] : {std::pair{mx, mx}, {mx_e5m2, mx}, {nv, nv}, {nv, nv_weight}}) {
    EXPECT_EQ(refusal(a, b, 144, 16, 96), "");
    EXPECT_NE(refusal(a, b, 144, 16, 112).find("a contraction that is a multiple of 32, this one is 112"), std::string::npos);
    EXPECT_NE(refusal(a, b, 136, 16, 96).find("multiples of 16"), std::string::npos);
    EXPECT_NE(refusal(a, b, 144, 24, 96).find("multiples of 16"), std::string::npos);
  }
}

// Products on a device of compute capability 10.0: the plans' part on the host is simt/host_gemm.cpp, which reads tiles and halves of bytes by the documentation.
class NativeProducts : public ::testing::Test {
 protected:
  void SetUp() override {
#ifndef OCTET_SIMT
    if (rig_.device().info().capability < blackwell) GTEST_SKIP() << "compute capability " << name(rig_.device().info().capability);
#endif
  }

  struct Pair {
    Operand host, device;
  };
  // given: the amax of a tensor of which this is a part, 0 without.
  Pair operand(const std::string& name, const QuantSpec& spec, int64_t rows, int64_t k, bool column, float given) {
    values_.push_back(std::make_unique<Host>(normal(name, Dtype::bf16, column ? Shape{k, rows} : Shape{rows, k})));
    Host& x = *values_.back();
    const int64_t r = x.shape()[0], c = x.shape()[1];
    const Tensor on_device = rig_.upload(x);
    QuantizedOut host, device;
    (column ? host.col_spec : host.row_spec) = spec;
    device = host;
    (column ? host.col : host.row) = alloc_image(memory_, spec, r, c, column);
    (column ? device.col : device.row) = rig_.upload_image(spec, r, c, column);
    if (given != 0) {
      values_.push_back(std::make_unique<Host>(Host(Dtype::f32, {1})));
      values_.back()->set(0, given);
      (column ? host.col_amax : host.row_amax) = values_.back()->tensor();
      (column ? device.col_amax : device.row_amax) = rig_.upload(*values_.back());
    }
    rig_.on_host([&](Ctx& ctx) { cpu::quantize(ctx, x.tensor(), host); });
    rig_.on_device([&](Ctx& ctx) { cuda::quantize(ctx, on_device, device); });
    return {column ? host.col : host.row, column ? device.col : device.row};
  }

  // The product of `terms` at `on` against the CPU's, within `tolerance`; twice.
  void compare_products(const std::vector<std::pair<Pair, Pair>>& terms, Dtype out, float beta, bool biased, Capability on, double tolerance, const std::string& what) {
    std::vector<GemmTerm> host, device;
    for (const auto& [a, b] : terms) {
      host.push_back({a.host, b.host});
      device.push_back({a.device, b.device});
    }
    const Shape shape{host.front().a.rows(), host.front().b.rows()};
    Host first = normal("c", out, shape), bias = normal("bias", Dtype::bf16, {shape[1]}), want = first;
    const Tensor bias_on_device = rig_.upload(bias);
    rig_.on_host([&](Ctx& ctx) { cpu::gemm(ctx, host, want.tensor(), beta, Accumulate::accurate, biased ? bias.tensor() : Tensor{}); });
    Host before;
    for (int round = 0; round < 2; ++round) {
      const Tensor got = rig_.upload(first);
      rig_.on_device([&](Ctx& ctx) {
        ctx.capability = on;
        cuda::gemm(ctx, device, got, beta, Accumulate::accurate, biased ? bias_on_device : Tensor{});
      });
      const Host result = rig_.download(got);
      expect_close(result, want, tolerance, what);
      if (round == 1) expect_same(result, before, what + ", again");
      before = result;
    }
  }
  // Whether a product of these scales was planned.
  bool planned(const std::string& scales) {
    for (const auto& [product, algorithm] : rig_.device().gemm_plans().choices()) {
      if (product.find(scales) != std::string::npos) return true;
    }
    return false;
  }

  Rig rig_{size_t{64} << 20};
  Arena memory_{size_t{64} << 20};
  std::vector<std::unique_ptr<Host>> values_;
};

TEST_F(NativeProducts, are_those_of_the_cpu) {
  struct Mode {
    const char *name, *scales;
    QuantSpec a, b;
    float given;
  };
  // A tensor scale of a larger tensor: no block of the part has the code 448.
  for (const Mode& mode : {Mode{"MXFP8", " MX ", mx, mx, 0}, {"MXFP8 E5M2", " MX ", mx_e5m2, mx, 0}, {"NVFP4", " NV ", nv, nv, 0}, {"NVFP4 weights", " NV ", nv, nv_weight, 0},
                           {"NVFP4 of a part", " NV ", nv, nv_weight, 13.7f}}) {
    for (const bool column : {false, true}) {
      const std::string what = fmt::format("{} {}", mode.name, column ? "column images" : "row images");
      const auto term = [&](int64_t k) {
        return std::pair{operand(fmt::format("a{}", k), mode.a, 144, k, column, mode.given), operand(fmt::format("b{}", k), mode.b, 48, k, column, mode.given)};
      };
      const std::vector<std::pair<Pair, Pair>> one{term(160)}, several{one.front(), term(64)};
      // FP32 sums in another order. Emulated NVFP4 rounds decoded operands to BF16, which shows in FP32 results.
      for (const float beta : {0.0f, 1.0f}) compare_products(one, Dtype::f32, beta, false, blackwell, 2e-6, what);
      compare_products(one, Dtype::bf16, 0.0f, true, blackwell, 2e-6, what + " with bias");
      compare_products(several, Dtype::bf16, 0.0f, false, blackwell, 2e-6, what + ", several terms");
      EXPECT_TRUE(planned(mode.scales)) << what;
      rig_.reset();
    }
  }
}

#ifdef OCTET_SIMT
TEST_F(NativeProducts, stay_emulated_before_10_0) {
  for (const QuantSpec& spec : {mx, nv}) {
    const std::vector<std::pair<Pair, Pair>> one{{operand("a", spec, 144, 160, false, 0), operand("b", spec, 48, 160, false, 0)}};
    compare_products(one, Dtype::f32, 0.0f, false, hopper, 4e-3, std::string(name(spec.format)));
  }
  EXPECT_FALSE(planned(" MX ")) << "decoded to BF16";
  EXPECT_FALSE(planned(" NV "));
  EXPECT_TRUE(planned("bf16 [144, 160]"));
}
#endif

}  // namespace
