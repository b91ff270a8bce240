// Quantization in two passes over the source: amax of each block, then encoding with the block's scale. Blocks of any shape
// take one of two paths: by row (blocks of one row, or the whole tensor) and by band of rows. Statistics are gathered while a row's values
// and codes are at hand, in partial sums of fixed tiles that are folded in order.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "core/philox.h"
#include "cpu/convert.h"
#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "numerics/formats.h"
#include "numerics/hadamard.h"
#include "numerics/scale.h"

namespace octet::cpu {
namespace {

constexpr int64_t tile_rows = 32;

struct Grid {
  int64_t block_rows, block_cols;   // 0 replaced by the extent
  int64_t rows, cols;               // of the scale grid
  int64_t band;                     // rows of the source a task handles: whole blocks, or a slice of a block that spans all rows
  bool split_block;                 // several tasks share a block: partial maxima are folded afterwards
};

// Blocks as the matrix lies; 0: whole extent.
Grid make_grid(const MatrixView& x, int64_t block_rows, int64_t block_cols) {
  Grid g{};
  g.block_rows = block_rows ? block_rows : std::max<int64_t>(x.rows, 1);
  g.block_cols = block_cols ? block_cols : std::max<int64_t>(x.cols, 1);
  g.rows = block_count(x.rows, block_rows);
  g.cols = block_count(x.cols, block_cols);
  g.split_block = block_rows == 0;
  if (g.split_block) {
    g.band = tile_rows;
  } else {
    g.band = g.block_rows >= tile_rows ? g.block_rows : tile_rows / g.block_rows * g.block_rows;
  }
  return g;
}

// Maxima of the blocks touched by rows [r0, r1), all within one row of blocks unless block_rows is 1. out: one grid row (a line for each source row
// when block_rows is 1).
template <class T>
void band_amax(const MatrixView& x, const Grid& g, int64_t r0, int64_t r1, float* out, float* column_max, int64_t& nonfinite) {
  if (g.cols == 1) {
    float m = 0;
    for (int64_t r = r0; r < r1; ++r) {
      const Amax a = amax_array(x.row<T>(r), x.cols);
      m = std::max(m, a.amax);
      nonfinite += a.nonfinite;
    }
    out[0] = std::max(out[0], m);
    return;
  }
  if (r1 - r0 == 1) {
    for (int64_t b = 0; b < g.cols; ++b) {
      const int64_t c0 = b * g.block_cols;
      const Amax a = amax_array(x.row<T>(r0) + c0, std::min(g.block_cols, x.cols - c0));
      out[b] = std::max(out[b], a.amax);
      nonfinite += a.nonfinite;
    }
    return;
  }
  std::fill(column_max, column_max + x.cols, 0.0f);
  amax_columns(x.row<T>(r0), r1 - r0, x.cols, x.ld, column_max, nonfinite);
  for (int64_t c = 0; c < x.cols; ++c) out[c / g.block_cols] = std::max(out[c / g.block_cols], column_max[c]);
}

// Fills amax [g.rows, g.cols]; returns the number of non-finite elements.
template <class T>
int64_t block_amax(Ctx& ctx, const MatrixView& x, const Grid& g, float* amax, float* partial, int64_t* counts, const WorkerScratch& scratch) {
  const int64_t tasks = (x.rows + g.band - 1) / g.band;
  std::fill(amax, amax + g.rows * g.cols, 0.0f);
  if (g.split_block) std::fill(partial, partial + tasks * g.cols, 0.0f);
  ctx.pool().run(tasks, [&](int64_t task, int worker) {
    const int64_t r0 = task * g.band, r1 = std::min(x.rows, r0 + g.band);
    int64_t nonfinite = 0;
    if (g.split_block) {
      band_amax<T>(x, g, r0, r1, partial + task * g.cols, scratch.of(worker), nonfinite);
    } else {
      for (int64_t r = r0; r < r1; r += g.block_rows) {
        band_amax<T>(x, g, r, std::min(r1, r + g.block_rows), amax + r / g.block_rows * g.cols, scratch.of(worker), nonfinite);
      }
    }
    counts[task] = nonfinite;
  });
  const int64_t nonfinite = std::accumulate(counts, counts + tasks, int64_t{0});
  if (g.split_block) {
    for (int64_t t = 0; t < tasks; ++t) {
      for (int64_t c = 0; c < g.cols; ++c) amax[c] = std::max(amax[c], partial[t * g.cols + c]);
    }
  }
  return nonfinite;
}

// Turns amax (in place) into quantize multipliers and writes their inverses. tensor_amax: for two-level scales.
void scales_from_amax(Ctx& ctx, const QuantSpec& spec, const QuantTarget& target, float tensor_amax, float* amax_to_scale, float* scale_inv, int64_t n) {
  const float max = format_info(spec.format).max_finite;
  float tensor_scale = 1.0f;
  if (spec.scale == ScaleKind::ue4m3) tensor_scale = two_level_tensor_scale(tensor_amax, max, spec.amax_epsilon);
  const float* stored = spec.stored_scale() ? target.stored_scale : nullptr;
  parallel_tiles(ctx.pool(), n, 4096, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float& s = amax_to_scale[i];
      if (spec.scale == ScaleKind::e8m0) {
        const uint8_t code = mx_scale_code(std::max(s, spec.amax_epsilon), spec.format);
        s = e8m0_reciprocal(code);
        scale_inv[i] = e8m0_decode(code);
      } else if (spec.scale == ScaleKind::ue4m3) {
        const uint8_t code = two_level_block_code(std::max(s, spec.amax_epsilon), max, tensor_scale);
        s = two_level_multiplier(code, tensor_scale);
        scale_inv[i] = two_level_scale_inv(code, tensor_scale);
      } else {
        s = stored ? *stored : scale_from_amax(s, max, spec.scale == ScaleKind::pow2, spec.amax_epsilon, spec.overflow_scale, spec.fp64_divide);
        scale_inv[i] = inverse_scale(s);
      }
    }
  });
}

