// The shadow of a run: whole steps agree and stay the same bits, and what is wrong is found and named.
#include <functional>
#include <initializer_list>
#include <set>

#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "ops/embedding.h"
#include "ops/loss.h"
#include "ops/mirror.h"
#include "ops/reduce.h"
#include "parity_run.h"
#include "rig.h"

using namespace parity;
using namespace octet::test;

namespace {

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << "no \"" << word << "\" in: " << text;
}

std::set<std::string> operators(const Shadow& shadow) {
  std::set<std::string> names;
  for (const auto& [op, total] : shadow.totals()) names.insert(op);
  return names;
}

// Two steps, the second with statistics, and a validation: the same numbers as without a shadow.
void expect_agreement_of_steps(RunConfig c, const std::set<std::string>& operators_called) {
  Engine plain(c);
  const auto want = losses(plain, c, 0, 2);
  const double want_valid = plain.evaluate(random_step(c, 50).micro);
  c.run.shadow = true;
  validate(c);
  Engine shadowed(c, Engine::Memory::poisoned);
  EXPECT_EQ(losses(shadowed, c, 0, 2), want);
  EXPECT_EQ(shadowed.evaluate(random_step(c, 50).micro), want_valid);
  EXPECT_EQ(states(shadowed), states(plain));
  ASSERT_NE(shadowed.shadow(), nullptr);
  EXPECT_EQ(operators(*shadowed.shadow()), operators_called);
  for (const auto& [op, total] : shadowed.shadow()->totals()) {
    EXPECT_LE(total.worst, 1) << op;
    std::printf("%-22s %5d calls, largest difference %.2g of what is allowed\n", op.c_str(), static_cast<int>(total.calls), total.worst);
  }
  expect_words(shadowed.shadow()->summary(), {"validation", "operator calls agree"});
}

// Of a model with biases and QK-norm.
std::set<std::string> all_operators(bool quantized) {
  std::set<std::string> all{"adamw", "attention", "attention_backward", "column_sums", "copy", "cross_entropy", "decide_step", "embedding", "embedding_backward", "gemm", "qk_norm_rope",
                            "qk_norm_rope_backward", "rmsnorm_backward", "rmsnorm_quantize", "sum", "sum_squares", "swiglu_backward", "swiglu_quantize", "zero"};
  if (quantized) all.insert("quantize");
  return all;
}

class ShadowedSteps : public testing::TestWithParam<std::string> {};

TEST_P(ShadowedSteps, agree_and_stay_the_same_bits) { expect_agreement_of_steps(config(GetParam(), "cuda"), all_operators(GetParam() != "bf16")); }

INSTANTIATE_TEST_SUITE_P(Recipes, ShadowedSteps, testing::Values("bf16", "tensorwise", "delayed", "rowwise", "blockwise", "custom"), [](const auto& recipe) { return recipe.param; });

TEST(shadow, compact_states_documents_and_recomputation_agree) {
  RunConfig c = config("blockwise", "cuda");
  c.optim.master_weights = "bf16_remainder";
  c.optim.moments = "bf16";
  c.optim.fused_images = true;
  c.optim.offload = true;
  c.recompute.swiglu_inputs = "fp8";
  c.data.document_mask = true;
  c.data.eod_id = 1;
  c.recompute.modules = {"norm", "swiglu", "attention"};
  c.model.use_qk_norm = c.model.attention_bias = false;
  c.precision.head = "fp8";
  std::set<std::string> called = all_operators(true);
  called.erase("column_sums");
  called.insert({"adamw_quantize", "dequantize"});
  expect_agreement_of_steps(c, called);
}

TEST(shadow, non_finite_steps_agree_and_are_skipped) {
  RunConfig c = config("delayed", "cuda");
  c.run.shadow = true;
  Engine e(c);
  losses(e, c, 0, 1);
  for (const auto& p : e.model().params()) {
    if (p->name == "model.layers.1.mlp.gate_proj.weight") write_master(e.machine(), *p, [](float* w) { w[5] = std::numeric_limits<float>::quiet_NaN(); });
  }
  e.weights_loaded(1);
  EXPECT_TRUE(e.step(random_step(c, 1), 1).skipped);
}

