// Cross-entropy with z-loss, and the embedding at the other end of the model.
#include "ops/loss.h"

#include "ops/embedding.h"
#include "support.h"

using namespace cpu_test;

namespace {

struct Result {
  Buffer logits, loss, z;
};

Result cross_entropy(const Buffer& logits, Buffer& labels, int64_t vocab, float z, float scale, bool backward = true) {
  const int64_t n = labels.elements();
  const Outputs out = run({logits, Buffer(Dtype::f32, {n}, 0xFF), Buffer(Dtype::f32, {n}, 0xFF)}, [&](Ctx& ctx, Outputs& o) {
    ops::cross_entropy(ctx, o[0].tensor(), labels.tensor(), vocab, z, backward ? &scale : nullptr, o[1].tensor(), o[2].tensor());
  });
  return {out[0], out[1], out[2]};
}

TEST(cross_entropy, zero_logits_over_ten_classes_and_padding) {
  for (Dtype dtype : both_dtypes) {
    Buffer logits(dtype, {3, 16}), labels = integers({0, 9, 5});
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 10; c < 16; ++c) logits.set(r * 16 + c, 50.0);  // would swamp the softmax
    }
    const Result r = cross_entropy(logits, labels, 10, 0.0f, 1.0f);
    for (int64_t t = 0; t < 3; ++t) {
      EXPECT_NEAR(r.loss.at(t), std::log(10.0), 1e-6);
      EXPECT_EQ(r.z.at(t), 0.0);
      for (int64_t c = 0; c < 16; ++c) {
        const double want = c >= 10 ? 0.0 : 0.1 - (c == static_cast<int64_t>(labels.at(t)) ? 1.0 : 0.0);
        EXPECT_NEAR(r.logits.at(t * 16 + c), want, dtype == Dtype::f32 ? 1e-6 : 2e-3) << c;
        if (c >= 10) {
          EXPECT_EQ(r.logits.at(t * 16 + c), 0.0);
        }
      }
    }
  }
}

TEST(cross_entropy, loss_and_gradient_against_double) {
  for (Dtype dtype : both_dtypes) {
    for (const auto& [vocab, width] : {std::pair<int64_t, int64_t>{1, 1}, {7, 7}, {100, 128}, {257, 384}}) {
      for (float z : {0.0f, 1e-3f}) {
        for (float scale : {1.0f, 0.37f, 1.0f / 4096.0f}) {
          const int64_t n = 21;
          Buffer logits = normal("logits", dtype, {n, width}, 4.0), labels(Dtype::i32, {n});
          for (int64_t t = 0; t < n; ++t) labels.set(t, t % 5 == 3 ? -1.0 : static_cast<double>(t * 31 % vocab));
          std::vector<double> loss, zs, grad;
          for (int64_t t = 0; t < n; ++t) {
            const bool ignored = labels.at(t) < 0;
            double sum = 0;
            for (int64_t c = 0; c < vocab; ++c) sum += std::exp(logits.at(t * width + c));
            const double lse = std::log(sum);
            loss.push_back(ignored ? 0.0 : lse - logits.at(t * width + static_cast<int64_t>(labels.at(t))));
            zs.push_back(ignored ? 0.0 : static_cast<double>(z) * lse * lse);
            for (int64_t c = 0; c < width; ++c) {
              const double p = c < vocab ? std::exp(logits.at(t * width + c)) / sum : 0.0,
                           onehot = c == static_cast<int64_t>(labels.at(t)) ? 1.0 : 0.0;
              grad.push_back(ignored || c >= vocab ? 0.0 : static_cast<double>(scale) * ((1.0 + 2.0 * static_cast<double>(z) * lse) * p - onehot));
            }
          }
          const Result r = cross_entropy(logits, labels, vocab, z, scale);
          const std::string what = fmt::format("vocabulary {} {} z {} scale {}", vocab, name(dtype), z, scale);
          // A vocabulary of one has loss 0 by cancellation: the error is relative to the logits.
          for (int64_t t = 0; t < n; ++t) ASSERT_NEAR(r.loss.at(t), loss[static_cast<size_t>(t)], 1e-5) << what;
          expect_close(r.z, zs, 1e-6, what + " z");
          if (vocab > 1) expect_close(r.logits, grad, 1e-6, what + " dlogits");
          const Result forward = cross_entropy(logits, labels, vocab, z, scale, false);
          EXPECT_EQ(forward.logits.bytes(), logits.bytes()) << "a forward pass must not touch the logits";
          EXPECT_EQ(forward.loss.bytes(), r.loss.bytes());
        }
      }
    }
  }
}

