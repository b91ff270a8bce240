// Reductions, plain memory operations, and AdamW on arrays.
#include "ops/reduce.h"

#include <array>
#include <set>

#include "ops/gemm.h"
#include "ops/optimizer.h"
#include "support.h"

using namespace cpu_test;

namespace {

TEST(reduce, sums_in_double_for_any_number_of_threads) {
  for (int64_t n : {0, 1, 3, 1000, 16384, 16385, 100003}) {
    Buffer x = normal("x", Dtype::f32, {n}, 1e3);
    double plain = 0, magnitude = 0, squares = 0, sums[2] = {}, sums_of_squares[2] = {};
    for (int64_t i = 0; i < n; ++i) {
      plain += x.at(i);
      magnitude += std::fabs(x.at(i));
      squares += x.at(i) * x.at(i);
    }
    for (int k = 0; k < 2; ++k) {
      Machine m(GemmMath::fixed, k == 0 ? 1 : 4);
      ops::sum(m.ctx, x.tensor(), &sums[k]);
      ops::sum_squares(m.ctx, x.tensor(), &sums_of_squares[k]);
    }
    EXPECT_EQ(sums[0], sums[1]) << n;
    EXPECT_EQ(sums_of_squares[0], sums_of_squares[1]) << n;
    EXPECT_NEAR(sums[0], plain, 1e-13 * magnitude) << n;
    EXPECT_NEAR(sums_of_squares[0], squares, 1e-13 * squares) << n;
  }
}

TEST(reduce, squares_do_not_overflow_and_non_finite_values_propagate) {
  Machine m;
  Buffer x = normal("x", Dtype::f32, {20000});
  x.set(19999, 1e30);
  const auto squares = [&] {
    double total = 0;
    ops::sum_squares(m.ctx, x.tensor(), &total);
    return total;
  };
  EXPECT_NEAR(squares(), 1e60, 1e54);
  x.set(7, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isinf(squares()));
  x.set(17001, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(squares()));
  double sum = 3;
  ops::sum(m.ctx, x.tensor(), &sum);
  EXPECT_TRUE(std::isnan(sum));
  x = Buffer(Dtype::f32, {3});
  for (int i = 0; i < 3; ++i) x.set(i, i + 1);
  sum = 3;
  ops::sum(m.ctx, x.tensor(), &sum);
  EXPECT_EQ(sum, 9) << "sums are added to what is there";
}

TEST(reduce, column_sums_add_to_what_is_there) {
  for (Dtype dtype : both_dtypes) {
    for (const Shape& shape : {Shape{1, 1}, Shape{50, 64}, Shape{33, 130}}) {
      const int64_t cols = shape[1];
      Buffer dy = normal("dy", dtype, {shape[0], cols + 4}), bias = normal("bias", Dtype::f32, {cols});
      const Outputs out = run({bias}, [&](Ctx& ctx, Outputs& o) { ops::column_sums(ctx, dy.columns(2, cols), o[0].tensor()); });
      std::vector<double> want = bias.values();
      for (int64_t r = 0; r < shape[0]; ++r) {
        for (int64_t c = 0; c < cols; ++c) want[static_cast<size_t>(c)] += dy.at(r * (cols + 4) + 2 + c);
      }
      expect_close(out[0], want, 2e-6, "sums");
    }
  }
}

TEST(reduce, zero_and_copy) {
  for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::u8}) {
    const Shape shape{3, 400001};
    Buffer from(dtype, shape, 0x5A);
    const Outputs out = run({Buffer(dtype, shape, 1), Buffer(dtype, shape, 2)}, [&](Ctx& ctx, Outputs& o) {
      ops::zero(ctx, o[0].tensor());
      ops::copy(ctx, from.tensor(), o[1].tensor());
    });
    EXPECT_EQ(out[0].bytes(), Buffer(dtype, shape).bytes());
    EXPECT_EQ(out[1].bytes(), from.bytes());
  }
  Machine m;
  Buffer a(Dtype::f32, {4}), b(Dtype::f32, {5}), c(Dtype::i32, {4});
  EXPECT_THROW(ops::copy(m.ctx, a.tensor(), b.tensor()), Error);
  EXPECT_THROW(ops::copy(m.ctx, a.tensor(), c.tensor()), Error);
}

