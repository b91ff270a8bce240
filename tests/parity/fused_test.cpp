// Producers that write images of what they compute: the bits of the producer followed by quantize.
#include <fmt/format.h>

#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "images.h"
#include "numerics/master.h"
#include "ops/activation.h"
#include "ops/optimizer.h"

using namespace parity;

namespace {

// Gradients of both halves, whose amaxes and scales differ. Elements that are not finite come from dy and from gates and ups.
TEST(fused, swiglu_backward_of_every_recipe) {
  Rig rig;
  for (const Spec& spec : specs()) {
    for (const ImageSize& extent : image_sizes) {
      const int64_t rows = extent.rows, cols = extent.cols;   // Clang 14 captures no structured bindings
      for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
        if (dtype == Dtype::f32 && rows != 130) continue;
        const std::string size = fmt::format("{} {}x{}", name(dtype), rows, cols);
        Host dy = matrix("dy " + size, dtype, rows, cols, rows == 32), gate_up = normal("gate_up " + size, dtype, {rows, 2 * cols}, 3.0);
        if (rows >= 130) {
          gate_up.set(cols / 2, std::numeric_limits<double>::quiet_NaN());
          gate_up.set(gate_up.elements() - 1, std::numeric_limits<double>::infinity());
        }
        const auto produce = [&](bool with_value) -> Producer {
          return [&, with_value](Ctx& ctx, bool device, const std::vector<QuantizedOut>& out) {
            Host d(dtype, gate_up.shape());
            const auto give = [&](Host& h, bool blank) { return !device ? h.tensor() : ctx.planning() ? Tensor{nullptr, h.dtype(), h.shape()} : rig.upload(h, blank); };
            const Tensor value = with_value ? give(d, true) : Tensor{};
            (device ? cuda::swiglu_backward : cpu::swiglu_backward)(ctx, give(dy, false), give(gate_up, false), value, out[0], out[1]);
          };
        };
        const bool r = spec.row.quantized(), k = spec.col.quantized();
        compare(rig, {spec, r, k, false}, rows, cols, produce(false), "gradient of SwiGLU " + size, 2);
        const Case given{.spec = spec, .row = r, .col = k, .health = false, .given = true};
        if (rows == 32 && can_give(given, rows, cols)) compare(rig, given, rows, cols, produce(true), "gradient of SwiGLU " + size, 2);
        if (rows != 32 || !r || !k) continue;
        compare(rig, {spec, r, k, true}, rows, cols, produce(false), "gradient of SwiGLU " + size, 2);
        compare(rig, {spec, true, false, false}, rows, cols, produce(true), "gradient of SwiGLU, value and row image " + size, 2);
        compare(rig, {spec, false, true, false}, rows, cols, produce(true), "gradient of SwiGLU, value and column image " + size, 2);
      }
    }
  }
}

// One half may have a stored scale while the other is still scaled by itself: a site that calibration has not seen yet.
TEST(fused, swiglu_backward_halves_with_other_scales) {
  Rig rig;
  QuantSpec spec = block_spec(Dtype::e5m2, 0, 0);
  spec.scaling = Scaling::delayed;
  const int64_t rows = 144, cols = 208;
  Host dy = normal("dy", Dtype::bf16, {rows, cols}), gate_up = normal("gate_up", Dtype::bf16, {rows, 2 * cols}, 3.0);
  const Producer produce = [&](Ctx& ctx, bool device, const std::vector<QuantizedOut>& out) {
    const auto give = [&](Host& h) { return !device ? h.tensor() : ctx.planning() ? Tensor{nullptr, h.dtype(), h.shape()} : rig.upload(h); };
    std::vector<QuantizedOut> parts = out;
    parts[1].target.stored_scale = nullptr;
    (device ? cuda::swiglu_backward : cpu::swiglu_backward)(ctx, give(dy), give(gate_up), {}, parts[0], parts[1]);
  };
  compare(rig, {{"delayed and current", spec, spec}, true, true, false}, rows, cols, produce, "halves", 2);
}