TEST(cross_entropy, ignored_rows_give_nothing_even_when_not_finite) {
  Buffer logits = normal("logits", Dtype::f32, {2, 8}), labels = integers({-1, 3});
  for (int64_t c = 0; c < 8; ++c) logits.set(c, std::numeric_limits<double>::quiet_NaN());
  const Result r = cross_entropy(logits, labels, 8, 1e-2f, 1.0f);
  EXPECT_EQ(r.loss.at(0), 0.0);
  EXPECT_EQ(r.z.at(0), 0.0);
  for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(r.logits.at(c), 0.0);
  EXPECT_GT(r.loss.at(1), 0.0);
}

TEST(cross_entropy, large_logits) {
  Buffer logits(Dtype::f32, {1, 3}), labels = integers({1});
  const double values[] = {1e4, 1e4 - 2.0, -1e4};
  for (int64_t c = 0; c < 3; ++c) logits.set(c, values[c]);
  const Result r = cross_entropy(logits, labels, 3, 0.0f, 1.0f);
  EXPECT_NEAR(r.loss.at(0), 2.0 + std::log1p(std::exp(-2.0)), 1e-3);
  EXPECT_EQ(r.logits.at(2), 0.0);
}

TEST(cross_entropy, z_loss_by_directional_derivatives) {
  for (float z : {0.0f, 0.05f}) {
    const int64_t n = 6, width = 24, vocab = 20;
    const float scale = 0.25f;
    Buffer logits = normal("logits", Dtype::f32, {n, width}, 2.0), labels = integers({0, 19, -1, 4, 4, 7}), loss(Dtype::f32, {n}),
           zs(Dtype::f32, {n});
    Machine m;
    const auto total = [&] {
      Buffer copy = logits;
      ops::cross_entropy(m.ctx, copy.tensor(), labels.tensor(), vocab, z, nullptr, loss.tensor(), zs.tensor());
      double sum = 0;
      for (int64_t t = 0; t < n; ++t) sum += loss.at(t) + zs.at(t);
      return static_cast<double>(scale) * sum;
    };
    Buffer grad = logits;
    ops::cross_entropy(m.ctx, grad.tensor(), labels.tensor(), vocab, z, &scale, loss.tensor(), zs.tensor());
    expect_gradient({&logits}, {grad}, total);
  }
}

TEST(cross_entropy, wrong_shapes_are_internal_errors) {
  Machine m;
  const float one = 1.0f;
  Buffer logits(Dtype::bf16, {2, 8}), labels = integers({0, 1}), three = integers({0, 1, 2}), loss(Dtype::f32, {2}), z(Dtype::f32, {2});
  EXPECT_THROW(ops::cross_entropy(m.ctx, logits.tensor(), labels.tensor(), 9, 0, &one, loss.tensor(), z.tensor()), Error);
  EXPECT_THROW(ops::cross_entropy(m.ctx, logits.tensor(), labels.tensor(), 0, 0, &one, loss.tensor(), z.tensor()), Error);
  EXPECT_THROW(ops::cross_entropy(m.ctx, logits.tensor(), three.tensor(), 8, 0, &one, loss.tensor(), z.tensor()), Error);
}

