// Both ends of the model, the embedding and the loss: of a whole vocabulary and of one that lies on several ranks.
#include "both.h"
#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "ops/embedding.h"
#include "ops/loss.h"

using namespace parity;

namespace {

TEST(embedding, forward_and_backward) {
  Rig rig;
  for (const Dtype dtype : both) {
    for (const auto& [count, cols] : {Size{700, 40}, {1, 7}, {33, 256}}) {
      const int64_t vocab = 13, first_row = 3, part_rows = 5;   // and a rank's part of the vocabulary
      Host tokens(Dtype::i32, {count});
      for (int64_t i = 0; i < count; ++i) tokens.set(i, static_cast<double>(i * i % 11));
      Both b(rig);
      const int table = b.input(normal("table", dtype, {vocab, cols})), ids = b.input(tokens), out = b.output(dtype, {count, cols});
      const int d_out = b.input(normal("d", dtype, {count, cols})), d_table = b.updated(normal("dt", Dtype::f32, {vocab, cols}));
      const int part = b.input(normal("part", dtype, {part_rows, cols})), part_out = b.output(dtype, {count, cols}), d_part = b.updated(normal("dp", Dtype::f32, {part_rows, cols}));
      const auto call = [&](auto&& forward, auto&& backward) {
        return [&, forward, backward](Ctx& ctx, const std::vector<Tensor>& t) {
          const auto at = [&](int i) { return t[static_cast<size_t>(i)]; };
          forward(ctx, at(table), at(ids), at(out), 0);
          backward(ctx, at(d_out), at(ids), at(d_table), 0);
          forward(ctx, at(part), at(ids), at(part_out), first_row);
          backward(ctx, at(d_out), at(ids), at(d_part), first_row);
        };
      };
      b.run(call(cpu::embedding, cpu::embedding_backward), call(cuda::embedding, cuda::embedding_backward));
      b.same(out, label("embedding", dtype, count, cols));
      b.same(d_table, label("embedding backward", dtype, count, cols));
      b.same(part_out, label("embedding of a part", dtype, count, cols));
      b.same(d_part, label("embedding of a part backward", dtype, count, cols));
    }
  }
}

TEST(cross_entropy, loss_and_gradient) {
  Rig rig;
  for (const Dtype dtype : both) {
    for (const auto& [logical, padded] : {std::pair<int64_t, int64_t>{257, 384}, {1000, 1000}, {5, 8}, {9001, 9008}}) {
      const int64_t rows = 6, vocab = logical, width = padded;   // Clang 14 captures no structured bindings
      Host labels(Dtype::i32, {rows});
      for (int64_t i = 0; i < rows; ++i) labels.set(i, i == 2 ? -1.0 : static_cast<double>(i * 97 % vocab));
      Both b(rig);
      const int logits = b.updated(normal("logits", dtype, {rows, width}, 4.0)), ids = b.input(labels), loss = b.output(Dtype::f32, {rows}), z = b.output(Dtype::f32, {rows});
      Host factor(Dtype::f32, {1});
      factor.set(0, 0.125);
      const int scale = b.input(factor);
      const auto call = [&](auto&& op) {
        return [&, op](Ctx& ctx, const std::vector<Tensor>& t) {
          op(ctx, t[static_cast<size_t>(logits)], t[static_cast<size_t>(ids)], vocab, 1e-4f, t[static_cast<size_t>(scale)].as<float>(), t[static_cast<size_t>(loss)], t[static_cast<size_t>(z)]);
        };
      };
      b.run(call(cpu::cross_entropy), call(cuda::cross_entropy));
      const std::string what = label("cross-entropy", dtype, vocab, width);
      b.close(loss, 1e-6, what + " loss");
      b.close(z, 1e-6, what + " z");
      b.close(logits, 4e-6, what + " gradient");
    }
  }
}

// Three ranks, of which one has no columns: the parts of each, and what each makes of the parts of all.
TEST(cross_entropy, over_ranks) {
  Rig rig;
  for (const Dtype dtype : both) {
    for (const auto& [shard, padded] : {std::pair<int64_t, int64_t>{257, 384}, {5, 8}, {0, 8}, {0, 0}, {9001, 9008}}) {
      const int64_t rows = 6, columns = shard, width = padded, first = 300, shards = 3;   // Clang 14 captures no structured bindings
      Host labels(Dtype::i32, {rows}), others = normal("others", Dtype::f32, {shards, rows, 3});
      for (int64_t i = 0; i < rows; ++i) labels.set(i, i == 2 ? -1.0 : i == 4 ? 7.0 : static_cast<double>(first + (columns ? i * 97 % columns : 0)));
      for (int64_t i = 0; i < shards * rows; ++i) {
        const bool none = i / rows == 1;   // a rank without columns
        others.set(3 * i, none ? -std::numeric_limits<double>::infinity() : 4.0 + others.at(3 * i));
        others.set(3 * i + 1, none ? 0.0 : 1.0 + std::fabs(others.at(3 * i + 1)));
        if (none) others.set(3 * i + 2, 0.0);
      }
      Both b(rig);
      const Host values = normal("logits", dtype, {rows, width}, 4.0);
      const int in = b.input(width ? values : Host()), logits = b.updated(width ? values : Host()), ids = b.input(labels), all = b.input(others), maxima = b.output(Dtype::f32, {rows, 3});
      const int loss = b.output(Dtype::f32, {rows}), z = b.output(Dtype::f32, {rows});
      Host factor(Dtype::f32, {1});
      factor.set(0, 0.125);
      const int scale = b.input(factor);
      const auto call = [&](auto&& parts_of, auto&& loss_of) {
        return [&, parts_of, loss_of](Ctx& ctx, const std::vector<Tensor>& t) {
          const auto at = [&](int i) { return t[static_cast<size_t>(i)]; };
          const Tensor none{nullptr, dtype, {rows, 0}};
          parts_of(ctx, width ? at(in) : none, at(ids), first, columns, at(maxima));
          loss_of(ctx, width ? at(logits) : none, at(ids), first, columns, at(all), 1e-4f, at(scale).template as<float>(), at(loss), at(z));
        };
      };
      b.run(call(cpu::softmax_parts, cpu::cross_entropy_of_parts), call(cuda::softmax_parts, cuda::cross_entropy_of_parts));
      const std::string what = label("cross-entropy over ranks", dtype, columns, width);
      for (int64_t i = 0; i < 3 * rows; ++i) {
        const double got = b.got(maxima).at(i), want = b.want(maxima).at(i);
        if (i % 3 == 1) EXPECT_NEAR(got, want, 4e-6 * want) << what;   // thousands of FP32 summands in another order
        else EXPECT_EQ(got, want) << what;
      }
      b.close(loss, 1e-6, what + " loss");
      b.close(z, 1e-6, what + " z");
      if (width) b.close(logits, 4e-6, what + " gradient");
    }
  }
}

// A thread of the device may see nothing but NaN, or nothing but -Inf, before it sees a number.
TEST(cross_entropy, odd_logits_come_before_numbers) {
  Rig rig;
  const int64_t vocab = 9001, width = 9008;
  Host logits = normal("logits", Dtype::bf16, {3, width}), labels(Dtype::i32, {3});
  for (int64_t r = 0; r < 3; ++r) labels.set(r, 3000.0);
  for (int64_t c = 0; c < 8; ++c) {
    logits.set(c, std::numeric_limits<double>::quiet_NaN());
    logits.set(width + c, -std::numeric_limits<double>::infinity());
  }
  for (int64_t c = 4096; c < 4104; ++c) logits.set(width + c, -std::numeric_limits<double>::infinity());   // the same thread's
  for (int64_t c = 8192; c < 8200; ++c) logits.set(width + c, -std::numeric_limits<double>::infinity());
  Host want(Dtype::f32, {3}), want_z(Dtype::f32, {3});
  const Tensor x = rig.upload(logits), ids = rig.upload(labels), loss = rig.upload(want, true), z = rig.upload(want, true), parts = rig.upload(Host(Dtype::f32, {1, 3, 3}), true),
               loss_of_parts = rig.upload(want, true);
  rig.on_device([&](Ctx& ctx) {
    cuda::cross_entropy(ctx, x, ids, vocab, 0.0f, nullptr, loss, z);
    cuda::softmax_parts(ctx, x, ids, 0, vocab, parts);
    cuda::cross_entropy_of_parts(ctx, x, ids, 0, vocab, parts, 0.0f, nullptr, loss_of_parts, z);
  });
  rig.on_host([&](Ctx& ctx) { cpu::cross_entropy(ctx, logits.tensor(), labels.tensor(), vocab, 0.0f, nullptr, want.tensor(), want_z.tensor()); });
  for (const Host& got : {rig.download(loss), rig.download(loss_of_parts)}) {
    EXPECT_TRUE(std::isnan(got.at(0)) && std::isnan(want.at(0)));
    for (int64_t r : {1, 2}) EXPECT_NEAR(got.at(r), want.at(r), 1e-5) << r;
  }
  rig.reset();
}

// A logit that is not finite must show in the loss, wherever it is: a thread may have nothing but it.
TEST(cross_entropy, logits_that_are_not_finite_show) {
  Rig rig;
  const int64_t vocab = 257, width = 384;
  for (const int64_t place : {0, 200, 256}) {
    Host logits = normal("logits", Dtype::bf16, {3, width}), labels(Dtype::i32, {3});
    for (int64_t r = 0; r < 3; ++r) labels.set(r, 3.0);
    logits.set(place, std::numeric_limits<double>::quiet_NaN());
    logits.set(width + place, std::numeric_limits<double>::infinity());
    const Tensor x = rig.upload(logits), ids = rig.upload(labels), loss = rig.upload(Host(Dtype::f32, {3}), true), z = rig.upload(Host(Dtype::f32, {3}), true);
    rig.on_device([&](Ctx& ctx) { cuda::cross_entropy(ctx, x, ids, vocab, 0.0f, nullptr, loss, z); });
    const Host got = rig.download(loss);
    EXPECT_TRUE(std::isnan(got.at(0))) << place << ": " << got.at(0);
    EXPECT_FALSE(std::isfinite(got.at(1))) << place << ": " << got.at(1);
    EXPECT_TRUE(std::isfinite(got.at(2))) << place;
    rig.reset();
  }
}

}  // namespace
