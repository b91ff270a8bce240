// Matrices of which ranks hold parts: with the amaxes exchanged and the parts' places given, the codes and scales are those of the whole.
#include <limits>
#include <numeric>

#include "images.h"

using namespace cpu_test;

namespace {

struct ImageCase {
  std::string name;
  QuantSpec spec;
};

// Every image of the recipes, and other blocks as long as one side of the matrix.
std::vector<ImageCase> cases() {
  std::vector<ImageCase> all;
  const auto add = [&](const std::string& name, QuantSpec s, Rounding rounding = Rounding::nearest) {
    if (rounding == Rounding::stochastic) s.rounding = rounding;
    if (s.quantized() && std::none_of(all.begin(), all.end(), [&](const ImageCase& c) { return c.spec == s; })) all.push_back({name, s});
  };
  for (const std::string& name : recipe_names()) {
    if (name == "custom") continue;
    PrecisionConfig p;
    p.emulate = true;
    if (name == "static") p.calibration_steps = 1;
    const Recipe r = make_recipe(name, p);
    for (const auto& [role, s] : {std::pair{" x", r.x_row}, {" x column", r.x_col}, {" w", r.w_row}, {" w column", r.w_col}, {" dy", r.dy_row}, {" dy column", r.dy_col}}) add(name + role, s);
  }
  add("tensor, stochastic", block_spec(Dtype::e5m2, 0, 0), Rounding::stochastic);
  add("rows, stochastic", block_spec(Dtype::e4m3, 1, 0, ScaleKind::pow2), Rounding::stochastic);
  add("1x32, stochastic", block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0), Rounding::stochastic);
  add("64x0", block_spec(Dtype::e4m3, 64, 0));
  add("0x64", block_spec(Dtype::e4m3, 0, 64));
  add("tensor ue4m3", block_spec(Dtype::e2m1, 0, 0, ScaleKind::ue4m3));
  QuantSpec transformed = block_spec(Dtype::e4m3, 1, 0);
  transformed.hadamard = true;
  add("rows, hadamard", transformed);
  return all;
}

// Magnitudes that differ from part to part.
Buffer whole_matrix(Dtype dtype, int64_t rows, int64_t cols, bool nonfinite) {
  Buffer x = normal("whole", dtype, {rows, cols});
  for (int64_t i = 0; i < x.elements(); ++i) x.set(i, x.at(i) * std::exp2(static_cast<double>((i / cols / 128 * 3 + i % cols / 128 * 5) % 7 - 3)));
  if (nonfinite) {
    x.set(5 * cols + 7, std::numeric_limits<double>::infinity());
    x.set(x.elements() - 1, std::numeric_limits<double>::quiet_NaN());
  }
  return x;
}

struct Part {
  int64_t row, column, rows, cols;
};
struct Cut {
  std::vector<int64_t> rows, cols;   // where parts begin, and the end
};
std::vector<Part> cut_into(const Cut& cut) {
  std::vector<Part> parts;
  for (size_t i = 0; i + 1 < cut.rows.size(); ++i) {
    for (size_t j = 0; j + 1 < cut.cols.size(); ++j) parts.push_back({cut.rows[i], cut.cols[j], cut.rows[i + 1] - cut.rows[i], cut.cols[j + 1] - cut.cols[j]});
  }
  return parts;
}

std::vector<float> amaxes_of(const MatrixView& x, const QuantSpec& spec, bool column) {
  const int64_t n = shared_amax_count(spec, x.rows, x.cols, column);
  const Outputs out = run({Buffer(Dtype::f32, {n}, 0xFF)}, [&](Ctx& ctx, Outputs& o) { ops::shared_amaxes(ctx, x, spec, column, o[0].tensor()); });
  std::vector<float> amax;
  for (int64_t i = 0; i < n; ++i) amax.push_back(out[0].f(i));
  return amax;
}

// Which of the whole's shared blocks each of a part's is.
std::vector<int64_t> blocks_of(const QuantSpec& spec, const Part& p, int64_t rows, int64_t cols, bool column) {
  if (spec.scale == ScaleKind::ue4m3 || spec.per_tensor()) return {0};
  std::vector<int64_t> blocks;
  // Contraction last.
  const int64_t outer = column ? p.cols : p.rows, inner = column ? p.rows : p.cols, outer_first = column ? p.column : p.row, inner_first = column ? p.row : p.column;
  const int64_t whole_inner = column ? rows : cols, br = spec.block_rows, bc = spec.block_cols;
  for (int64_t i = 0; i < block_count(outer, br); ++i) {
    for (int64_t j = 0; j < block_count(inner, bc); ++j) blocks.push_back(((br ? outer_first / br : 0) + i) * block_count(whole_inner, bc) + (bc ? inner_first / bc : 0) + j);
  }
  return blocks;
}

float scale_inv_of(Image& image, int64_t r, int64_t c) {
  const Operand o = image.operand();
  return image.scale_inv.f((o.block_rows ? r / o.block_rows : 0) * image.scale_inv.cols() + (o.block_cols ? c / o.block_cols : 0));
}