// A vocabulary of 100 on ranks that have `extents` of its columns each, padded by three: the ranks' parts, then each rank's loss, z and gradient.
struct Shard {
  int64_t first, columns;
  Buffer logits;
};
std::vector<Shard> shards_of(const Buffer& logits, int64_t vocab, const std::vector<int64_t>& extents) {
  std::vector<Shard> out;
  const int64_t n = logits.elements() / logits.cols();
  int64_t first = 0;
  for (const int64_t columns : extents) {
    Shard s{first, columns, Buffer(logits.dtype(), {n, columns + 3})};
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < columns + 3; ++c) s.logits.set(r * (columns + 3) + c, c < columns ? logits.at(r * logits.cols() + first + c) : 1e30);   // would swamp the softmax
    }
    out.push_back(std::move(s));
    first += columns;
  }
  EXPECT_EQ(first, vocab);
  return out;
}
Buffer parts_of(std::vector<Shard>& shards, Buffer& labels) {
  const int64_t n = labels.elements();
  Buffer all(Dtype::f32, {static_cast<int64_t>(shards.size()), n, 3});
  int64_t at = 0;
  for (Shard& s : shards) {
    const Buffer before = s.logits;
    const Outputs out = run({Buffer(Dtype::f32, {n, 3}, 0xFF)},
                            [&](Ctx& ctx, Outputs& o) { ops::softmax_parts(ctx, s.logits.tensor(), labels.tensor(), s.first, s.columns, o[0].tensor()); });
    EXPECT_EQ(s.logits.bytes(), before.bytes());
    for (int64_t i = 0; i < 3 * n; ++i) all.set(at++, out[0].at(i));
  }
  return all;
}
Result cross_entropy_of(const Shard& s, Buffer& labels, Buffer& parts, float z, float scale, bool backward = true) {
  const int64_t n = labels.elements();
  const Outputs out = run({s.logits, Buffer(Dtype::f32, {n}, 0xFF), Buffer(Dtype::f32, {n}, 0xFF)}, [&](Ctx& ctx, Outputs& o) {
    ops::cross_entropy_of_parts(ctx, o[0].tensor(), labels.tensor(), s.first, s.columns, parts.tensor(), z, backward ? &scale : nullptr, o[1].tensor(), o[2].tensor());
  });
  return {out[0], out[1], out[2]};
}

const std::vector<int64_t> layouts[] = {{100}, {60, 40}, {34, 34, 32}, {40, 40, 20, 0}, {0, 100}, {25, 0, 74, 1}};

TEST(cross_entropy_of_parts, is_that_of_the_whole_vocabulary) {
  const int64_t n = 21, vocab = 100;
  for (Dtype dtype : both_dtypes) {
    Buffer logits = normal("logits", dtype, {n, vocab}, 4.0), labels(Dtype::i32, {n});
    for (int64_t t = 0; t < n; ++t) labels.set(t, t % 5 == 3 ? -1.0 : static_cast<double>(t * 31 % vocab));
    labels.set(0, 99);
    for (float z : {0.0f, 1e-3f}) {
      const float scale = 0.37f;
      const Result whole = cross_entropy(logits, labels, vocab, z, scale);
      for (const auto& extents : layouts) {
        std::vector<Shard> shards = shards_of(logits, vocab, extents);
        Buffer parts = parts_of(shards, labels), grad(dtype, {n, vocab});
        std::vector<Result> results;
        for (const Shard& s : shards) {
          const Result& r = results.emplace_back(cross_entropy_of(s, labels, parts, z, scale));
          EXPECT_EQ(r.loss.bytes(), results.front().loss.bytes()) << "ranks differ";
          EXPECT_EQ(r.z.bytes(), results.front().z.bytes()) << "ranks differ";
          for (int64_t t = 0; t < n; ++t) {
            for (int64_t c = 0; c < s.columns; ++c) grad.set(t * vocab + s.first + c, r.logits.at(t * (s.columns + 3) + c));
            for (int64_t c = s.columns; c < s.columns + 3; ++c) EXPECT_EQ(r.logits.at(t * (s.columns + 3) + c), 0.0);
          }
          const Result forward = cross_entropy_of(s, labels, parts, z, scale, false);
          EXPECT_EQ(forward.logits.bytes(), s.logits.bytes()) << "a forward pass must not touch the logits";
          EXPECT_EQ(forward.loss.bytes(), r.loss.bytes());
        }
        const std::string what = fmt::format("{} shards {} z {}", extents.size(), name(dtype), z);
        expect_close(results.front().loss, whole.loss.values(), 1e-6, what + " loss");
        expect_close(results.front().z, whole.z.values(), 1e-6, what + " z");
        expect_close(grad, whole.logits.values(), 1e-6, what + " dlogits");
        if (extents.size() == 1) {   // nothing differs at all
          EXPECT_EQ(results.front().loss.bytes(), whole.loss.bytes());
          EXPECT_EQ(grad.bytes(), whole.logits.bytes());
        }
      }
    }
  }
}

