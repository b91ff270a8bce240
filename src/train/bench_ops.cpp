#include "train/bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "core/philox.h"
#include "model/rope_table.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/gemm.h"
#include "ops/machine.h"
#include "ops/norm.h"
#include "ops/quantize.h"
#include "ops/reduce.h"
#include "recipe/hardware.h"
#include "train/bench_step.h"

namespace octet {
namespace {

// A machine with memory for one benchmark: everything is allocated twice, first on counting arenas.
class Bench {
 public:
  Bench(const RunConfig& c, int rounds)
      : machine_({device_kind(c.run.device), static_cast<int>(c.run.threads), GemmMath::blas, false, 0, attention_kernels(c.run.attention)}), rounds_(rounds) {}

  Machine& machine() { return machine_; }

  Tensor random(Arena& arena, Dtype dtype, Shape shape) {
    const Tensor t = arena.alloc(dtype, shape);
    if (!arena.counting()) {
      machine_.write(t, [](const Tensor& host) {
        constexpr int64_t period = 1 << 16;
        const Philox rng(1, RngPurpose::init, "bench.values");
        const int64_t first = std::min(period, host.elements());
        for (int64_t i = 0; i < first; ++i) {
          const auto x = static_cast<float>(rng.normal(static_cast<uint64_t>(i)));
          if (host.dtype == Dtype::f32) host.as<float>()[i] = x; else host.as<bf16>()[i] = to_bf16(x);
        }
        const auto bytes = static_cast<int64_t>(host.bytes()), piece = first * static_cast<int64_t>(size_bytes(host.dtype));
        auto* at = static_cast<char*>(host.data);
        for (int64_t done = piece; done < bytes; done += piece) std::memcpy(at + done, at, static_cast<size_t>(std::min(piece, bytes - done)));
      });
    }
    return t;
  }

  using Call = std::function<void(Ctx&)>;
  // Once, with scratch memory of its own.
  void run(const Call& call) {
    Arena counted;
    Ctx plan = machine_.context(counted);
    call(plan);
    Arena scratch = machine_.arena(counted.high_water_bytes());
    Ctx ctx = machine_.context(scratch);
    call(ctx);
    machine_.synchronize();
  }

  // make(arena) allocates operands and returns the call. Its memory is gone afterwards.
  OpTiming time(std::string group, std::string name, double flops, double bytes, const std::function<Call(Arena&)>& make) {
    Arena counted, counted_scratch;
    {
      Ctx plan = machine_.context(counted_scratch);
      make(counted)(plan);
    }
    Arena memory = machine_.arena(counted.high_water_bytes()), scratch = machine_.arena(counted_scratch.high_water_bytes());
    const Call call = make(memory);
    Ctx ctx = machine_.context(scratch);
    const auto round = [&](int calls) {
      const double begin = now_ms();
      for (int i = 0; i < calls; ++i) call(ctx);
      machine_.synchronize();
      return (now_ms() - begin) / calls;
    };
    constexpr double round_ms = 20;
    round(1);
    if (machine_.kind() == DeviceKind::cuda) {
      // Algorithms as training has them. Twice the operands are more than what timing wants.
      const size_t lent_bytes = 2 * memory.capacity_bytes();
      Arena lent = machine_.arena(lent_bytes);
      machine_.tune_products(lent.alloc(Dtype::u8, {static_cast<int64_t>(lent_bytes)}).data, lent_bytes);
    }
    const int calls = std::clamp(static_cast<int>(round_ms / std::max(round(2), 1e-3)), 1, 1000);
    std::vector<double> ms;
    for (int i = 0; i < rounds_; ++i) ms.push_back(round(calls));
    return {std::move(group), std::move(name), median(ms), *std::min_element(ms.begin(), ms.end()), *std::max_element(ms.begin(), ms.end()), flops, bytes, 0};
  }

