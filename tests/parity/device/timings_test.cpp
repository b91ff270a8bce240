// Times of the CUDA operators at the shapes of a Llama-3-8B layer (8192 tokens), as shares of what the device does at all: a copy's bandwidth for
// memory-bound ones, BF16 products for the rest. Prints a table (docs/benchmarks/hopper.md); fails only where something is far from its bound.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>

#include "../rig.h"
#include "cuda/cuda_ops.h"
#include "cuda/gemm/plans.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/loss.h"
#include "ops/reduce.h"

using namespace parity;

namespace {

constexpr int64_t tokens = 8192, hidden = 4096, inner = 14336;

class Timings : public ::testing::Test {
 protected:
  Timings() : memory_(size_t{12} << 30, device_.memory(), false), scratch_(size_t{4} << 30, device_.memory(), false) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
    key_ = memory_.alloc_array<StepKey>(1);
    const StepKey key;
    device_.copy_in(key_, &key, sizeof key);
  }
  ~Timings() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  // Random values: zeros run faster than data does.
  Tensor random(Dtype dtype, Shape shape, double scale = 1.0) {
    const int64_t n = shape.elements(), piece = int64_t{1} << 20;
    const Host values = normal("timing", dtype, {std::min(n, piece)}, scale);
    const Tensor t = memory_.alloc(dtype, shape);
    for (int64_t at = 0; at < n; at += piece) {
      device_.copy_in(static_cast<char*>(t.data) + static_cast<size_t>(at) * size_bytes(dtype), values.bytes().data(), static_cast<size_t>(std::min(piece, n - at)) * size_bytes(dtype));
    }
    device_.synchronize();
    return t;
  }
  Tensor blank(Dtype dtype, Shape shape) { return memory_.alloc(dtype, shape); }