// The three products of a linear layer are each other's gradients; column sums are that of its bias.
TEST(gemm_gradient, by_directional_derivatives) {
  const int64_t t = 9, n = 7, k = 12;
  for (GemmMath math : {GemmMath::blas, GemmMath::fixed}) {
    Machine m(math);
    Buffer x = normal("x", Dtype::f32, {t, k}), w = normal("w", Dtype::f32, {n, k}), bias = normal("b", Dtype::f32, {n}), y(Dtype::f32, {t, n}),
           c = normal("c", Dtype::f32, {t, n});
    Buffer dx(Dtype::f32, {t, k}), dw(Dtype::f32, {n, k}), db(Dtype::f32, {n});
    const auto product = [&](const GemmTerm& term, Buffer& out, float beta, const Tensor& add) {
      ops::gemm(m.ctx, {&term, 1}, out.tensor(), beta, Accumulate::accurate, add);
    };
    product({Operand::plain(c.tensor()), Operand::plain(w.tensor(), true)}, dx, 0.0f, {});
    product({Operand::plain(c.tensor(), true), Operand::plain(x.tensor(), true)}, dw, 1.0f, {});
    ops::column_sums(m.ctx, c.tensor(), db.tensor());
    expect_gradient({&x, &w, &bias}, {dx, dw, db}, [&] {
      product({Operand::plain(x.tensor()), Operand::plain(w.tensor())}, y, 0.0f, bias.tensor());
      return weighted_sum(y, c);
    });
  }
}

AdamwStep step_at(int64_t t, float lr, float weight_decay) {
  const double b1 = 0.9, b2 = 0.95;
  return {lr, 0.9f, 0.95f, 1e-8f, weight_decay, static_cast<float>(1.0 / (1.0 - std::pow(b1, static_cast<double>(t)))),
          static_cast<float>(1.0 / (1.0 - std::pow(b2, static_cast<double>(t))))};
}

TEST(reduce, add_adds_element_by_element) {
  for (const int64_t n : {0, 1, 9, 300001}) {
    Machine m(GemmMath::fixed, 3);
    Buffer x = normal("x", Dtype::f32, {n}), y = normal("y", Dtype::f32, {n});
    const Buffer before = y;
    ops::add(m.ctx, x.tensor(), y.tensor());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y.f(i), before.f(i) + x.f(i));
  }
}

TEST(adamw, a_thousand_steps_against_double) {
  const int64_t n = 40;
  Buffer w = normal("w", Dtype::f32, {n}), m(Dtype::f32, {n}), v(Dtype::f32, {n}), g(Dtype::f32, {n}), copy(Dtype::bf16, {n});
  std::vector<double> rw = w.values(), rm(rw.size()), rv(rw.size());
  Machine machine;
  const Philox rng(8, RngPurpose::init, "grads");
  const float lr = 1e-3f, decay = 0.1f, scale = 0.5f;
  for (int64_t t = 1; t <= 1000; ++t) {
    for (int64_t i = 0; i < n; ++i) {
      // Gradients of very different sizes and drifts.
      g.set(i, std::pow(10.0, static_cast<double>(i % 8) - 5.0) * (rng.normal(static_cast<uint64_t>(t * n + i)) + static_cast<double>(i % 3) - 1.0));
      const auto k = static_cast<size_t>(i);
      const double gi = g.at(i) * scale, b1 = 0.9f, b2 = 0.95f;
      rm[k] = b1 * rm[k] + (1.0 - b1) * gi;
      rv[k] = b2 * rv[k] + (1.0 - b2) * gi * gi;
      const double mh = rm[k] / (1.0 - std::pow(0.9, static_cast<double>(t))), vh = rv[k] / (1.0 - std::pow(0.95, static_cast<double>(t)));
      rw[k] -= lr * (decay * rw[k] + mh / (std::sqrt(vh) + 1e-8));
    }
    const StepControl control{scale, 0};
    ops::adamw(machine.ctx, {w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), copy.tensor()}, step_at(t, lr, decay), 0, &control);
  }
  double moved = 0;
  const Buffer start = normal("w", Dtype::f32, {n});
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_NEAR(w.at(i), rw[static_cast<size_t>(i)], 1e-5) << i;
    EXPECT_EQ(copy.f(i), to_float(to_bf16(w.f(i)))) << i;
    moved = std::max(moved, std::fabs(w.at(i) - start.at(i)));
  }
  EXPECT_GT(moved, 0.5);
}