// The values are those written without images, in both families.
TEST(fused, swiglu_backward_values) {
  Rig rig;
  for (const auto& [rows, cols] : {ImageSize{144, 208}, {130, 77}}) {
    Host dy = normal("dy", Dtype::bf16, {rows, cols}), gate_up = normal("gate_up", Dtype::bf16, {rows, 2 * cols}, 3.0);
    const QuantSpec spec = block_spec(Dtype::e4m3, 1, 128);
    const Tensor dyt = rig.upload(dy), gut = rig.upload(gate_up), value = rig.upload(gate_up, true), alone = rig.upload(gate_up, true);
    const auto images = [&] { return QuantizedOut{spec, spec, rig.upload_image(spec, rows, cols, false), rig.upload_image(spec, rows, cols, true), {}}; };
    const QuantizedOut gate = images(), up = images();
    rig.on_device([&](Ctx& ctx) { cuda::swiglu_backward(ctx, dyt, gut, value, gate, up); });
    rig.on_device([&](Ctx& ctx) { cuda::swiglu_backward(ctx, dyt, gut, alone, {}, {}); });
    expect_same(rig.download(value), rig.download(alone), fmt::format("values with and without images {}x{}", rows, cols));
    rig.reset();
  }
}

// The state of one matrix in one of its forms; absent tensors are empty.
struct State {
  Host master, remainder, working, m, v, grad;
  std::array<Host*, 6> all() { return {&master, &remainder, &working, &m, &v, &grad}; }
};
enum class Form { master_and_copy, master_alone, halves };

State make_state(Form form, Dtype moments, int64_t rows, int64_t cols) {
  const Shape shape{rows, cols};
  State s{normal("w", Dtype::f32, shape), {}, {}, normal("m", moments, shape, 0.1), normal("v", moments, shape), normal("g", Dtype::f32, shape)};
  for (int64_t i = 0; i < s.v.elements(); ++i) s.v.set(i, s.v.at(i) * s.v.at(i));
  s.grad.set(s.grad.elements() / 2, std::numeric_limits<double>::infinity());   // the weight becomes NaN
  if (form == Form::master_alone) return s;
  s.working = Host(Dtype::bf16, shape);
  s.remainder = Host(Dtype::u16, shape);
  for (int64_t i = 0; i < s.working.elements(); ++i) {
    const SplitMaster split = split_master(resolve_tie(s.master.at(i)));
    std::memcpy(s.working.bytes().data() + 2 * i, &split.weight, 2);
    std::memcpy(s.remainder.bytes().data() + 2 * i, &split.remainder, 2);
  }
  (form == Form::halves ? s.master : s.remainder) = Host();
  return s;
}

// NaNs of CPU and GPU have other bits.
void settle_nans(Host& h) {
  if (h.dtype() != Dtype::f32) return;
  for (int64_t i = 0; i < h.elements(); ++i) {
    if (std::isnan(h.at(i))) h.set(i, std::numeric_limits<double>::quiet_NaN());
  }
}

void check_adamw(Rig& rig, const Case& c, Form form, Dtype moments, int64_t rows, int64_t cols, bool skip) {
  const State initial = make_state(form, moments, rows, cols);
  State want, got;
  const AdamwStep step{3e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.7f, 3.1f};
  const StepControl control{0.77f, skip};
  const Producer produce = [&](Ctx& ctx, bool device, const std::vector<QuantizedOut>& out) {
    State& s = device ? got : want;
    s = initial;
    std::array<Tensor, 6> t;
    for (size_t i = 0; i < t.size(); ++i) {
      Host& h = *s.all()[i];
      if (!h.bytes().empty()) t[i] = ctx.planning() ? Tensor{nullptr, h.dtype(), h.shape()} : device ? rig.upload(h) : h.tensor();
    }
    const AdamwUpdate update{{t[0], t[1], t[3], t[4], t[5], t[2], {}}, 0.1f, 99};
    const StepControl* decision = !device ? &control : ctx.planning() ? nullptr : rig.upload_value(control);
    (device ? cuda::adamw_quantize : cpu::adamw_quantize)(ctx, update, step, decision, out.front());
    if (!device || ctx.planning()) return;
    for (size_t i = 0; i < t.size(); ++i) {
      if (t[i]) *s.all()[i] = rig.download(t[i]);
    }
  };
  const std::string what = fmt::format("AdamW {}x{}, form {}, moments {}{}", rows, cols, static_cast<int>(form), name(moments), skip ? ", skipped" : "");
  compare(rig, c, rows, cols, produce, what);
  for (size_t i = 0; i < want.all().size(); ++i) {
    if (want.all()[i]->bytes().empty()) continue;
    for (Host* h : {got.all()[i], want.all()[i]}) settle_nans(*h);
    expect_same(*got.all()[i], *want.all()[i], fmt::format("{}, {}, tensor {}", what, c.spec.name, i));
  }
  if (skip) {
    EXPECT_EQ(got.v.bytes(), initial.v.bytes()) << what;
  }
}