Image quantized_with(const MatrixView& x, const QuantSpec& spec, bool column, const QuantTarget& target, std::vector<float> given) {
  Machine m;
  m.ctx.seed = 5;
  const StepKey key{3, 1000};
  m.ctx.key = &key;
  Image image(spec, x.rows, x.cols, column);
  QuantizedOut out;
  (column ? out.col_spec : out.row_spec) = spec;
  (column ? out.col : out.row) = image.operand();
  if (!given.empty()) (column ? out.col_amax : out.row_amax) = {given.data(), Dtype::f32, {static_cast<int64_t>(given.size())}};
  out.target = target;
  ops::quantize(m.ctx, x, out);
  return image;
}

void expect_parts_of_whole(const ImageCase& c, Buffer& x, bool column, const Cut& cut) {
  const int64_t rows = cut.rows.back(), cols = cut.cols.back();
  const std::string what = fmt::format("{}, {} image, {} x {} parts, {}", c.name, column ? "column" : "row", cut.rows.size() - 1, cut.cols.size() - 1, name(x.dtype()));
  float whole_amax = 0, amax = 0;
  int64_t whole_nonfinite = 0, nonfinite = 0;
  QuantTarget target;
  target.site_hash = fnv1a64("whole");
  target.amax = &whole_amax;
  target.nonfinite = &whole_nonfinite;
  Image want = quantized_with(x.tensor(), c.spec, column, target, {});
  const std::vector<Part> parts = cut_into(cut);
  const auto view = [&](const Part& p) { return MatrixView(x.tensor().slice_rows(p.row, p.rows)).columns(p.column, p.cols); };
  // The exchange: maxima of the blocks that parts share.
  std::vector<float> maxima(static_cast<size_t>(shared_amax_count(c.spec, rows, cols, column)), 0.0f);
  for (const Part& p : parts) {
    const std::vector<float> own = amaxes_of(view(p), c.spec, column);
    if (maxima.empty()) {
      ASSERT_TRUE(own.empty()) << what;
      continue;
    }
    const std::vector<int64_t> blocks = blocks_of(c.spec, p, rows, cols, column);
    ASSERT_EQ(own.size(), blocks.size()) << what;
    for (size_t i = 0; i < own.size(); ++i) maxima[static_cast<size_t>(blocks[i])] = std::max(maxima[static_cast<size_t>(blocks[i])], own[i]);
  }
  EXPECT_EQ(maxima, amaxes_of(x.tensor(), c.spec, column)) << what;
  target.amax = &amax;
  target.nonfinite = &nonfinite;
  for (const Part& p : parts) {
    std::vector<float> given;
    if (!maxima.empty()) {
      for (const int64_t b : blocks_of(c.spec, p, rows, cols, column)) given.push_back(maxima[static_cast<size_t>(b)]);
    }
    target.place = {p.row, p.column, cols};
    Image got = quantized_with(view(p), c.spec, column, target, given);
    for (int64_t r = 0; r < p.rows; ++r) {
      for (int64_t k = 0; k < p.cols; ++k) {
        ASSERT_EQ(scale_inv_of(got, r, k), scale_inv_of(want, p.row + r, p.column + k)) << what << ": scale of " << p.row + r << ", " << p.column + k;
        ASSERT_EQ(got.data.code(r * p.cols + k), want.data.code((p.row + r) * cols + p.column + k)) << what << ": code of " << p.row + r << ", " << p.column + k;
      }
    }
  }
  EXPECT_EQ(amax, whole_amax) << what;   // of the parts by themselves
  EXPECT_EQ(nonfinite, whole_nonfinite) << what;
}

TEST(parts, with_shared_amaxes_have_the_codes_and_scales_of_the_whole) {
  const std::vector<int64_t> rows{0, 128, 300}, cols{0, 128, 256, 333};
  for (const ImageCase& c : cases()) {
    for (const bool column : {false, true}) {
      for (const Dtype dtype : both_dtypes) {
        Buffer x = whole_matrix(dtype, 300, 333, false);
        expect_parts_of_whole(c, x, column, {rows, cols});
        if (dtype == Dtype::f32) continue;
        expect_parts_of_whole(c, x, column, {rows, {0, 333}});
        expect_parts_of_whole(c, x, column, {{0, 300}, cols});
        Buffer odd = whole_matrix(dtype, 300, 333, true);
        expect_parts_of_whole(c, odd, column, {rows, cols});
        if (HasFailure()) return;
      }
    }
  }
}

