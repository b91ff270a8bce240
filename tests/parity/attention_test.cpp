// Attention of both families against the CPU backend.
//
// Tolerances, beside one rounding of the output: the mma family rounds P and dS to BF16 before the second products (relative error 2^-9 an
// element, random signs), so out is off by less than 2^-9 of its largest value and gradients by less than 2^-8; the general family and lse are FP32.
#include <algorithm>

#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "rig.h"

using namespace parity;

namespace {

enum class Documents { none, few, many, at_tiles };

struct Case {
  Dtype dtype;
  int64_t samples, seq_len, heads, kv_heads, head_dim;
  Documents documents = Documents::none;
  AttentionKernels kernels = AttentionKernels::mma;

  HeadGeometry geometry() const { return {heads, kv_heads, head_dim, head_dim, 1e-5f}; }
  int64_t rows() const { return samples * seq_len; }
  bool tensor() const { return dtype == Dtype::bf16 && head_dim % 16 == 0 && head_dim <= 256; }
  std::string name() const {
    return fmt::format("{}{} B{} S{} A{} K{} d{} documents {}", kernels == AttentionKernels::wgmma ? "wgmma " : "", octet::name(dtype), samples, seq_len, heads, kv_heads, head_dim, static_cast<int>(documents));
  }
};

struct Inputs {
  Host qkv, d_out, document_start;
};
struct Results {
  Host out, lse, d_qkv;
};

// Documents of many lengths, other ones in each sample: within a tile, over whole tiles, of one token; at_tiles: beginning at and beside tiles' edges.
Host document_starts(const Case& c) {
  Host h(Dtype::i32, {c.rows()});
  const Philox rng(3, RngPurpose::init, "documents");
  const auto begins = [&](int64_t b, int64_t i) {
    if (c.documents == Documents::many) return rng.normal(static_cast<uint64_t>(b * c.seq_len + i)) > 1.3;
    if (c.documents == Documents::few) return i == c.seq_len / 2 + 3 + b || i == c.seq_len * 3 / 4;
    const std::array<std::array<int64_t, 5>, 3> starts{{{31, 33, 64, 127, 192}, {32, 63, 65, 128, 191}, {95, 129, 193, 254, 255}}};
    return std::ranges::find(starts[static_cast<size_t>(b) % 3], i) != starts[static_cast<size_t>(b) % 3].end();
  };
  for (int64_t b = 0; b < c.samples; ++b) {
    int64_t start = 0;
    for (int64_t i = 0; i < c.seq_len; ++i) {
      if (begins(b, i)) start = i;
      h.set(b * c.seq_len + i, static_cast<double>(start));
    }
  }
  return h;
}

Inputs make_inputs(const Case& c) {
  // Scores of a few units: softmax is neither flat nor a single key.
  Inputs in{normal("qkv", c.dtype, {c.rows(), c.geometry().qkv_width()}, 1.3), normal("d_out", c.dtype, {c.rows(), c.heads * c.head_dim}), {}};
  if (c.documents != Documents::none) in.document_start = document_starts(c);
  return in;
}

Host blank_out(const Case& c) { return {c.dtype, {c.rows(), c.heads * c.head_dim}}; }
Host blank_lse(const Case& c) { return {Dtype::f32, {c.samples, c.heads, c.seq_len}}; }

Results run_host(Rig& rig, const Case& c, Inputs in) {
  Results r{blank_out(c), blank_lse(c), in.qkv};
  const Tensor documents = c.documents == Documents::none ? Tensor{} : in.document_start.tensor();
  rig.on_host([&](Ctx& ctx) { cpu::attention(ctx, in.qkv.tensor(), documents, c.seq_len, c.geometry(), r.out.tensor(), r.lse.tensor(), QuantizedOut{}); });
  rig.on_host([&](Ctx& ctx) {
    cpu::attention_backward(ctx, in.d_out.tensor(), in.qkv.tensor(), r.out.tensor(), r.lse.tensor(), documents, c.seq_len, c.geometry(), r.d_qkv.tensor());
  });
  return r;
}

// The backward gets `forward`'s out and lse, so that both backends start from the same bits; without it, its own.
Results run_device(Rig& rig, const Case& c, const Inputs& in, const Results* forward = nullptr) {
  rig.attention = c.kernels;
  const Tensor qkv = rig.upload(in.qkv), d_out = rig.upload(in.d_out), documents = c.documents == Documents::none ? Tensor{} : rig.upload(in.document_start);
  const Tensor out = rig.upload(blank_out(c), true), lse = rig.upload(blank_lse(c), true), d_qkv = rig.upload(in.qkv, true);
  rig.on_device([&](Ctx& ctx) { cuda::attention(ctx, qkv, documents, c.seq_len, c.geometry(), out, lse, QuantizedOut{}); });
  const Tensor given_out = forward ? rig.upload(forward->out) : out, given_lse = forward ? rig.upload(forward->lse) : lse;
  rig.on_device([&](Ctx& ctx) { cuda::attention_backward(ctx, d_out, qkv, given_out, given_lse, documents, c.seq_len, c.geometry(), d_qkv); });
  Results r{rig.download(out), rig.download(lse), rig.download(d_qkv)};
  rig.reset();
  return r;
}

// Calls: on the host the rig gives each another order of threads. A round is two calls, so that one more between rounds lets forward and backward see all four.
template <class F>
void in_every_order(Rig& rig, const F& f) {
  for (int order = 0; order < 4; ++order) {
    f(order);
    if (order == 1) rig.on_device([](Ctx&) {});
  }
}

Host columns(const Host& x, int64_t begin, int64_t count) {
  const int64_t rows = x.shape().rows(), cols = x.shape().cols();
  Host out(x.dtype(), {rows, count});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < count; ++i) out.set(r * count + i, x.at(r * cols + begin + i));
  }
  return out;
}