TEST(fused, adamw_of_every_recipe) {
  Rig rig;
  for (const Spec& spec : specs()) {
    const bool r = spec.row.quantized(), k = spec.col.quantized();
    for (const ImageSize& extent : image_sizes) check_adamw(rig, {spec, r, k, false}, Form::halves, Dtype::bf16, extent.rows, extent.cols, false);
    check_adamw(rig, {spec, r, k, true}, Form::halves, Dtype::bf16, 32, 48, false);
    const Case given{.spec = spec, .row = r, .col = k, .health = false, .given = true};
    if (can_give(given, 32, 48)) check_adamw(rig, given, Form::halves, Dtype::bf16, 32, 48, false);
    check_adamw(rig, {spec, r, false, false}, Form::halves, Dtype::f32, 32, 144, false);
    check_adamw(rig, {spec, r, k, false}, Form::master_and_copy, Dtype::f32, 144, 48, true);
  }
}

TEST(fused, adamw_of_every_form_of_the_state) {
  Rig rig;
  QuantSpec delayed = block_spec(Dtype::e4m3, 0, 0);
  delayed.scaling = Scaling::delayed;
  const QuantSpec line = block_spec(Dtype::e4m3, 1, 128, ScaleKind::pow2), square = block_spec(Dtype::e4m3, 128, 128), tensor = block_spec(Dtype::e4m3, 0, 0), row = block_spec(Dtype::e4m3, 1, 0);
  for (const Spec& spec : {Spec{"1x128", line, line}, {"128x128", square, square}, {"delayed", delayed, delayed}, {"tensor", tensor, tensor}, {"rows", row, row}, {"128x128 and tensor", square, tensor}}) {
    for (const Form form : {Form::master_and_copy, Form::master_alone, Form::halves}) {
      for (const Dtype moments : {Dtype::f32, Dtype::bf16}) {
        for (const bool skip : {false, true}) check_adamw(rig, {spec, true, true, false}, form, moments, 144, 208, skip);
      }
    }
  }
}

struct AttentionCase {
  int64_t samples, seq_len, heads, head_dim;
  Dtype dtype = Dtype::bf16;
  bool documents = false, nonfinite = false;
  HeadGeometry geometry() const { return {heads, heads / 2, head_dim, head_dim, 1e-5f}; }
  int64_t rows() const { return samples * seq_len; }
};