// What the statistics of an image need beside its rows.
struct Observer {
  std::array<float, 256> value;   // of each code
  float limit;                    // beyond it a scaled value is saturated
  const float* scale_inv;
  ImageHealth* tiles;             // one a tile of tile_rows rows

  Observer(Dtype format, const float* inverse, ImageHealth* partial) : scale_inv(inverse), tiles(partial) {
    const FormatInfo f = format_info(format);
    // Half the spacing of the largest values, 2^(emax - mantissa bits).
    limit = f.max_finite + 0.5f * std::ldexp(1.0f, f.emax - f.mantissa_bits);
    for (int code = 0; code < 256; ++code) value[static_cast<size_t>(code)] = decode(format, static_cast<uint8_t>(code));
  }

  template <class T>
  void row(const T* x, const uint8_t* q, const float* scales, const float* inverses, int64_t block_cols, int64_t n, ImageHealth& h) const {
    for (int64_t c0 = 0, b = 0; c0 < n; c0 += block_cols, ++b) {
      const float scale = scales[b], inverse = inverses[b];
      for (int64_t c = c0; c < std::min(n, c0 + block_cols); ++c) {
        const float v = to_float(x[c]);
        if (!std::isfinite(v)) {
          ++h.nonfinite;
          continue;
        }
        const double wide = v, read = static_cast<double>(value[q[c]]) * inverse, error = read - wide;
        h.amax = std::max(h.amax, std::fabs(v));
        h.underflow += v != 0.0f && value[q[c]] == 0.0f;
        h.saturated += std::fabs(v * scale) > limit;
        h.sum_xx += wide * wide;
        h.sum_qq += read * read;
        h.sum_xq += wide * read;
        h.sum_ee += error * error;
      }
    }
    h.elements += n;
  }
};

// The 16-point transform along the contraction: along rows for a row image, down columns for a column image. What is left over of an extent that 16
// does not divide stays as it is, in both operands alike. Returns the number of non-finite elements of x: the transform spreads them.
template <class T>
int64_t transform(Ctx& ctx, const MatrixView& x, bool down_columns, float* out, int64_t* counts) {
  const int64_t rows_a_task = down_columns ? hadamard_size : tile_rows;
  parallel_tiles(ctx.pool(), x.rows, rows_a_task, [&](int64_t r0, int64_t r1, int) {
    int64_t& count = counts[r0 / rows_a_task] = 0;
    for (int64_t r = r0; r < r1; ++r) count += amax_array(x.row<T>(r), x.cols).nonfinite;
  });
  const int64_t nonfinite = std::accumulate(counts, counts + (x.rows + rows_a_task - 1) / rows_a_task, int64_t{0});
  if (!down_columns) {
    parallel_tiles(ctx.pool(), x.rows, tile_rows, [&](int64_t r0, int64_t r1, int) {
      for (int64_t r = r0; r < r1; ++r) {
        float* y = out + r * x.cols;
        for (int64_t c = 0; c < x.cols; ++c) y[c] = to_float(x.row<T>(r)[c]);
        for (int64_t c = 0; c + hadamard_size <= x.cols; c += hadamard_size) hadamard16(y + c);
      }
    });
    return nonfinite;
  }
  parallel_tiles(ctx.pool(), x.rows, hadamard_size, [&](int64_t r0, int64_t r1, int) {
    for (int64_t c = 0; c < x.cols; ++c) {
      float v[hadamard_size];
      for (int64_t r = r0; r < r1; ++r) v[r - r0] = to_float(x.row<T>(r)[c]);
      if (r1 - r0 == hadamard_size) hadamard16(v);
      for (int64_t r = r0; r < r1; ++r) out[r * x.cols + c] = v[r - r0];
    }
  });
  return nonfinite;
}