 private:
  Machine machine_;
  int rounds_;
};

double rate(const OpTiming& t) { return (t.flops > 0 ? t.flops : t.bytes) / t.ms; }

Recipe recipe_named(const RunConfig& c, const std::string& name) {
  PrecisionConfig p = c.precision;
  p.recipe = name;
  return make_recipe(name, p);
}

// An operand of a product: random values, quantized where the spec says so. column: the image for contraction over the rows of [rows, cols].
Operand operand(Bench& bench, Arena& arena, const QuantSpec& spec, int64_t rows, int64_t cols, bool column) {
  const Tensor values = bench.random(arena, Dtype::bf16, {rows, cols});
  if (!spec.quantized()) return Operand::plain(values, column);
  const Operand image = alloc_image(arena, spec, rows, cols, column, bench.machine().image_layout());
  const Tensor stored = arena.alloc(Dtype::f32, {1});
  if (arena.counting()) return image;
  bench.machine().write(stored, [](const Tensor& t) { t.as<float>()[0] = 50.0f; });
  QuantizedOut out{spec, spec, column ? Operand{} : image, column ? image : Operand{}, {}};
  if (spec.stored_scale()) out.target.stored_scale = stored.as<float>();
  bench.run([&](Ctx& ctx) { ops::quantize(ctx, values, out); });
  return image;
}

struct Layer {
  const char* name;
  int64_t out, in;
};

std::vector<Layer> layers(const ModelConfig& m) {
  return {{"attn.qkv (q)", m.num_attention_heads * m.head_dim, m.hidden_size},
          {"attn.out", m.hidden_size, m.num_attention_heads * m.head_dim},
          {"mlp.gate_up (gate)", m.intermediate_size, m.hidden_size},
          {"mlp.down", m.hidden_size, m.intermediate_size}};
}

}  // namespace

OpBench bench_gemm(const RunConfig& c, const std::vector<std::string>& recipes, int rounds) {
  Bench bench(c, rounds);
  OpBench result{bench.machine().name(), "BF16", {}};
  const int64_t tokens = c.batch.micro * c.data.seq_len;
  std::vector<std::string> names{"bf16"};
  names.insert(names.end(), recipes.begin(), recipes.end());
  for (const Layer& l : layers(c.model)) {
    const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(l.out) * static_cast<double>(l.in);
    struct Form {
      const char* name;
      int64_t m, n;
      Dtype out;
      float beta;
    };
    for (const Form& p : {Form{"fprop", tokens, l.out, Dtype::bf16, 0.0f}, {"dgrad", tokens, l.in, Dtype::bf16, 0.0f}, {"wgrad", l.out, l.in, Dtype::f32, 0.0f}}) {
      const std::string group = fmt::format("{} {}", l.name, p.name);
      const size_t reference = result.rows.size();
      for (const std::string& name : names) {
        const Recipe r = recipe_named(c, name);
        if (bench.machine().kind() == DeviceKind::cuda) check_recipe(r, bench.machine().capability(), c.precision.emulate, "--recipe " + name);
        const int which = p.name[0] == 'f' ? 0 : p.name[0] == 'd' ? 1 : 2;
        result.rows.push_back(bench.time(group, name, flops, 0, [&](Arena& arena) -> Bench::Call {
          const Operand a = which == 0 ? operand(bench, arena, r.x_row, tokens, l.in, false)
                                       : operand(bench, arena, which == 1 ? r.dy_row : r.dy_col, tokens, l.out, which == 2);
          const Operand b = which == 2 ? operand(bench, arena, r.x_col, tokens, l.in, true) : operand(bench, arena, which == 0 ? r.w_row : r.w_col, l.out, l.in, which == 1);
          const Tensor out = bench.random(arena, p.out, {p.m, p.n});
          return [=](Ctx& ctx) {
            const GemmTerm term{a, b};
            ops::gemm(ctx, {&term, 1}, out, p.beta, r.accumulate[static_cast<size_t>(which)]);
          };
        }));
        result.rows.back().ratio = rate(result.rows.back()) / rate(result.rows[reference]);
      }
    }
  }
  return result;
}

OpBench bench_quantize(const RunConfig& c, const std::vector<std::string>& recipes, int rounds) {
  Bench bench(c, rounds);
  OpBench result{bench.machine().name(), "a copy", {}};
  const int64_t tokens = c.batch.micro * c.data.seq_len, inner = c.model.intermediate_size, hidden = c.model.hidden_size;
  const auto n = static_cast<double>(tokens * inner), h = static_cast<double>(tokens * hidden);
  const auto add = [&](const std::string& group, const std::string& name, double bytes, const std::function<Bench::Call(Arena&)>& make) {
    result.rows.push_back(bench.time(group, name, 0, bytes, make));
    result.rows.back().ratio = rate(result.rows.back()) / rate(result.rows.front());
  };
  add("copy", "[tokens, 2 intermediate] BF16", 8 * n, [&](Arena& arena) -> Bench::Call {
    const Tensor from = bench.random(arena, Dtype::bf16, {tokens, 2 * inner}), to = arena.alloc(Dtype::bf16, {tokens, 2 * inner});
    return [=](Ctx& ctx) { ops::copy(ctx, from, to); };
  });
  for (const std::string& name : recipes) {
    const Recipe r = recipe_named(c, name);
    // Images of a [rows, cols] matrix in the recipe's formats for x.
    const auto images = [&](Arena& arena, int64_t cols, bool row, bool col) {
      QuantizedOut out{r.x_row, r.x_col, {}, {}, {}};
      if (row && r.x_row.quantized()) out.row = alloc_image(arena, r.x_row, tokens, cols, false, bench.machine().image_layout());
      if (col && r.x_col.quantized()) out.col = alloc_image(arena, r.x_col, tokens, cols, true, bench.machine().image_layout());
      const Tensor stored = arena.alloc(Dtype::f32, {1});
      if (!arena.counting()) bench.machine().write(stored, [](const Tensor& t) { t.as<float>()[0] = 50.0f; });
      if (r.x_row.stored_scale()) out.target.stored_scale = static_cast<const float*>(stored.data);
      return out;
    };
    // A scale of the whole tensor or of rows and columns needs the values twice.
    const bool twice = !r.x_row.stored_scale() && (r.x_row.block_cols == 0);
    const double reads = twice ? 4 : 2;
    for (const auto& [what, row, col] : {std::tuple{"row image", true, false}, {"column image", false, true}, {"both images", true, true}}) {
      add(name, fmt::format("quantize, {}", what), n * (reads + (row ? 1 : 0) + (col ? 1 : 0)), [&](Arena& arena) -> Bench::Call {
        const Tensor x = bench.random(arena, Dtype::bf16, {tokens, inner});
        const QuantizedOut out = images(arena, inner, row, col);
        return [=](Ctx& ctx) { ops::quantize(ctx, x, out); };
      });
    }
    add(name, "norm + both images", h * (2 + 2 + 2 + reads + 2), [&](Arena& arena) -> Bench::Call {
      const Tensor x = bench.random(arena, Dtype::bf16, {tokens, hidden}), delta = bench.random(arena, Dtype::bf16, {tokens, hidden}), gamma = bench.random(arena, Dtype::bf16, {hidden});
      const Tensor sum = arena.alloc(Dtype::bf16, {tokens, hidden}), rstd = arena.alloc(Dtype::f32, {tokens});
      const QuantizedOut out = images(arena, hidden, true, true);
      return [=](Ctx& ctx) { ops::rmsnorm_quantize(ctx, x, delta, gamma, 1e-5f, {sum, {}, rstd, out}); };
    });
    add(name, "SwiGLU + both images", n * (2 * reads + 2), [&](Arena& arena) -> Bench::Call {
      const Tensor gate_up = bench.random(arena, Dtype::bf16, {tokens, 2 * inner});
      const QuantizedOut out = images(arena, inner, true, true);
      return [=](Ctx& ctx) { ops::swiglu_quantize(ctx, gate_up, {}, out); };
    });
  }
  return result;
}

OpBench bench_attention(const RunConfig& c, int rounds) {
  Bench bench(c, rounds);
  OpBench result{bench.machine().name(), "", {}};
  const ModelConfig& m = c.model;
  bench.machine().check_attention(m.head_dim, Dtype::bf16);
  const HeadGeometry g{m.num_attention_heads, m.num_key_value_heads, m.head_dim, rotary_dim(m), static_cast<float>(m.rms_norm_eps)};
  const int64_t tokens = c.batch.micro * c.data.seq_len, seq = c.data.seq_len, out_width = g.heads * g.head_dim;
  const double half = static_cast<double>(c.batch.micro * g.heads * g.head_dim) * static_cast<double>(seq) * static_cast<double>(seq);
  const auto shape = fmt::format("{} x {} tokens, {} heads over {}, head_dim {}", c.batch.micro, seq, g.heads, g.kv_heads, g.head_dim);
  const auto forward = [&](Arena& arena, Tensor& qkv, Tensor& out, Tensor& lse) {
    qkv = bench.random(arena, Dtype::bf16, {tokens, g.qkv_width()});
    out = arena.alloc(Dtype::bf16, {tokens, out_width});
    lse = arena.alloc(Dtype::f32, {c.batch.micro, g.heads, seq});
  };
  result.rows.push_back(bench.time(shape, "forward", 2 * half, 0, [&](Arena& arena) -> Bench::Call {
    Tensor qkv, out, lse;
    forward(arena, qkv, out, lse);
    return [=](Ctx& ctx) { ops::attention(ctx, qkv, {}, seq, g, out, lse); };
  }));
  result.rows.push_back(bench.time(shape, "backward", 5 * half, 0, [&](Arena& arena) -> Bench::Call {
    Tensor qkv, out, lse;
    forward(arena, qkv, out, lse);
    const Tensor d_out = bench.random(arena, Dtype::bf16, out.shape), d_qkv = arena.alloc(Dtype::bf16, qkv.shape);
    if (!arena.counting()) bench.run([&](Ctx& ctx) { ops::attention(ctx, qkv, {}, seq, g, out, lse); });
    return [=](Ctx& ctx) { ops::attention_backward(ctx, d_out, qkv, out, lse, {}, seq, g, d_qkv); };
  }));
  return result;
}

}  // namespace octet
