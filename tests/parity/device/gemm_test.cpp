// Products on the GPU: every native scale mode and format against the CPU backend's product of the same images, and the emulated ones.
#include <fmt/format.h>

#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/gemm/plans.h"
#include "../rig.h"

using namespace parity;

namespace {

// One operand on both machines: quantized there from the same BF16 values, or those values themselves.
struct Pair {
  Operand host, device;
};

class Products : public ::testing::Test {
 protected:
  // The matrix [rows, k], as a row image, or as the column image of its transpose [k, rows] (what wgrad reads).
  Pair operand(const std::string& name, const QuantSpec& spec, int64_t rows, int64_t k, bool column, double scale = 1.0) {
    values_.push_back(std::make_unique<Host>(normal(name, Dtype::bf16, column ? Shape{k, rows} : Shape{rows, k}, scale)));
    Host& x = *values_.back();
    const Tensor on_device = rig_.upload(x);
    if (!spec.quantized()) return {Operand::plain(x.tensor(), column), Operand::plain(on_device, column)};
    const int64_t r = x.shape()[0], c = x.shape()[1];
    QuantizedOut host, device;
    (column ? host.col_spec : host.row_spec) = spec;
    device = host;
    (column ? host.col : host.row) = alloc_image(memory_, spec, r, c, column);
    (column ? device.col : device.row) = rig_.upload_image(spec, r, c, column);
    rig_.on_host([&](Ctx& ctx) { cpu::quantize(ctx, x.tensor(), host); });
    rig_.on_device([&](Ctx& ctx) { cuda::quantize(ctx, ctx.planning() ? MatrixView(Tensor{nullptr, Dtype::bf16, {r, c}}) : MatrixView(on_device), device); });
    return {column ? host.col : host.row, column ? device.col : device.row};
  }

  // Relative Frobenius error of the device's product against the CPU's, which sums the same exact operands in FP32.
  double error(const std::vector<std::pair<Pair, Pair>>& terms, int64_t m, int64_t n, Dtype out, float beta, Accumulate accumulate, bool with_bias = false) {
    Host first = normal("c", out, {m, n}), bias = normal("bias", Dtype::bf16, {n});
    Host want = first;
    const Tensor got = rig_.upload(first), again = rig_.upload(first), bias_on_device = rig_.upload(bias);
    std::vector<GemmTerm> host, device;
    for (const auto& [a, b] : terms) {
      host.push_back({a.host, b.host});
      device.push_back({a.device, b.device});
    }
    rig_.on_host([&](Ctx& ctx) { cpu::gemm(ctx, host, want.tensor(), beta, accumulate, with_bias ? bias.tensor() : Tensor{}); });
    try {
      for (const Tensor& out_again : {got, again}) {
        rig_.on_device([&](Ctx& ctx) { cuda::gemm(ctx, device, out_again, beta, accumulate, with_bias ? bias_on_device : Tensor{}); });
      }
    } catch (const Error& refused) {
      ADD_FAILURE() << refused.what();
      return std::numeric_limits<double>::quiet_NaN();
    }
    const Host result = rig_.download(got);
    expect_same(rig_.download(again), result, "the same product again");
    double difference = 0, size = 0;
    for (int64_t i = 0; i < want.elements(); ++i) {
      const double d = static_cast<double>(result.at(i)) - want.at(i);
      difference += d * d;
      size += static_cast<double>(want.at(i)) * want.at(i);
    }
    return std::sqrt(difference / size);   // NaN stays NaN
  }
  void finish() {
    rig_.reset();
    values_.clear();
  }