template <class T>
void encode_row_stochastic(const T* x, const float* scales, int64_t block_cols, Dtype format, const Philox& rng, uint64_t first_element, uint8_t* q, int64_t n) {
  for (int64_t c = 0; c < n; ++c) {
    q[c] = encode_stochastic(format, to_float(x[c]) * scales[c / block_cols], rng.word(first_element + static_cast<uint64_t>(c)));
  }
}

template <class T>
void encode_rows(Ctx& ctx, const MatrixView& x, const QuantSpec& spec, const QuantTarget& target, const Grid& g, const float* scales, const Operand& image,
                 const WorkerScratch& scratch, const Observer* observer) {
  const bool stochastic = spec.rounding == Rounding::stochastic;
  const StepKey key = stochastic ? *ctx.key : StepKey{};
  const Philox rng(ctx.seed, RngPurpose::stochastic_rounding, target.site_hash, key.step);
  const MatrixPlace& place = target.place;
  const int64_t columns = place.columns ? place.columns : x.cols;
  parallel_tiles(ctx.pool(), x.rows, tile_rows, [&](int64_t r0, int64_t r1, int worker) {
    for (int64_t r = r0; r < r1; ++r) {
      const float* s = scales + r / g.block_rows * g.cols;
      const T* src = x.row<T>(r);
      uint8_t* q = image.data.row<uint8_t>(r);
      if (stochastic) {
        const int64_t first_element = (key.first_row + place.first_row + r) * columns + place.first_column;
        encode_row_stochastic(src, s, g.block_cols, spec.format, rng, static_cast<uint64_t>(first_element), q, x.cols);
      } else if (g.block_cols >= 32) {
        for (int64_t b = 0; b < g.cols; ++b) {
          const int64_t c0 = b * g.block_cols;
          encode_array(spec.format, src + c0, s[b], q + c0, std::min(g.block_cols, x.cols - c0));
        }
      } else {
        const float* wide = s;
        if (g.block_cols != 1) {
          float* expanded = scratch.of(worker);
          for (int64_t c = 0; c < x.cols; ++c) expanded[c] = s[c / g.block_cols];
          wide = expanded;
        }
        encode_array_scales(spec.format, src, wide, q, x.cols);
      }
      if (observer) observer->row(src, q, s, observer->scale_inv + r / g.block_rows * g.cols, g.block_cols, x.cols, observer->tiles[r0 / tile_rows]);
    }
  });
}

// What is quantized: the source, or its transform (in scratch memory), whose number of non-finite elements is that of the source.
struct Transformed {
  MatrixView x;
  int64_t nonfinite = 0;
};
Transformed after_transform(Ctx& ctx, const MatrixView& source, const QuantSpec& spec, bool column) {
  if (!spec.hadamard) return {source};
  const Tensor out = ctx.scratch().alloc(Dtype::f32, {source.rows, source.cols});
  int64_t* counts = ctx.scratch().alloc_array<int64_t>((source.rows + hadamard_size - 1) / hadamard_size);
  if (ctx.planning()) return {out};
  auto* with = source.dtype == Dtype::bf16 ? transform<bf16> : transform<float>;
  return {out, with(ctx, source, column, out.as<float>(), counts)};
}

// Scratch memory of block_amax().
struct AmaxScratch {
  float* partial;
  int64_t* counts;
  WorkerScratch rows;
  AmaxScratch(Ctx& ctx, const MatrixView& x, const Grid& g) : AmaxScratch(ctx, x, g, (x.rows + g.band - 1) / g.band) {}

 private:
  AmaxScratch(Ctx& ctx, const MatrixView& x, const Grid& g, int64_t tasks)
      : partial(ctx.scratch().alloc_array<float>(g.split_block ? tasks * g.cols : 0)), counts(ctx.scratch().alloc_array<int64_t>(tasks)), rows(ctx, x.cols) {}
};
int64_t block_amax(Ctx& ctx, const MatrixView& x, const Grid& g, float* amax, const AmaxScratch& scratch) {
  return (x.dtype == Dtype::bf16 ? block_amax<bf16> : block_amax<float>)(ctx, x, g, amax, scratch.partial, scratch.counts, scratch.rows);
}