TEST(adamw, threads_tiles_and_elements_agree) {
  for (int64_t n : {1, 8191, 8192, 20001}) {
    Buffer w = normal("w", Dtype::f32, {n}), m = normal("m", Dtype::f32, {n}, 0.1), v(Dtype::f32, {n}), g = normal("g", Dtype::f32, {n});
    for (int64_t i = 0; i < n; ++i) v.set(i, 0.01 + g.at(i) * g.at(i));
    const AdamwStep step = step_at(3, 0.01f, 0.1f);
    const StepControl control{0.7f, 0};
    const Outputs out = run({w, m, v, Buffer(Dtype::bf16, {n})}, [&](Ctx& ctx, Outputs& o) {
      ops::adamw(ctx, {o[0].tensor(), {}, o[1].tensor(), o[2].tensor(), g.tensor(), o[3].tensor()}, step, 0, &control);
    });
    for (int64_t i = 0; i < n; ++i) {
      float wi = w.f(i), mi = m.f(i), vi = v.f(i);
      adamw_element(wi, mi, vi, g.f(i), step, control.grad_scale);
      ASSERT_EQ(out[0].f(i), wi);
      ASSERT_EQ(out[1].f(i), mi);
      ASSERT_EQ(out[2].f(i), vi);
      ASSERT_EQ(out[3].f(i), to_float(to_bf16(wi)));
    }
  }
}

TEST(adamw, zero_gradients_are_pure_decay) {
  Buffer w = normal("w", Dtype::f32, {100}), m(Dtype::f32, {100}), v(Dtype::f32, {100}), g(Dtype::f32, {100});
  const Buffer before = w;
  Machine machine;
  const StepControl control{1.0f, 0};
  ops::adamw(machine.ctx, {w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), {}}, step_at(1, 0.01f, 0.1f), 0, &control);
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(w.f(i), std::fma(-0.01f, 0.1f * before.f(i), before.f(i)));
    EXPECT_NEAR(w.at(i), before.at(i) * (1.0 - 1e-3), 1e-7 * std::fabs(before.at(i)));
  }
  Buffer same = before;
  ops::adamw(machine.ctx, {same.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), {}}, step_at(1, 0.01f, 0.0f), 0, &control);
  EXPECT_EQ(same.bytes(), before.bytes());
}

// Fifty steps with FP32 masters, and with the same masters in halves: not a bit differs.
TEST(adamw, halves_train_as_fp32_masters_do) {
  const int64_t n = 20003;
  Buffer w = normal("w", Dtype::f32, {n}), m(Dtype::f32, {n}), v(Dtype::f32, {n}), copy(Dtype::bf16, {n});
  for (int64_t i = 0; i < n; ++i) w.set(i, resolve_tie(i % 3 ? w.f(i) : to_float(to_bf16(w.f(i))) * (1.0f + 0x1p-8f)));   // many near ties
  Buffer upper(Dtype::bf16, {n}), lower(Dtype::u16, {n}), m2 = m, v2 = v;
  for (int64_t i = 0; i < n; ++i) {
    const SplitMaster s = split_master(w.f(i));
    upper.tensor().as<bf16>()[i] = s.weight;
    lower.tensor().as<uint16_t>()[i] = s.remainder;
  }
  Machine machine;
  for (int64_t t = 1; t <= 50; ++t) {
    Buffer g = normal(("g" + std::to_string(t)).c_str(), Dtype::f32, {n}, 0.1);
    const StepControl control{0.9f, 0};
    ops::adamw(machine.ctx, {w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), copy.tensor()}, step_at(t, 1e-3f, 0.1f), 0, &control);
    ops::adamw(machine.ctx, {{}, lower.tensor(), m2.tensor(), v2.tensor(), g.tensor(), upper.tensor()}, step_at(t, 1e-3f, 0.1f), 0, &control);
    ASSERT_EQ(copy.bytes(), upper.bytes()) << t;
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(bits_of(w.f(i)), bits_of(join_master(upper.tensor().as<bf16>()[i], lower.tensor().as<uint16_t>()[i]))) << t << " " << i;
  }
  EXPECT_EQ(m.bytes(), m2.bytes());
  EXPECT_EQ(v.bytes(), v2.bytes());
}