  Rig rig_{size_t{512} << 20};
  Arena memory_{size_t{256} << 20};
  std::vector<std::unique_ptr<Host>> values_;
};

struct Mode {
  const char* name;
  QuantSpec a, b;
};

std::vector<Mode> modes() {
  const QuantSpec plain;
  const auto e4 = [](int64_t r, int64_t c) { return block_spec(Dtype::e4m3, r, c); };
  const auto e5 = [](int64_t r, int64_t c) { return block_spec(Dtype::e5m2, r, c); };
  return {{"bf16", plain, plain},
          {"tensor e4m3", e4(0, 0), e4(0, 0)},
          {"tensor e5m2 by e4m3", e5(0, 0), e4(0, 0)},
          {"row", e4(1, 0), e4(1, 0)},
          {"1x128 by 128x128", e4(1, 128), e4(128, 128)},
          {"1x128 by 1x128", e4(1, 128), e4(1, 128)},
          {"1x128 e5m2 by 128x128 e4m3", e5(1, 128), e4(128, 128)}};
}

TEST_F(Products, native_modes) {
  struct Size {
    int64_t m, n, k;
  };
  for (const Mode& mode : modes()) {
    for (const auto& [m, n, k] : {Size{256, 384, 512}, {144, 208, 272}, {1024, 512, 4096}}) {
      for (const bool columns : {false, true}) {
        for (const Dtype out : {Dtype::bf16, Dtype::f32}) {
          const float beta = out == Dtype::f32 ? 1.0f : 0.0f;
          const std::string what = fmt::format("{} {}x{}x{} {} {}", mode.name, m, n, k, columns ? "column images" : "row images", name(out));
          const Pair a = operand("a" + what, mode.a, m, k, columns), b = operand("b" + what, mode.b, n, k, columns);
          const MatrixView shape(Tensor{nullptr, out, {m, n}});
          const cuda::GemmProblem problem = cuda::problem_of({a.device, b.device}, shape, beta, Accumulate::accurate, {});
          EXPECT_EQ(cuda::why_emulated(problem, {9, 0}) + cuda::why_refused(problem), "") << what;
          // FP32 sums in two orders; BF16 results are rounded once by both, to neighbours at worst.
          EXPECT_LT(error({{a, b}}, m, n, out, beta, Accumulate::accurate), out == Dtype::bf16 ? 2e-3 : 1e-3) << what;
          if (mode.a.per_tensor() && mode.a.quantized()) {
            EXPECT_LT(error({{a, b}}, m, n, out, beta, Accumulate::fast), 5e-3) << what << " fast";
          }
          if (out == Dtype::bf16) {
            EXPECT_LT(error({{a, b}}, m, n, out, 0.0f, Accumulate::accurate, true), 2e-3) << what << " with bias";
          }
          finish();
        }
      }
    }
  }
}

TEST_F(Products, several_terms_are_rounded_once) {
  for (const Mode& mode : modes()) {
    const int64_t m = 256, n = 320;
    std::vector<std::pair<Pair, Pair>> terms;
    for (const int64_t k : {256, 128, 128}) terms.emplace_back(operand(fmt::format("a{}", k), mode.a, m, k, false), operand(fmt::format("b{}", k), mode.b, n, k, false));
    EXPECT_LT(error(terms, m, n, Dtype::bf16, 0.0f, Accumulate::accurate), 2e-3) << mode.name;
    EXPECT_LT(error(terms, m, n, Dtype::f32, 1.0f, Accumulate::accurate), 1e-3) << mode.name;
    finish();
  }
}

TEST_F(Products, emulated_modes) {
  const auto mx = block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0), fp4 = block_spec(Dtype::e2m1, 1, 16, ScaleKind::ue4m3), fp6 = block_spec(Dtype::e3m2, 1, 32, ScaleKind::e8m0);
  for (const QuantSpec& spec : {mx, fp4, fp6}) {
    const Pair a = operand("a", spec, 256, 384, false), b = operand("b", spec, 128, 384, true);
    const MatrixView shape(Tensor{nullptr, Dtype::f32, {256, 128}});
    EXPECT_NE(cuda::why_emulated(cuda::problem_of({a.device, b.device}, shape, 0.0f, Accumulate::accurate, {}), {9, 0}), "");
    // Power-of-two scales leave decoded values exact in BF16; NVFP4's do not.
    EXPECT_LT(error({{a, b}}, 256, 128, Dtype::f32, 0.0f, Accumulate::accurate), spec.scale == ScaleKind::ue4m3 ? 4e-3 : 1e-4) << name(spec.format);
    finish();
  }
}

