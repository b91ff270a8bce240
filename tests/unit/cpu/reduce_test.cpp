// Reductions, plain memory operations, and AdamW on arrays.
#include "ops/reduce.h"

#include <array>
#include <set>

#include "ops/gemm.h"
#include "ops/optimizer.h"
#include "support.h"

using namespace cpu_test;

namespace {

void squares_of(Ctx& ctx, const Tensor& x, double* total) { ops::sum_squares(ctx, {&x, 1}, total); }

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
      squares_of(m.ctx, x.tensor(), &sums_of_squares[k]);
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
    squares_of(m.ctx, x.tensor(), &total);
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

// Many at once, some empty and some of several tiles: each has the bits that it has alone, and is added to what is there.
TEST(reduce, squares_of_many_are_those_of_each) {
  std::vector<Buffer> buffers;
  std::vector<Tensor> tensors;
  for (const int64_t n : {0, 5, 16384, 1, 50001, 0, 0, 16385, 777, 0}) buffers.push_back(normal(("x" + std::to_string(buffers.size())).c_str(), Dtype::f32, {n}, 3.0));
  for (Buffer& b : buffers) tensors.push_back(b.tensor());
  const Outputs out = run({Buffer(Dtype::u8, {80}, 0)}, [&](Ctx& ctx, Outputs& o) {
    auto* totals = reinterpret_cast<double*>(o[0].tensor().data);
    if (!ctx.planning()) totals[1] = totals[5] = 2.5;
    ops::sum_squares(ctx, tensors, totals);
  });
  for (size_t i = 0; i < buffers.size(); ++i) {
    double got = 0, want = i == 1 || i == 5 ? 2.5 : 0;
    std::memcpy(&got, out[0].bytes().data() + i * sizeof got, sizeof got);
    Machine m;
    squares_of(m.ctx, tensors[i], &want);
    EXPECT_EQ(got, want) << i;
  }
  Machine m;
  Buffer wrong(Dtype::bf16, {4});
  double total = 0;
  EXPECT_THROW(squares_of(m.ctx, wrong.tensor(), &total), Error);
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

// One tensor, with the step's weight decay.
void update(Ctx& ctx, const AdamwTensors& t, const AdamwStep& step, uint64_t name_hash, const StepControl* control) {
  const AdamwUpdate u{t, step.weight_decay, name_hash};
  ops::adamw(ctx, {&u, 1}, step, control);
}

// Every E8M0 value, the subnormal and NaN too.
TEST(quantize, scales_that_are_powers_of_two_travel_as_codes) {
  std::vector<uint8_t> codes(256), back(256);
  std::vector<float> scales(256);
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  ThreadPool pool(2);
  Arena scratch(1 << 10);
  Ctx ctx(pool, scratch, GemmMath::fixed);
  ops::widen_scales(ctx, {codes.data(), Dtype::e8m0, {256}}, {scales.data(), Dtype::f32, {256}});
  ops::narrow_scales(ctx, {scales.data(), Dtype::f32, {256}}, {back.data(), Dtype::e8m0, {256}});
  for (int i = 0; i < 255; ++i) EXPECT_EQ(scales[static_cast<size_t>(i)], std::ldexp(1.0f, i - 127)) << i;
  EXPECT_TRUE(std::isnan(scales[255]));
  EXPECT_EQ(back, codes);
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
    update(machine.ctx, {w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), copy.tensor()}, step_at(t, lr, decay), 0, &control);
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
      update(ctx, {o[0].tensor(), {}, o[1].tensor(), o[2].tensor(), g.tensor(), o[3].tensor()}, step, 0, &control);
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
  update(machine.ctx, {w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), {}}, step_at(1, 0.01f, 0.1f), 0, &control);
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(w.f(i), std::fma(-0.01f, 0.1f * before.f(i), before.f(i)));
    EXPECT_NEAR(w.at(i), before.at(i) * (1.0 - 1e-3), 1e-7 * std::fabs(before.at(i)));
  }
  Buffer same = before;
  update(machine.ctx, {same.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), {}}, step_at(1, 0.01f, 0.0f), 0, &control);
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
    update(machine.ctx, {w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), copy.tensor()}, step_at(t, 1e-3f, 0.1f), 0, &control);
    update(machine.ctx, {{}, lower.tensor(), m2.tensor(), v2.tensor(), g.tensor(), upper.tensor()}, step_at(t, 1e-3f, 0.1f), 0, &control);
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
    update(machine.ctx, {master.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), {}}, step_at(1, 1e-3f, 0.0f), name_hash, &control);
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