TEST(adamw, bf16_moments_are_unbiased_and_follow_seed_step_and_name) {
  // One step from zero moments: m = 0.1 g, v = 0.05 g^2, neither of them a BF16 value; the mean over elements finds both.
  const int64_t n = 1 << 16;
  Buffer w(Dtype::f32, {n}), g(Dtype::f32, {n});
  for (int64_t i = 0; i < n; ++i) g.set(i, 1.2345);
  const auto moments = [&](uint64_t seed, uint64_t step, uint64_t name_hash) {
    Machine machine;
    machine.ctx.seed = seed;
    const StepKey key{step, 0};
    machine.ctx.key = &key;
    Buffer master = w, m(Dtype::bf16, {n}), v(Dtype::bf16, {n});
    const StepControl control{1.0f, 0};
    ops::adamw(machine.ctx, {master.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), {}}, step_at(1, 1e-3f, 0.0f), name_hash, &control);
    return std::pair(m, v);
  };
  const auto [m, v] = moments(1, 5, 77);
  for (const auto& [buffer, want] : {std::pair(m, 0.12345), std::pair(v, 0.05 * 1.2345 * 1.2345)}) {
    double mean = 0;
    std::set<double> seen;
    for (int64_t i = 0; i < n; ++i) {
      mean += buffer.at(i) / static_cast<double>(n);
      seen.insert(buffer.at(i));
    }
    EXPECT_EQ(seen.size(), 2u) << "the two BF16 neighbours of " << want;
    // A neighbour distance of 2^-8 relative, n draws: five standard deviations.
    EXPECT_NEAR(mean, want, want * 0x1p-8 * 5 * 0.5 / std::sqrt(static_cast<double>(n)) + 1e-6 * want);
  }
  EXPECT_EQ(m.bytes(), moments(1, 5, 77).first.bytes());
  EXPECT_NE(m.bytes(), moments(2, 5, 77).first.bytes());
  EXPECT_NE(m.bytes(), moments(1, 6, 77).first.bytes());
  EXPECT_NE(m.bytes(), moments(1, 5, 78).first.bytes());
}

// Shards of a parameter's rows are updated as the whole is, random words included.
TEST(adamw, rows_by_themselves_are_those_of_the_whole) {
  const int64_t n = 4096, cut = 1024;
  Buffer w = normal("w", Dtype::f32, {n}), g = normal("g", Dtype::f32, {n}), m(Dtype::bf16, {n}), v(Dtype::bf16, {n}), copy(Dtype::bf16, {n});
  Buffer w2 = w, m2 = m, v2 = v, copy2 = copy;
  Machine machine;
  const StepKey key{7, 0};
  machine.ctx.key = &key;
  const StepControl control{1.0f, 0};
  ops::adamw(machine.ctx, {w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), copy.tensor()}, step_at(1, 1e-2f, 0.1f), 5, &control);
  const auto part = [&](Buffer& b, int64_t first, int64_t count) {
    Tensor t = b.tensor();
    t.data = static_cast<char*>(t.data) + static_cast<size_t>(first) * size_bytes(t.dtype);
    t.shape = {count};
    return t;
  };
  for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, std::pair{cut, n - cut}}) {
    ops::adamw(machine.ctx, {part(w2, first, count), {}, part(m2, first, count), part(v2, first, count), part(g, first, count), part(copy2, first, count), first},
               step_at(1, 1e-2f, 0.1f), 5, &control);
  }
  EXPECT_EQ(w2.bytes(), w.bytes());
  EXPECT_EQ(m2.bytes(), m.bytes());
  EXPECT_EQ(v2.bytes(), v.bytes());
  EXPECT_EQ(copy2.bytes(), copy.bytes());
}