// Extents that FP8 has not, and a square image read the other way round, as the CPU backend does.
TEST_F(Products, impossible_ones_are_refused) {
  const QuantSpec line = block_spec(Dtype::e4m3, 1, 128), square = block_spec(Dtype::e4m3, 128, 128);
  const auto refusal = [&](const GemmTerm& term, int64_t m, int64_t n) -> std::string {
    const Tensor out = rig_.upload(Host(Dtype::bf16, {m, n}, 0));
    try {
      rig_.on_device([&](Ctx& ctx) { cuda::gemm(ctx, {&term, 1}, out, 0.0f, Accumulate::accurate, {}); });
    } catch (const Error& error) {
      return error.what();
    }
    return "it was done";
  };
  const Pair a = operand("a", line, 72, 256, false), b = operand("b", square, 128, 256, false), c = operand("c", line, 64, 128, false);
  EXPECT_NE(refusal({a.device, b.device}, 72, 128).find("multiples of 16"), std::string::npos);
  EXPECT_NE(refusal({c.device, b.device.flipped()}, 64, 256).find("contraction contiguous"), std::string::npos);
  finish();
}

// Column ranges: rows of the result further apart than they are long, and a range that begins at no multiple of 16 bytes.
TEST_F(Products, column_ranges_of_a_wider_result) {
  for (const int64_t first : {0, 36, 128}) {
    const Pair a = operand("a", QuantSpec{}, 100, 72, false), b = operand("b", QuantSpec{}, 60, 72, true);
    Host whole = normal("whole", Dtype::bf16, {100, 256}), want = whole;
    const Tensor on_device = rig_.upload(whole);
    const GemmTerm host{a.host, b.host}, device{a.device, b.device};
    rig_.on_host([&](Ctx& ctx) { cpu::gemm(ctx, {&host, 1}, MatrixView(want.tensor()).columns(first, 60), 0.0f, Accumulate::accurate, {}); });
    rig_.on_device([&](Ctx& ctx) { cuda::gemm(ctx, {&device, 1}, MatrixView(on_device).columns(first, 60), 0.0f, Accumulate::accurate, {}); });
    expect_close(rig_.download(on_device), want, 1e-5, fmt::format("columns from {}", first));
    finish();
  }
}

TEST_F(Products, tuning_keeps_a_choice_that_can_be_stored) {
  cuda::GemmPlans& plans = rig_.device().gemm_plans();
  const Pair a = operand("a", QuantSpec{}, 512, 256, false), b = operand("b", QuantSpec{}, 512, 256, false);
  const double before = error({{a, b}}, 512, 512, Dtype::f32, 0.0f, Accumulate::accurate);
  Arena memory(size_t{64} << 20, rig_.device().memory(), false);
  EXPECT_GE(plans.tune(memory.alloc(Dtype::u8, {int64_t{60} << 20}).data, size_t{60} << 20).first, 1);
  EXPECT_LT(before, 1e-4);
  EXPECT_LT(error({{a, b}}, 512, 512, Dtype::f32, 0.0f, Accumulate::accurate), 1e-4);
  const auto choices = plans.choices();
  ASSERT_FALSE(choices.empty());
  cuda::GemmPlans again(rig_.device());
  again.choose(choices);
  const GemmTerm term{a.device, b.device};
  const Tensor out = rig_.upload(Host(Dtype::f32, {512, 512}, 0)), out2 = rig_.upload(Host(Dtype::f32, {512, 512}, 0));
  const auto problem = cuda::problem_of(term, out, 0.0f, Accumulate::accurate, {});
  plans.run(problem, term, out, {});
  again.run(problem, term, out2, {});
  expect_same(rig_.download(out2), rig_.download(out), "the stored algorithm");
  for (const auto& [name, algorithm] : again.choices()) EXPECT_EQ(choices.at(name), algorithm);
}

}  // namespace