// What no run on one rank calls.
TEST(shadow, operators_of_a_rank_among_others_agree) {
  Rig rig;
  Shadow shadow;
  const int64_t rows = 12, width = 64, columns = 50, first = 100;
  Host ids(Dtype::i32, {rows});
  for (int64_t i = 0; i < rows; ++i) ids.set(i, i == 2 ? -1.0 : static_cast<double>(first - 5 + 7 * i));
  const Tensor logits = rig.upload(normal("logits", Dtype::bf16, {rows, width}, 3.0)), labels = rig.upload(ids), parts = rig.upload(Host(Dtype::f32, {1, rows, 3}), true),
               loss = rig.upload(Host(Dtype::f32, {rows}), true), z = rig.upload(Host(Dtype::f32, {rows}), true), out = rig.upload(Host(Dtype::bf16, {rows, width}), true),
               table = rig.upload(normal("table", Dtype::bf16, {columns, width})), d_table = rig.upload(normal("d", Dtype::f32, {columns, width}));
  const float* scale = rig.upload_value(0.25f);
  QuantSpec spec = block_spec(Dtype::e4m3, 1, 0);
  spec.rounding = Rounding::stochastic;
  QuantizedOut images{spec, spec, rig.upload_image(spec, rows, width, false), rig.upload_image(spec, rows, width, true), {}};
  images.row_amax = rig.upload(Host(Dtype::f32, {rows}), true);
  images.col_amax = rig.upload(Host(Dtype::f32, {width}), true);
  images.target.place = {24, 64, 256};
  const Tensor turned = rig.upload(Host(Dtype::e4m3, {width, rows}), true), joined = rig.upload(Host(Dtype::bf16, {rows / 3, 3 * width}), true),
               scales = rig.upload(Host(Dtype::f32, {4}, 0)), codes = rig.upload(Host(Dtype::e8m0, {4}), true);
  rig.on_device([&](Ctx& ctx) {
    if (!ctx.planning()) {
      shadow.begin("step 1", 1);
      ctx.shadow = &shadow;
    }
    ops::softmax_parts(ctx, logits, labels, first, columns, {parts.data, Dtype::f32, {rows, 3}});
    ops::cross_entropy_of_parts(ctx, logits, labels, first, columns, parts, 1e-3f, scale, loss, z);
    ops::embedding(ctx, table, labels, out, first);
    ops::embedding_backward(ctx, out, labels, d_table, first);
    for (const bool column : {false, true}) ops::shared_amaxes(ctx, logits, spec, column, column ? images.col_amax : images.row_amax);
    ops::quantize(ctx, logits, images);
    ops::transpose(ctx, images.row.data, turned);
    ops::join_columns(ctx, MatrixView(logits).columns(0, 40), MatrixView(joined).columns(8, 120));
    ops::narrow_scales(ctx, scales, codes);
    ops::widen_scales(ctx, codes, scales);
  });
  EXPECT_EQ(operators(shadow), (std::set<std::string>{"cross_entropy_of_parts", "embedding", "embedding_backward", "join_columns", "narrow_scales", "quantize", "shared_amaxes", "softmax_parts",
                                                      "transpose", "widen_scales"}));
  for (const auto& [op, total] : shadow.totals()) EXPECT_LE(total.worst, 1) << op;
  rig.reset();
}

std::string failure_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::verdict_no) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing disagrees";
  return {};
}

// A parameter's working copy comes to lie where its second moment lies: the optimizer's kernel overwrites the one with the other, which no operator by itself
// would show.
TEST(shadow, memory_that_two_tensors_share_is_found_in_a_step) {
  RunConfig c = config("bf16", "cuda");
  c.run.shadow = true;
  Engine e(c);
  for (const auto& p : e.model().params()) {
    if (p->name == "model.layers.1.mlp.down_proj.weight") p->working.data = p->own_working.data = p->exp_avg_sq.data;
  }
  const std::string error = failure_of([&] { e.step(random_step(c, 0), 0); });
  // Which of the optimizer's results shows it depends on the order of threads.
  expect_words(error, {"step 1, call ", ", adamw in optimizer", " elements of ", "; the first, row ", "the same bits are expected", "--dump \"1:*\""});
}