// The state of a matrix with BF16 moments, and a part of it as a matrix of its own.
struct MatrixState {
  Buffer w, m, v, g, copy;
  MatrixState(int64_t rows, int64_t cols)
      : w(normal("w", Dtype::f32, {rows, cols})), m(normal("m", Dtype::bf16, {rows, cols}, 0.1)), v(normal("v", Dtype::bf16, {rows, cols})), g(normal("g", Dtype::f32, {rows, cols})), copy(Dtype::bf16, {rows, cols}) {
    for (int64_t i = 0; i < v.elements(); ++i) v.set(i, v.at(i) * v.at(i));
  }
  std::array<Buffer*, 5> all() { return {&w, &m, &v, &g, &copy}; }
  MatrixState part(int64_t r0, int64_t rows, int64_t c0, int64_t cols) {
    MatrixState p(rows, cols);
    for (size_t i = 0; i < 5; ++i) {
      const size_t width = size_bytes(all()[i]->dtype());
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(static_cast<char*>(p.all()[i]->tensor().data) + static_cast<size_t>(r * cols) * width,
                    all()[i]->bytes().data() + static_cast<size_t>((r0 + r) * all()[i]->cols() + c0) * width, static_cast<size_t>(cols) * width);
      }
    }
    return p;
  }
  AdamwUpdate update(MatrixPlace place = {}) { return {{w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), copy.tensor(), place}, 0.1f, 5}; }
};

// A parameter cut by rows and by columns is updated as the whole is, random words included: at multiples of eight, and anywhere.
TEST(adamw, parts_by_themselves_are_those_of_the_whole) {
  struct Size {
    int64_t rows, cols;
    std::vector<int64_t> row_cuts, column_cuts;   // inside
  };
  for (const Size& size : {Size{64, 48, {16}, {8, 32}}, {12, 40, {5}, {4}}, {9, 37, {2, 7}, {5, 13}}, {600, 24, {}, {16}}, {3, 6, {1}, {3}}, {1, 4096, {}, {1024}}, {1, 1000, {}, {17}}}) {
    MatrixState whole(size.rows, size.cols), before = whole;
    Machine machine;
    const StepKey key{7, 0};
    machine.ctx.key = &key;
    const StepControl control{1.0f, 0};
    const AdamwUpdate all = whole.update();
    ops::adamw(machine.ctx, {&all, 1}, step_at(1, 1e-2f, 0.1f), &control);
    // Each element by its formula, with the word of its number.
    const Philox rng(machine.ctx.seed, RngPurpose::moments, uint64_t{5}, key.step);
    for (int64_t e = 0; e < whole.w.elements(); ++e) {
      float w = before.w.f(e), m = before.m.f(e), v = before.v.f(e);
      adamw_element(w, m, v, before.g.f(e), step_at(1, 1e-2f, 0.1f), control.grad_scale);
      const uint32_t word = rng.word(static_cast<uint64_t>(e));
      ASSERT_EQ(bits_of(whole.w.f(e)), bits_of(w)) << e;
      ASSERT_EQ(whole.m.f(e), to_float(to_bf16_stochastic(m, word))) << e;
      ASSERT_EQ(whole.v.f(e), to_float(to_bf16_stochastic(v, word >> 16))) << e;
      ASSERT_EQ(whole.copy.f(e), to_float(to_bf16(w))) << e;
    }
    const auto ranges = [](const std::vector<int64_t>& cuts, int64_t end) {
      std::vector<std::pair<int64_t, int64_t>> r;
      int64_t begin = 0;
      for (const int64_t cut : cuts) r.emplace_back(begin, cut), begin = cut;
      r.emplace_back(begin, end);
      return r;
    };
    for (const auto& [r0, r1] : ranges(size.row_cuts, size.rows)) {
      for (const auto& [c0, c1] : ranges(size.column_cuts, size.cols)) {
        MatrixState got = before.part(r0, r1 - r0, c0, c1 - c0), want = whole.part(r0, r1 - r0, c0, c1 - c0);
        const AdamwUpdate part = got.update({r0, c0, size.cols});
        ops::adamw(machine.ctx, {&part, 1}, step_at(1, 1e-2f, 0.1f), &control);
        for (size_t i = 0; i < 5; ++i) EXPECT_EQ(got.all()[i]->bytes(), want.all()[i]->bytes()) << size.rows << "x" << size.cols << " from " << r0 << ", " << c0 << ", tensor " << i;
      }
    }
  }
}