// The images are those of the out that the device itself wrote (attention has a tolerance), and that out is the one written without images.
void check_attention(Rig& rig, const Spec& spec, const AttentionCase& a, bool also_given = false) {
  const int64_t cols = a.heads * a.head_dim;
  Host qkv = normal("qkv", a.dtype, {a.rows(), a.geometry().qkv_width()}, 1.3), starts, out(a.dtype, {a.rows(), cols}), lse(Dtype::f32, {a.samples, a.heads, a.seq_len});
  // Of the last head alone, from one row on: values that are not finite.
  if (a.nonfinite) qkv.set((a.seq_len / 2 + 1) * a.geometry().qkv_width() - 3, std::numeric_limits<double>::infinity());
  if (a.documents) {
    starts = Host(Dtype::i32, {a.rows()});
    for (int64_t i = 0; i < a.rows(); ++i) starts.set(i, static_cast<double>(i % a.seq_len / 50 * 50));
  }
  const Producer produce = [&](Ctx& ctx, bool device, const std::vector<QuantizedOut>& images) {
    const auto give = [&](Host& h, bool blank) { return ctx.planning() ? Tensor{nullptr, h.dtype(), h.shape()} : rig.upload(h, blank); };
    if (!device) {   // the host is given the device's out
      if (!ctx.planning()) {
        const Tensor q = rig.upload(qkv), o = rig.upload(out, true), l = rig.upload(lse, true), d = a.documents ? rig.upload(starts) : Tensor{};
        rig.on_device([&](Ctx& alone) { cuda::attention(alone, q, d, a.seq_len, a.geometry(), o, l, QuantizedOut{}); });
        out = rig.download(o);
        lse = rig.download(l);
      }
      return cpu::quantize(ctx, out.tensor(), images.front());
    }
    const Tensor q = give(qkv, false), o = give(out, true), l = give(lse, true), d = a.documents ? give(starts, false) : Tensor{};
    cuda::attention(ctx, q, d, a.seq_len, a.geometry(), o, l, images.front());
    if (ctx.planning()) return;
    expect_same(rig.download(o), out, "out with images");
    expect_same(rig.download(l), lse, "lse with images");
  };
  const std::string what = fmt::format("attention {} B{} S{} A{} d{}{}", name(a.dtype), a.samples, a.seq_len, a.heads, a.head_dim, a.documents ? " documents" : "");
  const bool r = spec.row.quantized(), k = spec.col.quantized();
  compare(rig, {spec, r, k, false}, a.rows(), cols, produce, what);
  const Case given{.spec = spec, .row = r, .col = k, .health = false, .given = true};
  if (also_given && can_give(given, a.rows(), cols)) compare(rig, given, a.rows(), cols, produce, what);
  if (!r || !k || a.head_dim == 256) return;
  compare(rig, {spec, true, false, false}, a.rows(), cols, produce, what + " row");
  compare(rig, {spec, false, true, false}, a.rows(), cols, produce, what + " column");
}

// Every way: images written by the kernel itself (whole and ragged query tiles), its amax alone, separate quantization.
TEST(fused, attention_of_every_recipe) {
  Rig rig;
  for (const Spec& spec : specs()) {
    check_attention(rig, spec, {1, 128, 2, 128, Dtype::bf16, false, true}, true);
    check_attention(rig, spec, {2, 80, 2, 64, Dtype::bf16, true}, true);
  }
}

TEST(fused, attention_of_other_shapes) {
  Rig rig;
  QuantSpec delayed = block_spec(Dtype::e4m3, 0, 0);
  delayed.scaling = Scaling::delayed;
  const QuantSpec line = block_spec(Dtype::e4m3, 1, 128, ScaleKind::pow2), square = block_spec(Dtype::e4m3, 128, 128), tensor = block_spec(Dtype::e4m3, 0, 0);
  for (const Spec& spec : {Spec{"1x128", line, line}, {"128x128", square, square}, {"delayed", delayed, delayed}, {"tensor", tensor, tensor}, {"128x128 and tensor", square, tensor}}) {
    check_attention(rig, spec, {2, 256, 2, 128, Dtype::bf16, true});   // several query tiles and samples
    check_attention(rig, spec, {1, 208, 2, 128});                     // ragged rows in sixteens
    check_attention(rig, spec, {1, 137, 2, 64});                      // and not
    check_attention(rig, spec, {1, 128, 2, 256});                     // two tiles a head
    check_attention(rig, spec, {1, 144, 2, 192});
    check_attention(rig, spec, {1, 144, 4, 16});
    check_attention(rig, spec, {1, 128, 2, 24});                      // the general family
    check_attention(rig, spec, {1, 128, 2, 128, Dtype::f32});
  }
}

}  // namespace