class Faults : public testing::Test {
 protected:
  // In the last byte of element `at` of device memory.
  void flip_top_bit(void* memory, int64_t at, size_t width) {
    auto* byte = static_cast<uint8_t*>(memory) + static_cast<size_t>(at + 1) * width - 1;
    uint8_t value = 0;
    rig_.device().copy_out(&value, byte, 1);
    value ^= 0x80;
    rig_.device().copy_in(byte, &value, 1);
    rig_.device().synchronize();
  }
  // work(context with a shadow), in step 7.
  std::string found(const std::function<void(Ctx&)>& work) {
    return failure_of([&] {
      shadow_.begin("step 7", 7);
      rig_.on_device([&](Ctx& ctx) {
        Span span(&shadow_.spans(), "layers.3.mlp.down", "fprop");
        if (!ctx.planning()) ctx.shadow = &shadow_;
        work(ctx);
      });
    });
  }

  Rig rig_;
  Shadow shadow_;
};

TEST_F(Faults, a_wrong_element_of_a_product) {
  const Tensor a = rig_.upload(normal("a", Dtype::bf16, {24, 40})), b = rig_.upload(normal("b", Dtype::bf16, {32, 40})), out = rig_.upload(Host(Dtype::bf16, {24, 48}), true);
  const MatrixView part = MatrixView(out).columns(8, 32);
  const std::string error = found([&](Ctx& ctx) {
    const GemmTerm term{Operand::plain(a), Operand::plain(b)};
    if (ctx.planning()) return cuda::gemm(ctx, {&term, 1}, part, 0.0f, Accumulate::accurate, {});
    Mirror m(ctx, "gemm");
    const GemmTerm host{m.in(term.a).host, m.in(term.b).host};
    m.run(
        [&](Ctx& device, const MatrixView& to) {
          cuda::gemm(device, {&term, 1}, to, 0.0f, Accumulate::accurate, {});
          flip_top_bit(out.data, 5 * 48 + 8 + 17, 2);
        },
        [&](Ctx& cpu, const MatrixView& to) { cpu::gemm(cpu, {&host, 1}, to, 0.0f, Accumulate::accurate, {}); }, m.out("out", part, {.relative = 2e-3, .ulps = 1}));
  });
  expect_words(error, {"step 7, call 1, gemm in layers.3.mlp.down fprop", "1 of 768 elements of out", "row 5 column 17", "times what is allowed",
                       "--dump \"7:layers.3.mlp.down\"", "parity_cuda"});
}

// Every result of a quantizer, in both layouts: a column image's codes lie transposed on the device.
TEST_F(Faults, wrong_images_and_accounts) {
  const int64_t rows = 144, cols = 160;
  const QuantSpec spec = block_spec(Dtype::e4m3, 1, 128);
  const Tensor x = rig_.upload(normal("x", Dtype::bf16, {rows, cols}));
  QuantizedOut out{spec, spec, rig_.upload_image(spec, rows, cols, false), rig_.upload_image(spec, rows, cols, true), {}};
  out.target.amax = rig_.upload_value(0.0f);
  out.target.nonfinite = rig_.upload_value(int64_t{0});
  out.target.col_health = rig_.upload_value(ImageHealth{});
  const auto error_after = [&](const std::function<void()>& fault) {
    return found([&](Ctx& ctx) {
      if (ctx.planning()) return cuda::quantize(ctx, x, out);
      Mirror m(ctx, "quantize");
      m.run(
          [&](Ctx& device, const Tensor& from, const QuantizedOut& to) {
            cuda::quantize(device, from, to);
            fault();
          },
          cpu::quantize, m.in(x), m.out("", out));
    });
  };
  expect_words(error_after([&] { flip_top_bit(out.row.data.data, 3 * cols + 9, 1); }), {"1 of 23040 elements of row image's codes", "row 3 column 9,"});
  expect_words(error_after([&] { flip_top_bit(out.col.data.data, 9 * rows + 3, 1); }), {"column image's codes", "row 3 column 9,"});
  // [k / 128][rows]
  expect_words(error_after([&] { flip_top_bit(out.row.scale_inv.data, rows + 5, 4); }), {"1 of 288 elements of row image's scale_inv", "row 5 column 1,"});
  expect_words(error_after([&] { flip_top_bit(out.target.amax, 0, 4); }), {"elements of amax;"});
  expect_words(error_after([&] { flip_top_bit(out.target.nonfinite, 0, 1); }), {"elements of nonfinite;"});
  expect_words(error_after([&] { flip_top_bit(&out.target.col_health->sum_qq, 0, 8); }), {"elements of col_health.sum_qq;"});
}

}  // namespace