TEST(adamw, places_outside_the_whole_are_refused) {
  MatrixState s(4, 8);
  Machine machine;
  const StepKey key;
  machine.ctx.key = &key;
  const StepControl control{1.0f, 0};
  for (const MatrixPlace& place : {MatrixPlace{0, 1, 0}, {0, 9, 16}, {-1, 0, 0}, {0, -8, 16}, {0, 0, 7}}) {
    const AdamwUpdate u = s.update(place);
    EXPECT_THROW(ops::adamw(machine.ctx, {&u, 1}, step_at(1, 1e-2f, 0.1f), &control), Error) << place.first_row << " " << place.first_column << " " << place.columns;
  }
}

// A model's worth of tensors of several forms, decays, names and sizes, some empty: each is updated as it is alone, for any number of threads.
TEST(adamw, many_at_once_are_those_of_each) {
  const std::vector<int64_t> sizes{3, 8192, 0, 8193, 64, 30000, 1, 0};
  Outputs initial;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Dtype moments = i % 3 == 1 ? Dtype::bf16 : Dtype::f32;
    const std::string n = std::to_string(i);
    Buffer w = normal(("w" + n).c_str(), Dtype::f32, {sizes[i]}), v = normal(("v" + n).c_str(), moments, {sizes[i]});
    for (int64_t k = 0; k < sizes[i]; ++k) v.set(k, v.at(k) * v.at(k));
    for (Buffer& b : std::array{w, normal(("m" + n).c_str(), moments, {sizes[i]}), v, normal(("g" + n).c_str(), Dtype::f32, {sizes[i]}), Buffer(Dtype::bf16, {sizes[i]}), Buffer(Dtype::u16, {sizes[i]})}) {
      initial.push_back(b);
    }
    for (int64_t k = 0; k < sizes[i]; ++k) {
      const SplitMaster s = split_master(resolve_tie(w.f(k)));
      initial[6 * i + 4].tensor().as<bf16>()[k] = s.weight;
      initial[6 * i + 5].tensor().as<uint16_t>()[k] = s.remainder;
    }
  }
  const StepKey key{3, 0};
  const StepControl control{0.5f, 0};
  const auto part = [&](Outputs& o, size_t i) {
    const auto t = [&](size_t k) { return o[6 * i + k].tensor(); };
    const bool halves = i % 2 == 1;
    return AdamwUpdate{{halves ? Tensor{} : t(0), halves ? t(5) : Tensor{}, t(1), t(2), t(3), halves || i % 4 == 0 ? t(4) : Tensor{}, {}}, i % 3 == 0 ? 0.1f : 0.0f, 100 + i};
  };
  const Outputs together = run(initial, [&](Ctx& ctx, Outputs& o) {
    std::vector<AdamwUpdate> updates;
    for (size_t i = 0; i < sizes.size(); ++i) updates.push_back(part(o, i));
    ctx.key = ctx.planning() ? nullptr : &key;
    ops::adamw(ctx, updates, step_at(2, 1e-2f, 99.0f), &control);
  });
  Outputs alone = initial;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Machine machine;
    machine.ctx.key = &key;
    const AdamwUpdate u = part(alone, i);
    ops::adamw(machine.ctx, {&u, 1}, step_at(2, 1e-2f, 99.0f), &control);
  }
  for (size_t i = 0; i < initial.size(); ++i) EXPECT_EQ(together[i].bytes(), alone[i].bytes()) << "tensor " << i / 6 << ", " << i % 6;
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(together[6 * i + 1].bytes() != initial[6 * i + 1].bytes(), sizes[i] > 0) << "first moment of tensor " << i;
  }
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
    update(machine.ctx, {w.tensor(), {}, m.tensor(), v.tensor(), g.tensor(), copy.tensor()}, step_at(1, 1e-3f, 0.1f), 0, &control);
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