TEST(cross_entropy_of_parts, parts_of_a_row_by_hand) {
  Buffer logits(Dtype::f32, {3, 4}), labels = integers({11, 9, -1});
  const double values[] = {1.0, 3.0, 2.0, 99.0};
  for (int64_t i = 0; i < 12; ++i) logits.set(i, values[i % 4]);
  std::vector<Shard> one{{10, 3, logits}}, none{{10, 0, logits}};
  const Buffer parts = parts_of(one, labels), empty = parts_of(none, labels);
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_EQ(parts.at(3 * r), 3.0);
    EXPECT_NEAR(parts.at(3 * r + 1), 1.0 + std::exp(-2.0) + std::exp(-1.0), 1e-6);
    EXPECT_EQ(parts.at(3 * r + 2), r == 0 ? 3.0 : 0.0);   // 9 is another rank's, -1 nobody's
    EXPECT_EQ(empty.at(3 * r), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(empty.at(3 * r + 1), 0.0);
    EXPECT_EQ(empty.at(3 * r + 2), 0.0);
  }
}

TEST(cross_entropy_of_parts, logits_that_are_not_finite_show_on_every_rank) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {nan, inf}) {
    for (const int64_t place : {0, 39, 40, 99}) {   // of the rank that has the label and of others
      Buffer logits = normal("logits", Dtype::bf16, {3, 100}), labels = integers({3, 3, -1});
      logits.set(place, bad);
      logits.set(200 + place, bad);
      std::vector<Shard> shards = shards_of(logits, 100, {40, 0, 59, 1});   // the last has nothing but the bad one
      Buffer parts = parts_of(shards, labels);
      for (const Shard& s : shards) {
        const Result r = cross_entropy_of(s, labels, parts, 0.0f, 1.0f);
        EXPECT_FALSE(std::isfinite(r.loss.at(0))) << bad << " at " << place << " for the rank from " << s.first;
        EXPECT_TRUE(std::isfinite(r.loss.at(1)));
        EXPECT_EQ(r.loss.at(2), 0.0);   // ignored
        for (int64_t c = 0; c < s.columns; ++c) EXPECT_EQ(r.logits.at(2 * (s.columns + 3) + c), 0.0);
      }
    }
  }
  // -Inf is a probability of zero, also where a rank has nothing else.
  Buffer logits = normal("logits", Dtype::f32, {1, 100}), labels = integers({3});
  logits.set(99, -inf);
  const Result whole = cross_entropy(logits, labels, 100, 0.0f, 1.0f);
  std::vector<Shard> shards = shards_of(logits, 100, {40, 0, 59, 1});
  Buffer parts = parts_of(shards, labels);
  const Result r = cross_entropy_of(shards.back(), labels, parts, 0.0f, 1.0f);
  EXPECT_NEAR(r.loss.at(0), whole.loss.at(0), 1e-6);
  EXPECT_EQ(r.logits.at(0), 0.0);
}

TEST(cross_entropy_of_parts, wrong_shapes_are_internal_errors) {
  Machine m;
  Buffer logits(Dtype::bf16, {2, 8}), labels = integers({0, 1}), three = integers({0, 1, 2}), loss(Dtype::f32, {2}), z(Dtype::f32, {2}), part(Dtype::f32, {2, 3}),
         parts(Dtype::f32, {2, 2, 3});
  EXPECT_NO_THROW(ops::softmax_parts(m.ctx, logits.tensor(), labels.tensor(), 0, 8, part.tensor()));
  EXPECT_THROW(ops::softmax_parts(m.ctx, logits.tensor(), labels.tensor(), 0, 9, part.tensor()), Error);
  EXPECT_THROW(ops::softmax_parts(m.ctx, logits.tensor(), labels.tensor(), -1, 8, part.tensor()), Error);
  EXPECT_THROW(ops::softmax_parts(m.ctx, logits.tensor(), three.tensor(), 0, 8, part.tensor()), Error);
  EXPECT_THROW(ops::softmax_parts(m.ctx, logits.tensor(), labels.tensor(), 0, 8, parts.tensor()), Error);
  EXPECT_THROW(ops::cross_entropy_of_parts(m.ctx, logits.tensor(), labels.tensor(), 0, 8, part.tensor(), 0, nullptr, loss.tensor(), z.tensor()), Error);
  EXPECT_THROW(ops::cross_entropy_of_parts(m.ctx, logits.tensor(), labels.tensor(), 0, 9, parts.tensor(), 0, nullptr, loss.tensor(), z.tensor()), Error);
}