void check(const Case& c) {
  SCOPED_TRACE(c.name());
  Rig rig;
  const Inputs in = make_inputs(c);
  const Results want = run_host(rig, c, in);
  Results first;
  in_every_order(rig, [&](int order) {
    Results got = run_device(rig, c, in, &want);
    if (order == 0) {
      const double out_tolerance = c.tensor() ? 0x1p-9 : 2e-6, gradient_tolerance = c.tensor() ? 0x1p-8 : 5e-6;
      expect_close(got.out, want.out, out_tolerance, "out");
      expect_close(got.lse, want.lse, 2e-6, "lse");
      // Each part by itself: v's gradients are larger than q's. A query that sees one key has gradients of q and k that are 0 but for rounding, which is
      // rounding of numbers of the inputs' size, about 1.
      const int64_t q = c.heads * c.head_dim, k = c.kv_heads * c.head_dim;
      expect_close(columns(got.d_qkv, 0, q), columns(want.d_qkv, 0, q), gradient_tolerance, "dq", 1.0, 1.0);
      expect_close(columns(got.d_qkv, q, k), columns(want.d_qkv, q, k), gradient_tolerance, "dk", 1.0, 1.0);
      expect_close(columns(got.d_qkv, q + k, k), columns(want.d_qkv, q + k, k), gradient_tolerance, "dv");
      first = got;
    } else {
      expect_same(got.out, first.out, "out, threads in another order");
      expect_same(got.lse, first.lse, "lse, threads in another order");
      expect_same(got.d_qkv, first.d_qkv, "d_qkv, threads in another order");
    }
  });
}

// Rows [begin, end) of all inputs become large numbers. Not so large that their own rows overflow: dP or delta = Inf times P = 0 is NaN, as in the CPU backend.
Inputs with_large_rows(Inputs in, int64_t begin, int64_t end) {
  for (Host* x : {&in.qkv, &in.d_out}) {
    const int64_t cols = x->shape().cols();
    for (int64_t i = begin * cols; i < end * cols; ++i) x->set(i, i % 3 ? 512.0 : -512.0);
  }
  return in;
}

// The same bits in rows [begin, end) of one sample; lse has its rows last.
void expect_same_rows(const Case& c, const Results& got, const Results& want, int64_t begin, int64_t end, bool keys_too, const std::string& what) {
  const auto rows = [&](const Host& x, int64_t width, int64_t columns_compared) {
    Host out(x.dtype(), {end - begin, columns_compared});
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < columns_compared; ++i) out.set((r - begin) * columns_compared + i, x.at(r * width + i));
    }
    return out;
  };
  const int64_t q = c.heads * c.head_dim, all = c.geometry().qkv_width();
  expect_same(rows(got.out, q, q), rows(want.out, q, q), what + ", out");
  expect_same(rows(got.d_qkv, all, keys_too ? all : q), rows(want.d_qkv, all, keys_too ? all : q), what + ", gradients");
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t r = begin; r < end; ++r) EXPECT_EQ(got.lse.at(h * c.seq_len + r), want.lse.at(h * c.seq_len + r)) << what << ", lse of head " << h << ", row " << r;
  }
}

