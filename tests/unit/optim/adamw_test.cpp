// AdamW over parameters: bias correction, decay groups, clipping, the global norm.
#include "optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

using namespace octet;

namespace {

using Params = std::vector<std::unique_ptr<Param>>;

class Adamw : public ::testing::Test {
 protected:
  Adamw() { ctx.seed = 1; }

  Param& add(const char* name, Shape shape, bool decay, Dtype compute = Dtype::bf16) {
    params.push_back(std::make_unique<Param>(Param{name, shape, shape[0], Init::normal, decay, {0, shape[0]}, shape}));
    Param& p = *params.back();
    allocate(p, {&memory, &memory}, {compute});
    for (const Tensor* t : {&p.grad, &p.exp_avg, &p.exp_avg_sq}) std::memset(t->data, 0, t->bytes());
    for (int64_t i = 0; i < shape.elements(); ++i) p.master.as<float>()[i] = 0.01f * static_cast<float>(i % 17 - 8) + 0.003f;
    if (compute == Dtype::bf16) {
      for (int64_t i = 0; i < shape.elements(); ++i) p.working.as<bf16>()[i] = to_bf16(p.master.as<float>()[i]);
    }
    return p;
  }
  void fill_grad(Param& p, float value) {
    for (int64_t i = 0; i < p.shape.elements(); ++i) p.grad.as<float>()[i] = value;
  }
  static std::vector<float> values(const Tensor& t) { return {t.as<float>(), t.as<float>() + t.elements()}; }

  Arena memory{1 << 20}, scratch{1 << 16};
  ThreadPool pool{2};
  Ctx ctx{pool, scratch, GemmMath::fixed};
  Params params;
  const StepControl unclipped{1.0f, 0}, clipped{0.25f, 0};
};

OptimConfig optim(double weight_decay) {
  OptimConfig o;
  o.lr = 1e-2;
  o.weight_decay = weight_decay;
  return o;
}

TEST_F(Adamw, bias_correction_in_closed_form) {
  // With a constant gradient g, m_t = (1 - beta1^t) g and v_t = (1 - beta2^t) g^2: each of the first updates is exactly lr * g / (|g| + eps).
  for (float g : {0.5f, -2.0f, 1e-4f}) {
    params.clear();
    Param& p = add("w", {3, 5}, false);
    fill_grad(p, g);
    std::vector<double> want;
    for (float w : values(p.master)) want.push_back(w);
    for (int64_t update = 1; update <= 3; ++update) {
      adamw_update(ctx, params, optim(0.1), 1e-2, update, &unclipped);
      for (size_t i = 0; i < want.size(); ++i) {
        want[i] -= 1e-2 * static_cast<double>(g) / (std::fabs(static_cast<double>(g)) + 1e-8);
        EXPECT_NEAR(p.master.as<float>()[i], want[i], 2e-8 * static_cast<double>(update) + 1e-6 * 1e-2 * static_cast<double>(update))
            << "update " << update;
        EXPECT_NEAR(p.exp_avg.as<float>()[i] / g, 1.0 - std::pow(0.9, static_cast<double>(update)), 1e-6);
        EXPECT_NEAR(p.exp_avg_sq.as<float>()[i] / (g * g), 1.0 - std::pow(0.95, static_cast<double>(update)), 1e-6);
      }
    }
  }
}

TEST_F(Adamw, zero_gradients_decay_matrices_and_leave_the_rest_bitwise_unchanged) {
  Param& matrix = add("model.layers.0.mlp.down_proj.weight", {4, 6}, true);
  Param& norm = add("model.layers.0.input_layernorm.weight", {6}, false);
  Param& bias = add("model.layers.0.self_attn.q_proj.bias", {6}, false);
  Param& q_norm = add("model.layers.0.self_attn.q_norm.weight", {4}, false);
  const std::vector<float> before = values(matrix.master);
  std::vector<std::vector<float>> others;
  for (Param* p : {&norm, &bias, &q_norm}) others.push_back(values(p->master));
  adamw_update(ctx, params, optim(0.1), 1e-2, 1, &unclipped);
  for (size_t i = 0; i < before.size(); ++i) {
    // w - lr * (wd * w), the inner product rounded, the outer fused.
    const float want = std::fma(-1e-2f, 0.1f * before[i], before[i]);
    EXPECT_EQ(matrix.master.as<float>()[i], want);
    EXPECT_NEAR(matrix.master.as<float>()[i], static_cast<double>(before[i]) * (1.0 - 1e-3), 1e-8);
    EXPECT_NE(matrix.master.as<float>()[i], before[i]);
  }
  size_t k = 0;
  for (Param* p : {&norm, &bias, &q_norm}) {
    const std::vector<float> after = values(p->master);
    EXPECT_EQ(std::memcmp(after.data(), others[k].data(), after.size() * sizeof(float)), 0) << p->name;
    ++k;
  }
}

TEST_F(Adamw, decay_moves_fp32_masters_that_bf16_weights_would_lose) {
  Param& p = add("w", {1, 1}, true);
  p.master.as<float>()[0] = 1.0f;
  for (int64_t update = 1; update <= 1000; ++update) adamw_update(ctx, params, optim(0.1), 1e-4, update, &unclipped);
  EXPECT_NEAR(p.master.as<float>()[0], std::pow(1.0 - 1e-5, 1000), 3e-5);  // each of these steps is below half a BF16 unit
  EXPECT_EQ(p.working.as<bf16>()[0].bits, to_bf16(p.master.as<float>()[0]).bits);
}

TEST_F(Adamw, gradients_are_scaled_by_the_clip_factor) {
  Param& p = add("w", {2, 3}, false);
  fill_grad(p, 8.0f);
  adamw_update(ctx, params, optim(0.0), 1e-2, 1, &clipped);
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(p.exp_avg.as<float>()[i], 0.2, 1e-7);      // (1 - 0.9) * 8 * 0.25
    EXPECT_NEAR(p.exp_avg_sq.as<float>()[i], 0.2, 1e-6);   // (1 - 0.95) * (8 * 0.25)^2
    EXPECT_EQ(p.grad.as<float>()[i], 8.0f);                // gradients themselves are not touched
  }
}