TEST(embedding, of_a_part_of_the_vocabulary) {
  const int64_t vocab = 11, h = 40, n = 300;
  for (Dtype dtype : both_dtypes) {
    Buffer whole = normal("table", dtype, {vocab, h}), tokens(Dtype::i32, {n}), d_out = normal("d", dtype, {n, h}), d_whole = normal("dt", Dtype::f32, {vocab, h});
    for (int64_t t = 0; t < n; ++t) tokens.set(t, static_cast<double>(t * t % vocab));
    const Outputs want = run({d_whole}, [&](Ctx& ctx, Outputs& o) { ops::embedding_backward(ctx, d_out.tensor(), tokens.tensor(), o[0].tensor()); });
    for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 5}, {5, 6}, {3, 1}, {8, 9}, {4, 0}}) {   // {8, 9}: padded beyond the vocabulary
      Buffer table(dtype, {rows, h}), d_table(Dtype::f32, {rows, h});
      for (int64_t i = 0; i < rows * h; ++i) {
        table.set(i, first * h + i < vocab * h ? whole.at(first * h + i) : 7.0);
        d_table.set(i, first * h + i < vocab * h ? d_whole.at(first * h + i) : 7.0);
      }
      const Outputs out = run({Buffer(dtype, {n, h}, 0xFF), d_table}, [&, at = first](Ctx& ctx, Outputs& o) {
        ops::embedding(ctx, table.tensor(), tokens.tensor(), o[0].tensor(), at);
        ops::embedding_backward(ctx, d_out.tensor(), tokens.tensor(), o[1].tensor(), at);
      });
      for (int64_t t = 0; t < n; ++t) {
        const auto token = static_cast<int64_t>(tokens.at(t));
        const bool here = token >= first && token < first + rows;
        for (int64_t i = 0; i < h; ++i) ASSERT_EQ(out[0].at(t * h + i), here ? whole.at(token * h + i) : 0.0) << "token " << token << " from " << first;
      }
      for (int64_t i = 0; i < rows * h; ++i) ASSERT_EQ(out[1].at(i), first * h + i < vocab * h ? want[0].at(first * h + i) : 7.0) << first;   // the same order of additions
    }
  }
}

TEST(embedding, gathers_rows_and_scatters_gradients) {
  for (Dtype dtype : both_dtypes) {
    for (int64_t h : {3, 64, 200}) {
      Buffer table = normal("table", dtype, {11, h}), tokens(Dtype::i32, {300}), d_out = normal("d", dtype, {300, h}),
             d_table = normal("dt", Dtype::f32, {11, h});
      for (int64_t t = 0; t < 300; ++t) tokens.set(t, static_cast<double>(t * t % 10));  // repeated tokens; 10 never occurs
      const Outputs out = run({Buffer(dtype, {300, h}), d_table}, [&](Ctx& ctx, Outputs& o) {
        ops::embedding(ctx, table.tensor(), tokens.tensor(), o[0].tensor());
        ops::embedding_backward(ctx, d_out.tensor(), tokens.tensor(), o[1].tensor());
      });
      std::vector<double> want = d_table.values();
      for (int64_t t = 0; t < 300; ++t) {
        const auto token = static_cast<int64_t>(tokens.at(t));
        for (int64_t i = 0; i < h; ++i) {
          ASSERT_EQ(out[0].f(t * h + i), table.f(token * h + i));
          want[static_cast<size_t>(token * h + i)] += d_out.at(t * h + i);
        }
      }
      expect_close(out[1], want, 1e-6, "d_table");
      for (int64_t i = 0; i < h; ++i) EXPECT_EQ(out[1].f(10 * h + i), d_table.f(10 * h + i));  // a token that is absent
    }
  }
}

TEST(embedding, gradients_by_directional_derivatives) {
  Machine m;
  Buffer table = normal("table", Dtype::f32, {5, 8}), tokens = integers({4, 0, 4, 4, 2}), out(Dtype::f32, {5, 8}),
         c = normal("c", Dtype::f32, {5, 8}), d(Dtype::f32, {5, 8});
  ops::embedding_backward(m.ctx, c.tensor(), tokens.tensor(), d.tensor());
  expect_gradient({&table}, {d}, [&] {
    ops::embedding(m.ctx, table.tensor(), tokens.tensor(), out.tensor());
    return weighted_sum(out, c);
  });
}

}  // namespace