// given: amaxes of blocks that reach across ranks, or null. Returns the matrix's amax; adds to nonfinite.
float quantize_image(Ctx& ctx, const MatrixView& source, const QuantSpec& spec, const QuantTarget& target, const Operand& image, const float* given, ImageHealth* health,
                     int64_t& nonfinite) {
  Arena::Scope scope(ctx.scratch());
  const auto [x, nonfinite_source] = after_transform(ctx, source, spec, image.transposed);
  const Grid g = make_grid(x, image.block_rows, image.block_cols);
  float* scales = ctx.scratch().alloc_array<float>(g.rows * g.cols);
  const AmaxScratch scratch(ctx, x, g);
  const int64_t tiles = (x.rows + tile_rows - 1) / tile_rows;
  ImageHealth* partial_health = ctx.scratch().alloc_array<ImageHealth>(tiles);   // planned in every step: which one gathers is not known beforehand
  float* block_maxima = ctx.scratch().alloc_array<float>(g.rows * g.cols);
  if (ctx.planning() || x.elements() == 0) return 0;
  nonfinite = block_amax(ctx, x, g, scales, scratch);
  if (spec.hadamard) nonfinite = nonfinite_source;
  float amax = 0;
  for (int64_t i = 0; i < g.rows * g.cols; ++i) amax = std::max(amax, scales[i]);
  if (spec.stored_scale() && target.stored_scale) given = nullptr;
  // Two-level scales: of the tensor's amax alone, unless its one block is the tensor.
  if (given && (spec.scale != ScaleKind::ue4m3 || spec.per_tensor())) std::copy_n(given, g.rows * g.cols, scales);
  if (health) std::copy_n(scales, g.rows * g.cols, block_maxima);
  scales_from_amax(ctx, spec, target, given ? *given : amax, scales, image.scale_inv.as<float>(), g.rows * g.cols);
  std::optional<Observer> observer;
  if (health) {
    std::fill_n(partial_health, tiles, ImageHealth{});
    observer.emplace(spec.format, image.scale_inv.as<float>(), partial_health);
  }
  const Observer* watching = observer ? &*observer : nullptr;
  if (x.dtype == Dtype::bf16) {
    encode_rows<bf16>(ctx, x, spec, target, g, scales, image, scratch.rows, watching);
  } else {
    encode_rows<float>(ctx, x, spec, target, g, scales, image, scratch.rows, watching);
  }
  if (health) {
    for (int64_t t = 0; t < tiles; ++t) health->merge(partial_health[t]);
    for (int64_t i = 0; i < g.rows * g.cols; ++i) {
      if (!(block_maxima[i] > 0) || !std::isfinite(block_maxima[i])) continue;
      health->scale_min = std::min(health->scale_min, scales[i]);
      health->scale_max = std::max(health->scale_max, scales[i]);
    }
  }
  return amax;
}

}  // namespace

void quantize(Ctx& ctx, const MatrixView& x, const QuantizedOut& out) {
  float amax = 0;
  int64_t nonfinite = 0;
  if (out.row.data.rows) amax = quantize_image(ctx, x, out.row_spec, out.target, out.row, given_amax(out.row_amax), out.target.row_health, nonfinite);
  if (out.col.data.rows) {
    amax = std::max(amax, quantize_image(ctx, x, out.col_spec, out.target, out.col, given_amax(out.col_amax), out.target.col_health, nonfinite));
  }
  if (ctx.planning()) return;
  if (out.target.amax) *out.target.amax = std::max(*out.target.amax, amax);
  if (out.target.nonfinite) *out.target.nonfinite += nonfinite;
}

void shared_amaxes(Ctx& ctx, const MatrixView& source, const QuantSpec& spec, bool column, const Tensor& amax) {
  if (amax.elements() == 0) return;
  Arena::Scope scope(ctx.scratch());
  const MatrixView x = after_transform(ctx, source, spec, column).x;
  const bool two_level = spec.scale == ScaleKind::ue4m3;   // the tensor's
  const Grid g = make_grid(x, two_level ? 0 : column ? spec.block_cols : spec.block_rows, two_level ? 0 : column ? spec.block_rows : spec.block_cols);
  const AmaxScratch scratch(ctx, x, g);
  if (!ctx.planning()) block_amax(ctx, x, g, amax.as<float>(), scratch);
}

void narrow_scales(Ctx& ctx, const Tensor& scale_inv, const Tensor& codes) {
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), codes.elements(), 1 << 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) codes.as<uint8_t>()[i] = e8m0_encode_rz(scale_inv.as<float>()[i]);
  });
}

void widen_scales(Ctx& ctx, const Tensor& codes, const Tensor& scale_inv) {
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), codes.elements(), 1 << 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) scale_inv.as<float>()[i] = e8m0_decode(codes.as<uint8_t>()[i]);
  });
}

}  // namespace octet::cpu