TEST_F(Adamw, working_copies_follow_their_masters) {
  Param& copied = add("a", {3, 7}, true, Dtype::bf16);
  Param& own = add("b", {3, 7}, true, Dtype::f32);
  fill_grad(copied, 0.3f);
  fill_grad(own, 0.3f);
  adamw_update(ctx, params, optim(0.1), 1e-2, 1, &unclipped);
  EXPECT_EQ(own.working.data, own.master.data);
  for (int i = 0; i < 21; ++i) {
    EXPECT_EQ(copied.working.as<bf16>()[i].bits, to_bf16(copied.master.as<float>()[i]).bits);
    EXPECT_EQ(copied.master.as<float>()[i], own.master.as<float>()[i]);
  }
}

TEST_F(Adamw, squares_are_by_parameter_and_add_up) {
  fill_grad(add("a", {3, 4}, true), 2.0f);
  fill_grad(add("b", {13}, false), -1.0f);
  fill_grad(add("c", {4}, false), 1e30f);  // the square is beyond FP32
  double squares[3] = {0, 0, 1};
  gradient_squares(ctx, params, squares);
  EXPECT_DOUBLE_EQ(squares[0], 12 * 4.0);
  EXPECT_DOUBLE_EQ(squares[1], 13);
  EXPECT_NEAR(squares[2] / 4e60, 1.0, 1e-6);
}

// The states of some rows of a parameter, as ranks with ZeRO keep them, are those of the whole: BF16 moments too, whose random words are the whole's.
TEST_F(Adamw, own_rows_are_those_of_the_whole) {
  const StepKey key{4, 0};
  ctx.key = &key;
  const auto make = [&](const char* name, Shape shape, RowRange own) -> Param& {
    params.push_back(std::make_unique<Param>(Param{name, shape, shape[0], Init::normal, true, own, shape}));
    Param& p = *params.back();
    allocate(p, {&memory, &memory}, {Dtype::bf16, false, Dtype::bf16});
    const int64_t first = own.first * p.row_elements();
    for (int64_t i = 0; i < p.own_elements(); ++i) {
      p.master.as<float>()[i] = 0.01f * static_cast<float>((first + i) % 17 - 8);
      p.own_grad.as<float>()[i] = 0.3f * static_cast<float>((first + i) % 23 - 11);
      p.exp_avg.as<bf16>()[i] = p.exp_avg_sq.as<bf16>()[i] = to_bf16(0.0f);
    }
    return p;
  };
  for (const Shape& shape : {Shape{40, 24}, Shape{40, 7}, Shape{1000}}) {
    params.clear();
    const int64_t cut = shape[0] / 2 + 3;
    const Param& whole = make("w", shape, {0, shape[0]});
    for (const RowRange own : {RowRange{0, cut}, {cut, shape[0] - cut}, {shape[0], 0}}) make("w", shape, own);
    adamw_update(ctx, params, optim(0.1), 1e-2, 1, &unclipped);
    for (size_t k = 1; k < params.size(); ++k) {
      const Param& p = *params[k];
      const auto first = static_cast<size_t>(p.own.first * p.row_elements()), n = static_cast<size_t>(p.own_elements());
      EXPECT_EQ(std::memcmp(p.master.as<float>(), whole.master.as<float>() + first, n * 4), 0) << k;
      EXPECT_EQ(std::memcmp(p.exp_avg.as<bf16>(), whole.exp_avg.as<bf16>() + first, n * 2), 0) << k;
      EXPECT_EQ(std::memcmp(p.exp_avg_sq.as<bf16>(), whole.exp_avg_sq.as<bf16>() + first, n * 2), 0) << k;
      EXPECT_EQ(std::memcmp(p.own_working.as<bf16>(), whole.own_working.as<bf16>() + first, n * 2), 0) << k;
    }
  }
}

}  // namespace