  // Median over rounds of the time of one call.
  double ms(const std::function<void(Ctx&)>& op, int calls = 5) {
    Ctx ctx(&device_, pool_, scratch_);
    ctx.key = key_;
    ctx.attention = attention_;
    op(ctx);
    op(ctx);
    std::vector<float> times;
    for (int round = 0; round < 9; ++round) {
      cudaEventRecord(begin_, device_.stream());
      for (int i = 0; i < calls; ++i) op(ctx);
      cudaEventRecord(end_, device_.stream());
      device_.synchronize();
      float t = 0;
      cudaEventElapsedTime(&t, begin_, end_);
      times.push_back(t / static_cast<float>(calls));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void bytes(const std::string& name, double moved, const std::function<void(Ctx&)>& op, double at_least) {
    const double t = ms(op), rate = moved / t * 1e-6;
    if (copy_rate_ == 0) copy_rate_ = rate;
    fmt::print("| {:<44} | {:8.3f} | {:6.0f} GB/s | {:5.1f} % |\n", name, t, rate, 100 * rate / copy_rate_);
    EXPECT_GT(rate / copy_rate_, at_least) << name;
  }
  double product(const std::string& name, double flops, const std::function<void(Ctx&)>& op) {
    const double t = ms(op, 3), rate = flops / t * 1e-9;
    fmt::print("| {:<44} | {:8.3f} | {:6.0f} TFLOP/s |\n", name, t, rate);
    return rate;
  }

  cuda::Device device_{0};
  ThreadPool pool_{1};
  Arena memory_, scratch_;
  StepKey* key_ = nullptr;   // of stochastic rounding
  AttentionKernels attention_ = AttentionKernels::mma;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  double copy_rate_ = 0;
};

TEST_F(Timings, memory_bound) {
  const auto n = static_cast<double>(tokens * hidden), wide = static_cast<double>(tokens * inner);
  const Tensor x = random(Dtype::bf16, {tokens, hidden}), delta = random(Dtype::bf16, {tokens, hidden}), sum = blank(Dtype::bf16, {tokens, hidden}), y = blank(Dtype::bf16, {tokens, hidden});
  const Tensor gamma = random(Dtype::bf16, {hidden}), rstd = blank(Dtype::f32, {tokens}), gate_up = random(Dtype::bf16, {tokens, 2 * inner}), d_gate_up = blank(Dtype::bf16, {tokens, 2 * inner});
  const Tensor act = random(Dtype::bf16, {tokens, inner});
  bytes("copy 470 MB", wide * 8, [&](Ctx& ctx) { cuda::copy(ctx, gate_up, d_gate_up); }, 0.0);

  struct Kind {
    const char* name;
    QuantSpec row, col;
  };
  const QuantSpec line = block_spec(Dtype::e4m3, 1, 128), square = block_spec(Dtype::e4m3, 128, 128), tensor = block_spec(Dtype::e4m3, 0, 0), row = block_spec(Dtype::e4m3, 1, 0);
  QuantSpec delayed = tensor;
  delayed.scaling = Scaling::delayed;
  const Tensor stored = random(Dtype::f32, {1});
  for (const Kind& k : {Kind{"1x128", line, line}, {"128x128", square, square}, {"tensor, stored scale", delayed, delayed}, {"tensor, current", tensor, tensor}, {"rows", row, row}}) {
    Arena::Scope scope(memory_);
    for (const int which : {1, 2, 3}) {
      QuantizedOut out{k.row, k.col, {}, {}, {}};
      if (which & 1) out.row = alloc_image(memory_, k.row, tokens, inner, false, ImageLayout::gemm);
      if (which & 2) out.col = alloc_image(memory_, k.col, tokens, inner, true, ImageLayout::gemm);
      if (k.row.stored_scale()) out.target.stored_scale = stored.as<float>();
      const double images = which == 3 ? 2 : 1, reads = k.row.stored_scale() || (k.row.block_cols != 0) ? 2.0 : 4.0;
      bytes(fmt::format("quantize {}, {}", k.name, which == 1 ? "row" : which == 2 ? "column" : "both"), wide * (reads + images), [&](Ctx& ctx) { cuda::quantize(ctx, act, out); }, 0.4);
    }
  }
  QuantizedOut in{line, line, alloc_image(memory_, line, tokens, hidden, false, ImageLayout::gemm), alloc_image(memory_, line, tokens, hidden, true, ImageLayout::gemm), {}};
  bytes("norm of a sum, values", n * 8, [&](Ctx& ctx) { cuda::rmsnorm_quantize(ctx, x, delta, gamma, 1e-5f, {sum, y, rstd, {}}); }, 0.4);
  bytes("norm of a sum, 1x128 images (s read twice)", n * 10, [&](Ctx& ctx) { cuda::rmsnorm_quantize(ctx, x, delta, gamma, 1e-5f, {sum, {}, rstd, in}); }, 0.4);
  QuantizedOut mid{line, line, alloc_image(memory_, line, tokens, inner, false, ImageLayout::gemm), alloc_image(memory_, line, tokens, inner, true, ImageLayout::gemm), {}};
  bytes("SwiGLU, 1x128 images", wide * 6, [&](Ctx& ctx) { cuda::swiglu_quantize(ctx, gate_up, {}, mid); }, 0.3);
  bytes("SwiGLU backward", wide * 10, [&](Ctx& ctx) { cuda::swiglu_backward(ctx, act, gate_up, d_gate_up, {}, {}); }, 0.4);
  QuantizedOut up = mid;
  up.row = alloc_image(memory_, line, tokens, inner, false, ImageLayout::gemm);
  up.col = alloc_image(memory_, line, tokens, inner, true, ImageLayout::gemm);
  bytes("SwiGLU backward, 1x128 images", wide * 10, [&](Ctx& ctx) { cuda::swiglu_backward(ctx, act, gate_up, {}, mid, up); }, 0.3);
  const Tensor dgamma = random(Dtype::f32, {hidden});
  bytes("norm backward", n * 8, [&](Ctx& ctx) { cuda::rmsnorm_backward(ctx, x, delta, gamma, rstd, sum, y, dgamma); }, 0.2);

  const HeadGeometry heads{32, 8, 128, 128, 1e-5f};
  const Tensor qkv = random(Dtype::bf16, {tokens, heads.qkv_width()}), table = random(Dtype::f32, {tokens, 128});
  Host places(Dtype::i32, {tokens});
  for (int64_t i = 0; i < tokens; ++i) places.set(i, static_cast<double>(i));
  const Tensor positions = blank(Dtype::i32, {tokens});
  device_.copy_in(positions.data, places.bytes().data(), places.bytes().size());
  bytes("rope in place", static_cast<double>(tokens * 40 * 128) * 4, [&](Ctx& ctx) { cuda::qk_norm_rope(ctx, qkv, positions, table, heads, {}, qkv); }, 0.2);

  const int64_t rows = 1024, vocab = 128256;
  const Tensor labels{positions.data, Dtype::i32, {rows}};
  const Tensor logits = random(Dtype::bf16, {rows, vocab}), scale = random(Dtype::f32, {1}), loss = blank(Dtype::f32, {rows}), z = blank(Dtype::f32, {rows});
  bytes("cross-entropy, 1024 rows of 128256 (read twice)", static_cast<double>(rows * vocab) * 6,
        [&](Ctx& ctx) { cuda::cross_entropy(ctx, logits, labels, vocab, 0.0f, scale.as<float>(), loss, z); }, 0.2);
  const int64_t weights = int64_t{1} << 27;
  const Tensor master = random(Dtype::f32, {weights}), m = random(Dtype::f32, {weights}), v = random(Dtype::f32, {weights}), grad = random(Dtype::f32, {weights}), copy = blank(Dtype::bf16, {weights});
  const AdamwStep step{1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1.0f};
  const StepControl go{1.0f, 0};
  auto* control = static_cast<StepControl*>(blank(Dtype::u8, {sizeof(StepControl)}).data);
  device_.copy_in(control, &go, sizeof go);
  const AdamwUpdate plain{{master, {}, m, v, grad, copy, {}}, 0.1f, 0};
  bytes("AdamW, f32 states and a BF16 copy", static_cast<double>(weights) * 30,
        [&](Ctx& ctx) { cuda::adamw(ctx, {&plain, 1}, step, control); }, 0.6);
  const Tensor lower = blank(Dtype::u16, {weights}), first = blank(Dtype::bf16, {weights}), second = blank(Dtype::bf16, {weights});
  const AdamwUpdate compact{{{}, lower, first, second, grad, copy, {}}, 0.1f, 0};
  bytes("AdamW, halves and BF16 moments", static_cast<double>(weights) * 20,
        [&](Ctx& ctx) { cuda::adamw(ctx, {&compact, 1}, step, control); }, 0.5);
  const int64_t side = int64_t{1} << 13;
  const auto matrix = [&](Tensor t) {
    t.shape = {weights / side, side};
    return t;
  };
  const AdamwUpdate state{{{}, matrix(lower), matrix(first), matrix(second), matrix(grad), matrix(copy), {}}, 0.1f, 0};
  for (const Kind& k : {Kind{"128x128", square, square}, {"tensor, current", tensor, tensor}}) {
    const QuantizedOut images{k.row, k.col, alloc_image(memory_, k.row, weights / side, side, false, ImageLayout::gemm), alloc_image(memory_, k.col, weights / side, side, true, ImageLayout::gemm), {}};
    const double reads_again = k.row.per_tensor() ? 2 : 0;
    bytes(fmt::format("AdamW, halves, BF16 moments, images {}", k.name), static_cast<double>(weights) * (22 + reads_again), [&](Ctx& ctx) { cuda::adamw_quantize(ctx, state, step, control, images); }, 0.4);
  }
}

// All parameters of a Llama-3-8B whose sides are a quarter: 291 tensors, 0.5 G weights, from a vocabulary's matrices to norms of 1024.
// What gathered codes take besides.
TEST_F(Timings, rearranged_codes) {
  const auto wide = static_cast<double>(tokens * inner);
  bytes("copy of codes", wide * 2, [from = random(Dtype::bf16, {tokens, inner / 2}), to = blank(Dtype::bf16, {tokens, inner / 2})](Ctx& ctx) { cuda::copy(ctx, from, to); }, 0.0);
  const Tensor codes = blank(Dtype::e4m3, {tokens, inner}), turned = blank(Dtype::e4m3, {inner, tokens}), parts{codes.data, codes.dtype, {8 * inner, tokens / 8}};
  bytes("transpose codes", wide * 2, [&](Ctx& ctx) { cuda::transpose(ctx, codes, turned); }, 0.4);
  bytes("join the columns of 8 parts", wide * 2, [&](Ctx& ctx) { cuda::join_columns(ctx, parts, turned); }, 0.4);
}

TEST_F(Timings, optimizer) {
  const int64_t h = hidden / 4, kv = 256, mid = inner / 4, vocab = 128256 / 4;
  std::vector<Shape> shapes{{vocab, h}};
  for (int layer = 0; layer < 32; ++layer) {
    for (const Shape& s : {Shape{h}, {h, h}, {kv, h}, {kv, h}, {h, h}, {h}, {mid, h}, {mid, h}, {h, mid}}) shapes.push_back(s);
  }
  shapes.insert(shapes.end(), {{h}, {vocab, h}});
  int64_t weights = 0;
  for (const Shape& s : shapes) weights += s.elements();
  const auto n = static_cast<double>(weights);
  // Parts of one array each, as an arena hands them out.
  const auto cut = [&](const Tensor& whole) {
    std::vector<Tensor> parts;
    int64_t at = 0;
    for (const Shape& s : shapes) {
      parts.push_back({static_cast<char*>(whole.data) + static_cast<size_t>(at) * size_bytes(whole.dtype), whole.dtype, s});
      at += s.elements();
    }
    return parts;
  };
  const AdamwStep step{1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1.0f};
  const StepControl go{1.0f, 0};
  auto* control = static_cast<StepControl*>(blank(Dtype::u8, {sizeof(StepControl)}).data);
  device_.copy_in(control, &go, sizeof go);
  const Tensor grad = random(Dtype::f32, {weights}), copy = random(Dtype::bf16, {weights}), copy_to = blank(Dtype::bf16, {weights});
  const std::vector<Tensor> grads = cut(grad), copies = cut(copy);
  double* totals = memory_.alloc_array<double>(static_cast<int64_t>(shapes.size()));
  bytes("copy, BF16 weights", n * 4, [&](Ctx& ctx) { cuda::copy(ctx, copy, copy_to); }, 0.0);
  const MemorySource memory = device_.memory();
  memory.fill(memory.user, totals, 0, shapes.size() * sizeof(double));
  bytes("squares of 291 gradients", n * 4, [&](Ctx& ctx) { cuda::sum_squares(ctx, grads, totals); }, 0.2);
  const auto updates = [&](const std::vector<Tensor>& master, const std::vector<Tensor>& lower, const std::vector<Tensor>& m, const std::vector<Tensor>& v, bool places) {
    std::vector<AdamwUpdate> u;
    for (size_t i = 0; i < shapes.size(); ++i) {
      // Columns of a whole twice as wide.
      const MatrixPlace place = places ? MatrixPlace{0, shapes[i].cols(), 2 * shapes[i].cols()} : MatrixPlace{};
      u.push_back({{master.empty() ? Tensor{} : master[i], lower.empty() ? Tensor{} : lower[i], m[i], v[i], grads[i], copies[i], place}, 0.1f, i});
    }
    return u;
  };
  {
    Arena::Scope scope(memory_);
    const std::vector<AdamwUpdate> u = updates(cut(random(Dtype::f32, {weights})), {}, cut(random(Dtype::f32, {weights})), cut(random(Dtype::f32, {weights})), false);
    bytes("AdamW of 291 tensors, f32 states and a BF16 copy", n * 30, [&](Ctx& ctx) { cuda::adamw(ctx, u, step, control); }, 0.4);
  }
  const std::vector<Tensor> lower = cut(blank(Dtype::u16, {weights})), m = cut(blank(Dtype::bf16, {weights})), v = cut(blank(Dtype::bf16, {weights}));
  for (const bool places : {false, true}) {
    const std::vector<AdamwUpdate> u = updates({}, lower, m, v, places);
    bytes(fmt::format("AdamW of 291 tensors, halves, BF16 moments{}", places ? ", cut by columns" : ""), n * 20, [&](Ctx& ctx) { cuda::adamw(ctx, u, step, control); }, 0.4);
  }
}

// FLOP of the causal half: 4 S^2 d a head forward, 10 S^2 d backward, halved.
TEST_F(Timings, attention) {
  for (const int64_t d : {128, 64}) {
    Arena::Scope scope(memory_);
    const HeadGeometry g{4096 / d, 1024 / d, d, d, 1e-5f};
    const Tensor qkv = random(Dtype::bf16, {tokens, g.qkv_width()}), out = blank(Dtype::bf16, {tokens, g.heads * d}), lse = blank(Dtype::f32, {1, g.heads, tokens});
    const Tensor d_out = random(Dtype::bf16, {tokens, g.heads * d}), d_qkv = blank(Dtype::bf16, {tokens, g.qkv_width()});
    const double square = static_cast<double>(tokens) * static_cast<double>(tokens) * static_cast<double>(g.heads * d);
    double forward_bar = 150.0, backward_bar = 80.0;
    for (const AttentionKernels kernels : {AttentionKernels::mma, AttentionKernels::wgmma}) {
      if (kernels == AttentionKernels::wgmma && !device_.info().wgmma) continue;
      attention_ = kernels;
      const char* name = kernels == AttentionKernels::wgmma ? "wgmma attention" : "attention";
      const double forward = product(fmt::format("{} forward, head_dim {}", name, d), 2.0 * square, [&](Ctx& ctx) { cuda::attention(ctx, qkv, {}, tokens, g, out, lse, {}); });
      const double backward = product(fmt::format("{} backward, head_dim {}", name, d), 5.0 * square, [&](Ctx& ctx) { cuda::attention_backward(ctx, d_out, qkv, out, lse, {}, tokens, g, d_qkv); });
      EXPECT_GT(forward, forward_bar) << name;
      EXPECT_GT(backward, backward_bar) << name;
      forward_bar = forward;   // what has more instructions of its own must be faster
      backward_bar = backward;
    }
  }
}

TEST_F(Timings, products) {
  struct Product {
    const char* name;
    int64_t n, k;
  };
  const QuantSpec line = block_spec(Dtype::e4m3, 1, 128), square = block_spec(Dtype::e4m3, 128, 128), tensor = block_spec(Dtype::e4m3, 0, 0), row = block_spec(Dtype::e4m3, 1, 0);
  for (const Product& p : {Product{"qkv", 6144, 4096}, {"gate+up", 28672, 4096}, {"down", 4096, 14336}}) {
    Arena::Scope scope(memory_);
    const Tensor x = random(Dtype::bf16, {tokens, p.k}), w = random(Dtype::bf16, {p.n, p.k}), y = blank(Dtype::bf16, {tokens, p.n});
    const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(p.n) * static_cast<double>(p.k);
    const GemmTerm plain{Operand::plain(x), Operand::plain(w)};
    const double bf16_rate = product(fmt::format("{} forward, BF16", p.name), flops, [&](Ctx& ctx) { cuda::gemm(ctx, {&plain, 1}, y, 0.0f, Accumulate::accurate, {}); });
    struct Scales {
      const char* name;
      QuantSpec a, b;
      Accumulate accumulate;
    };
    for (const Scales& s : {Scales{"tensor, fast", tensor, tensor, Accumulate::fast}, {"tensor, accurate", tensor, tensor, Accumulate::accurate}, {"rows, accurate", row, row, Accumulate::accurate},
                            {"1x128 by 128x128", line, square, Accumulate::accurate}}) {
      Arena::Scope images(memory_);
      QuantizedOut a{s.a, {}, alloc_image(memory_, s.a, tokens, p.k, false, ImageLayout::gemm), {}, {}}, b{s.b, {}, alloc_image(memory_, s.b, p.n, p.k, false, ImageLayout::gemm), {}, {}};
      Ctx ctx(&device_, pool_, scratch_);
      cuda::quantize(ctx, x, a);
      cuda::quantize(ctx, w, b);
      const GemmTerm term{a.row, b.row};
      const double rate = product(fmt::format("{} forward, {}", p.name, s.name), flops, [&](Ctx& c) { cuda::gemm(c, {&term, 1}, y, 0.0f, s.accumulate, {}); });
      EXPECT_GT(rate, 1.2 * bf16_rate) << p.name << " " << s.name;
    }
  }
}

}  // namespace