TEST(parts, counts_of_shared_amaxes) {
  const auto count = [](const QuantSpec& s, bool column) { return shared_amax_count(s, 40, 70, column); };
  for (const bool column : {false, true}) {
    EXPECT_EQ(count(QuantSpec{}, column), 0);
    EXPECT_EQ(count(block_spec(Dtype::e4m3, 0, 0), column), 1);
    EXPECT_EQ(count(block_spec(Dtype::e4m3, 1, 128), column), 0);
    EXPECT_EQ(count(block_spec(Dtype::e4m3, 128, 128), column), 0);
    EXPECT_EQ(count(block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0), column), 0);
    EXPECT_EQ(count(block_spec(Dtype::e2m1, 1, 16, ScaleKind::ue4m3), column), 1);
    EXPECT_EQ(count(block_spec(Dtype::e4m3, 1, 0), column), column ? 70 : 40);
    EXPECT_EQ(count(block_spec(Dtype::e4m3, 16, 0), column), column ? 5 : 3);
    EXPECT_THROW(count(block_spec(Dtype::e2m1, 1, 0, ScaleKind::ue4m3), column), Error);
  }
}

TEST(parts, a_place_is_another_key_and_default_places_are_none) {
  QuantSpec s = block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0);
  s.rounding = Rounding::stochastic;
  Buffer x = normal("x", Dtype::bf16, {32, 64});
  QuantTarget target;
  const auto codes = [&](const MatrixPlace& place) {
    target.place = place;
    return quantized_with(x.tensor(), s, false, target, {}).data.bytes();
  };
  const auto plain = codes({});
  EXPECT_EQ(codes({0, 0, 64}), plain);
  EXPECT_NE(codes({1, 0, 64}), plain);
  EXPECT_NE(codes({0, 1, 64}), plain);
  EXPECT_NE(codes({0, 0, 65}), plain);
  EXPECT_EQ(codes({2, 0, 64}), codes({0, 128, 64}));   // the same numbers of elements
}

TEST(parts, stored_scales_ignore_given_amaxes) {
  QuantSpec s = block_spec(Dtype::e4m3, 0, 0);
  s.scaling = Scaling::delayed;
  Buffer x = normal("x", Dtype::bf16, {32, 64});
  const float scale = 3.5f;
  ImageHealth with, without;
  QuantTarget target;
  target.stored_scale = &scale;
  target.row_health = &without;
  const Image plain = quantized_with(x.tensor(), s, false, target, {});
  target.row_health = &with;
  const Image given = quantized_with(x.tensor(), s, false, target, {1e6f});
  EXPECT_EQ(given.data.bytes(), plain.data.bytes());
  EXPECT_EQ(given.scale_inv.bytes(), plain.scale_inv.bytes());
  EXPECT_EQ(with.scale_max, without.scale_max);
  target.stored_scale = nullptr;   // calibration: the amax at hand, or the given one
  EXPECT_EQ(quantized_with(x.tensor(), s, false, target, {448.0f}).scale_inv.f(0), 1.0f);
}

// A rank's part may be all zeros, or empty: scales are the whole's.
TEST(parts, of_zeros_and_of_nothing) {
  const QuantSpec tensor = block_spec(Dtype::e4m3, 0, 0), line = block_spec(Dtype::e4m3, 1, 0);
  Buffer zeros(Dtype::bf16, {8, 16}), nothing(Dtype::bf16, {0, 16});
  ImageHealth health;
  QuantTarget target;
  target.row_health = &health;
  EXPECT_EQ(quantized_with(zeros.tensor(), tensor, false, target, {224.0f}).scale_inv.f(0), 0.5f);
  EXPECT_EQ(health.scale_min, 2.0f);   // of the block that it is a part of
  EXPECT_EQ(health.amax, 0.0f);
  EXPECT_EQ(amaxes_of(zeros.tensor(), line, false), std::vector<float>(8, 0.0f));
  EXPECT_EQ(amaxes_of(nothing.tensor(), tensor, false), std::vector<float>(1, 0.0f));
  EXPECT_EQ(amaxes_of(nothing.tensor(), line, true), std::vector<float>(16, 0.0f));
  EXPECT_EQ(amaxes_of(nothing.tensor(), line, false), std::vector<float>());
}

TEST(parts, wrong_amaxes_are_internal_errors) {
  Machine m;
  Buffer x = normal("x", Dtype::bf16, {8, 32}), amax(Dtype::f32, {8});
  EXPECT_NO_THROW(ops::shared_amaxes(m.ctx, x.tensor(), block_spec(Dtype::e4m3, 1, 0), false, amax.tensor()));
  EXPECT_THROW(ops::shared_amaxes(m.ctx, x.tensor(), block_spec(Dtype::e4m3, 1, 0), true, amax.tensor()), Error);
  EXPECT_THROW(ops::shared_amaxes(m.ctx, x.tensor(), block_spec(Dtype::e4m3, 0, 0), false, amax.tensor()), Error);
  EXPECT_THROW(quantized_with(x.tensor(), block_spec(Dtype::e4m3, 1, 32), false, {}, {1.0f}), Error);   // blocks that nobody shares
  EXPECT_NO_THROW(quantized_with(x.tensor(), block_spec(Dtype::e4m3, 0, 0), false, {}, {1.0f}));
}

}  // namespace