TEST(adamw, a_skipped_step_touches_nothing) {
  const int64_t n = 1001;
  for (const Dtype moments : {Dtype::f32, Dtype::bf16}) {
    Buffer w = normal("w", Dtype::f32, {n}), m = normal("m", moments, {n}), v = normal("v", moments, {n}), g = normal("g", Dtype::f32, {n}), copy = normal("c", Dtype::bf16, {n});
    const auto before = std::array{w.bytes(), m.bytes(), v.bytes(), g.bytes(), copy.bytes()};
    Machine machine;
    const StepKey key;
    machine.ctx.key = &key;
    const StepControl control{1.0f, 1};
    ops::adamw(machine.ctx, {w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), copy.tensor()}, step_at(1, 1e-3f, 0.1f), 0, &control);
    EXPECT_EQ(before, (std::array{w.bytes(), m.bytes(), v.bytes(), g.bytes(), copy.bytes()}));
  }
}

TEST(adamw, the_step_is_decided_by_loss_norm_and_counts) {
  constexpr double infinite = std::numeric_limits<double>::infinity(), undefined = std::numeric_limits<double>::quiet_NaN();
  Machine machine;
  const auto decide = [&](double loss, std::vector<double> squares, std::vector<int64_t> nonfinite, double clip) {
    StepOutcome o{};
    ops::decide_step(machine.ctx, {&loss, squares.data(), static_cast<int64_t>(squares.size()), nonfinite.data(), static_cast<int64_t>(nonfinite.size()), clip}, &o);
    return o;
  };
  const StepOutcome plain = decide(5.0, {9.0, 16.0}, {0, 0, 0}, 1.0);
  EXPECT_EQ(plain.grad_norm, 5.0);
  EXPECT_EQ(plain.control.grad_scale, static_cast<float>(1.0 / (5.0 + 1e-6)));
  EXPECT_EQ(plain.control.skip, 0);
  EXPECT_EQ(decide(5.0, {9.0, 16.0}, {}, 0.0).control.grad_scale, 1.0f) << "no clipping";
  EXPECT_EQ(decide(5.0, {0.09, 0.16}, {}, 1.0).control.grad_scale, 1.0f) << "below the limit";
  EXPECT_EQ(decide(undefined, {1.0}, {0}, 1.0).control.skip, 1);
  EXPECT_EQ(decide(infinite, {1.0}, {0}, 1.0).control.skip, 1);
  EXPECT_EQ(decide(1.0, {1.0, undefined}, {0}, 1.0).control.skip, 1);
  EXPECT_EQ(decide(1.0, {infinite, 1.0}, {0}, 1.0).control.skip, 1);
  const StepOutcome counted = decide(1.0, {1.0}, {0, 2, 5}, 1.0);
  EXPECT_EQ(counted.control.skip, 1);
  EXPECT_EQ(counted.nonfinite, 7);
}

TEST(adamw, cast_weights_rounds_to_nearest_even) {
  for (int64_t n : {1, 15, 16, 9000}) {
    Buffer master = normal("master", Dtype::f32, {n});
    master.set(0, 1.00390625);  // halfway between two BF16 neighbours: to the even one, 1.0
    const Outputs out = run({Buffer(Dtype::bf16, {n})}, [&](Ctx& ctx, Outputs& o) { ops::cast_weights(ctx, master.tensor(), o[0].tensor()); });
    EXPECT_EQ(out[0].f(0), 1.0f);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out[0].f(i), to_float(to_bf16(master.f(i))));
  }
}

}  // namespace