// What a query does not see has no influence, not even on a bit: later rows, and rows of other documents.
void check_independence(Case c, int64_t cut) {
  SCOPED_TRACE(c.name());
  Rig rig;
  const Inputs in = make_inputs(c);
  expect_same_rows(c, run_device(rig, c, with_large_rows(in, cut, c.seq_len)), run_device(rig, c, in), 0, cut, false, "later rows");
  c.documents = Documents::few;
  Inputs cut_in = in;
  cut_in.document_start = Host(Dtype::i32, {c.seq_len});
  for (int64_t i = 0; i < c.seq_len; ++i) cut_in.document_start.set(i, static_cast<double>(i < cut ? 0 : cut));
  const Results want = run_device(rig, c, cut_in);
  expect_same_rows(c, run_device(rig, c, with_large_rows(cut_in, cut, c.seq_len)), want, 0, cut, true, "later document");
  expect_same_rows(c, run_device(rig, c, with_large_rows(cut_in, 0, cut)), want, cut, c.seq_len, true, "earlier document");
}

constexpr Dtype b = Dtype::bf16, f = Dtype::f32;

}  // namespace

TEST(Attention, SequenceLengths) {
  for (const int64_t s : {1, 17, 64, 128, 150, 200}) check({b, 1, s, 2, 1, 32, Documents::none});
  check({b, 1, 300, 1, 1, 32, Documents::none});
}

TEST(Attention, HeadDimensions) {
  for (const int64_t d : {16, 48, 64, 80, 96, 112, 128, 144, 192, 256}) check({b, 1, d <= 128 ? 150 : 70, 1, 1, d, Documents::few});
}

TEST(Attention, HeadsAndSamples) {
  check({b, 2, 70, 4, 2, 16, Documents::none});
  check({b, 2, 140, 4, 1, 32, Documents::few});
  check({b, 2, 66, 2, 2, 64, Documents::many});
  check({b, 1, 130, 3, 1, 128, Documents::few});
}

TEST(Attention, Documents) {
  for (const int64_t s : {17, 150, 260}) check({b, 2, s, 1, 1, 32, Documents::many});
  check({b, 2, 300, 1, 1, 32, Documents::few});
  check({b, 3, 260, 1, 1, 32, Documents::at_tiles});
  check({b, 1, 200, 1, 1, 64, Documents::many});
  check({b, 2, 200, 1, 1, 128, Documents::at_tiles});
}

// Hopper's own instructions: lengths around a tile of 128, samples beside each other, groups, documents. A GPU that lacks them takes the other kernels here, which these cases suit as well.
TEST(Attention, Wgmma) {
  constexpr AttentionKernels w = AttentionKernels::wgmma;
  for (const int64_t s : {1, 64, 129, 300}) check({b, 1, s, 2, 1, 64, Documents::none, w});
  for (const int64_t s : {17, 128, 260, 513}) check({b, 1, s, 1, 1, 128, Documents::none, w});
  check({b, 2, 150, 4, 2, 64, Documents::few, w});
  check({b, 2, 200, 2, 1, 128, Documents::many, w});
  check({b, 3, 260, 1, 1, 64, Documents::at_tiles, w});
  check({b, 2, 300, 1, 1, 128, Documents::few, w});
  check({b, 1, 520, 2, 1, 128, Documents::few, w});   // more tiles than stages, over heads
  check_independence({b, 1, 300, 2, 1, 128, Documents::none, w}, 140);
  check_independence({b, 1, 200, 1, 1, 64, Documents::none, w}, 128);
}

TEST(Attention, General) {
  check({f, 2, 40, 4, 2, 24, Documents::none});
  check({f, 1, 75, 2, 2, 64, Documents::many});
  check({f, 2, 1, 2, 1, 8, Documents::none});
  check({b, 2, 45, 2, 1, 20, Documents::few});
  check({b, 1, 33, 1, 1, 272, Documents::none});
}

TEST(Attention, UnseenRowsHaveNoInfluence) {
  for (const int64_t cut : {1, 77, 128}) check_independence({b, 1, 200, 2, 1, 32}, cut);
  check_independence({b, 1, 140, 1, 1, 128}, 70);
  check_independence({b, 1, 70, 1, 1, 192}, 37);
  check_independence({f, 1, 50, 2, 1, 24}, 33);
}
