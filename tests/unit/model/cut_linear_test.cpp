// A linear cut over ranks of tp against a whole one: for inputs of one rank that are handed out, codes and scales of x and dy are those of one rank, bit for bit, in every recipe, however
// they are gathered; and so are the sums of what the ranks compute, to rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "comm/world.h"
#include "config/config_io.h"
#include "core/philox.h"
#include "model/linear.h"
#include "numerics/bf16.h"
#include "ops/reduce.h"
#include "source_dir.h"

namespace octet {
namespace {

constexpr int64_t tokens = 512, inputs = 512, outputs = 768;

struct Matrix {
  std::vector<bf16> values;
  int64_t rows, cols;
  Tensor tensor() { return {values.data(), Dtype::bf16, {rows, cols}}; }
};

// Magnitudes that differ by rows and columns, so that every block has its own scale.
Matrix random(const std::string& name, int64_t rows, int64_t cols) {
  Matrix m{std::vector<bf16>(static_cast<size_t>(rows * cols)), rows, cols};
  const Philox rng(5, RngPurpose::init, name);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) m.values[static_cast<size_t>(r * cols + c)] = to_bf16(static_cast<float>(rng.normal(static_cast<uint64_t>(r * cols + c)) * std::exp2((r * 7 + c * 3) % 11 - 5)));
  }
  return m;
}

Matrix part(const Matrix& m, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  Matrix p{{}, rows, cols};
  for (int64_t r = 0; r < rows; ++r) {
    const auto from = m.values.begin() + (row + r) * m.cols + col;
    p.values.insert(p.values.end(), from, from + cols);
  }
  return p;
}

// One linear of one projection with its memory.
struct Rig {
  ThreadPool pool{1};
  Arena scratch{64 << 20, true}, saved{16 << 20, true}, memory{16 << 20};
  StepKey key{3, 0};
  QuantRegistry quant;
  Param weight;
  std::unique_ptr<Linear> linear;
  Ctx ctx{pool, scratch, GemmMath::fixed};
  Matrix values;

  // copied: every rank of tp has all outputs.
  Rig(const Recipe& recipe, const Matrix& whole, const TensorParallel& tp, Cut cut, bool copied = false) {
    ctx.key = &key;
    const RowRange rows = cut == Cut::outputs && !copied ? feature_range(outputs, tp.size, tp.rank) : RowRange{0, outputs}, cols = cut == Cut::inputs ? feature_range(inputs, tp.size, tp.rank) : RowRange{0, inputs};
    values = part(whole, rows.first, rows.count, cols.first, cols.count);
    weight.name = "w";
    weight.shape = {rows.count, cols.count};
    weight.logical_rows = rows.count;
    weight.whole = {outputs, inputs};
    weight.first_row = rows.first;
    weight.first_col = cols.first;
    weight.own = {0, rows.count};
    if (copied) {
      weight.copies = tp.size;
      weight.copy = tp.rank;
    }
    weight.working = values.tensor();
    weight.grad = memory.alloc(Dtype::f32, weight.shape);
    quant.set_history(16, false);
    quant.set_calibration(1);   // stored scales are made of the tensor at hand
    std::vector<Linear::Part> parts(1);
    parts[0].name = "p";
    parts[0].weight = &weight;
    linear = std::make_unique<Linear>("m", parts, recipe, quant, ImageLayout::source, tp, cut);
    linear->allocate_images(memory);
    linear->refresh_images(ctx, quant, false);
  }
  Pass pass() { return {ctx, quant, saved}; }
};

// What one rank sees, and several: images of x and dy, results.
struct Seen {
  PlainImage x_row, x_col, dy_row, dy_col;
  std::vector<float> y, dx, dw;
};

std::vector<float> floats(const Tensor& t) {
  std::vector<float> out;
  for (int64_t i = 0; i < t.elements(); ++i) out.push_back(t.dtype == Dtype::bf16 ? to_float(t.as<bf16>()[i]) : t.as<float>()[i]);
  return out;
}

PlainImage image(const Operand& o, bool column) { return o.quantized() ? plain_image(o, column) : PlainImage{}; }

// x: [T or t, K], dy: [T or t, N] of this rank.
Seen pass_through(Rig& rig, Matrix x, Matrix dy, int64_t own_tokens, Cut cut) {
  const Pass pass = rig.pass();
  const Linear& l = *rig.linear;
  LinearInput in = l.allocate_input(pass, rig.scratch, x.rows);
  if (in.value) ops::copy(rig.ctx, x.tensor(), in.value);
  if (in.images.wanted()) ops::quantize(rig.ctx, x.tensor(), in.images);
  l.finish_input(pass, rig.scratch, in, tokens, Linear::Reader::all);
  const Tensor y = rig.scratch.alloc(Dtype::bf16, {cut == Cut::inputs ? own_tokens : tokens, l.out_features()});
  l.forward(pass, in, y);
  const LinearGrad grad = l.quantize_grad(pass, dy.tensor(), tokens);
  const Tensor dx = rig.scratch.alloc(Dtype::bf16, {cut == Cut::outputs ? own_tokens : tokens, l.in_features()});
  const LinearInput again = l.input_again(pass, in, tokens);
  RowSum sum = l.backward_input(pass, grad, dx);
  l.backward_weight(pass, grad, again, true);
  sum.finish(rig.ctx);
  return {image(in.row, false), image(in.col, true), image(grad.row[0], false), image(grad.col[0], true), floats(y), floats(dx), floats(rig.weight.grad)};
}

// Codes and scales of `got`, whose first element is (row, col) of `want`. block: of the stored image.
void expect_part(const PlainImage& got, const PlainImage& want, int64_t row, int64_t col, const QuantSpec& spec, bool column, const std::string& where) {
  const int64_t block_rows = column ? spec.block_cols : spec.block_rows, block_cols = column ? spec.block_rows : spec.block_cols;
  const auto scale = [&](const PlainImage& m, int64_t r, int64_t c) {
    return m.scale_inv[static_cast<size_t>((block_rows ? r / block_rows : 0) * m.grid_cols + (block_cols ? c / block_cols : 0))];
  };
  int64_t codes = 0, scales = 0;
  for (int64_t r = 0; r < got.rows; ++r) {
    for (int64_t c = 0; c < got.cols; ++c) {
      codes += got.codes[static_cast<size_t>(r * got.cols + c)] != want.codes[static_cast<size_t>((row + r) * want.cols + col + c)];
      scales += scale(got, r, c) != scale(want, row + r, col + c);
    }
  }
  EXPECT_EQ(codes, 0) << where;
  EXPECT_EQ(scales, 0) << where;
}

double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
    norm += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(difference / norm);
}

struct Way {
  int ranks;
  bool sequence, codes;
};

class EveryRecipe : public testing::TestWithParam<std::string> {};

// A named recipe, or that of a file of configs/recipes.
Recipe recipe_called(const std::string& name) {
  nlohmann::json config = {{"model", {{"hidden_size", 128}, {"intermediate_size", 128}, {"num_hidden_layers", 1}, {"num_attention_heads", 1}, {"vocab_size", 128}}},
                           {"data", {{"train", {{{"path", "unused"}}}}, {"seq_len", 128}}},
                           {"batch", {{"micro", 1}, {"global", 1}}},
                           {"optim", {{"lr", 1e-3}}},
                           {"precision", {{"recipe", name}}},
                           {"run", {{"steps", 1}}}};
  if (name == "blockwise_with_gw_rowwise") config.merge_patch(load_config_file(test::source_dir() + "/configs/recipes/" + name + ".json"));
  const PrecisionConfig precision = from_json(config).precision;
  return make_recipe(precision.recipe, precision);
}

TEST_P(EveryRecipe, CodesAndScalesAreThoseOfOneRank) {
  const Recipe recipe = recipe_called(GetParam());
  const Matrix w = random("w", outputs, inputs), x = random("x", tokens, inputs), dy = random("dy", tokens, outputs);
  Rig one(recipe, w, {}, Cut::none);
  const Seen want = pass_through(one, x, dy, tokens, Cut::none);
  for (const Way& way : {Way{2, false, false}, {4, true, false}, {4, true, true}}) {
    if (way.codes && !recipe.x_row.quantized()) continue;
    for (const Cut cut : {Cut::outputs, Cut::inputs}) {
      std::mutex mutex;
      std::vector<float> y(static_cast<size_t>(tokens * outputs)), dx(static_cast<size_t>(tokens * inputs)), dw(static_cast<size_t>(outputs * inputs));
      run_local_ranks(way.ranks, [&](World& world) {
        RunConfig c;
        c.parallel.tp = way.ranks;
        c.parallel.sequence_parallel = way.sequence;
        c.parallel.fp8_activation_gather = way.codes;
        c.model.num_key_value_heads = way.ranks;
        c.batch.micro = c.batch.global = 1;
        const Mesh mesh(c, world);
        const TensorParallel tp(mesh, c.parallel);
        Rig rig(recipe, w, tp, cut);
        const Param& p = rig.weight;
        const RowRange own = tp.tokens(tokens);
        const bool outputs_cut = cut == Cut::outputs;
        const Matrix own_x = outputs_cut ? part(x, own.first, own.count, 0, inputs) : part(x, 0, tokens, p.first_col, p.shape[1]);
        const Matrix own_dy = outputs_cut ? part(dy, 0, tokens, p.first_row, p.shape[0]) : part(dy, own.first, own.count, 0, outputs);
        const Seen got = pass_through(rig, own_x, own_dy, own.count, cut);
        const std::lock_guard lock(mutex);
        const std::string where = GetParam() + ", tp " + std::to_string(way.ranks) + (way.sequence ? ", sequence" : "") + (way.codes ? ", codes" : "") + (outputs_cut ? ", outputs" : ", inputs") + ": ";
        if (recipe.x_row.quantized()) expect_part(got.x_row, want.x_row, 0, p.first_col, recipe.x_row, false, where + "x.row");
        if (recipe.x_col.quantized()) expect_part(got.x_col, want.x_col, 0, p.first_col, recipe.x_col, true, where + "x.col");
        if (recipe.dy_row.quantized()) expect_part(got.dy_row, want.dy_row, 0, p.first_row, recipe.dy_row, false, where + "dy.row");
        if (recipe.dy_col.quantized()) expect_part(got.dy_col, want.dy_col, 0, p.first_row, recipe.dy_col, true, where + "dy.col");
        const auto put = [](std::vector<float>& whole, int64_t whole_cols, const std::vector<float>& values, int64_t row, int64_t col, int64_t cols) {
          for (size_t i = 0; i < values.size(); ++i) whole[(static_cast<size_t>(row) + i / static_cast<size_t>(cols)) * static_cast<size_t>(whole_cols) + static_cast<size_t>(col) + i % static_cast<size_t>(cols)] = values[i];
        };
        put(y, outputs, got.y, outputs_cut ? 0 : own.first, p.first_row, p.shape[0]);
        put(dx, inputs, got.dx, outputs_cut ? own.first : 0, p.first_col, p.shape[1]);
        put(dw, inputs, got.dw, p.first_row, p.first_col, p.shape[1]);
      });
      // One rounding of BF16 for each rank's addend.
      EXPECT_LE(distance(y, want.y), 5e-3) << GetParam();
      EXPECT_LE(distance(dx, want.dx), 5e-3) << GetParam();
      EXPECT_LE(distance(dw, want.dw), 1e-6) << GetParam();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipe, testing::Values("bf16", "delayed", "tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "nvfp4", "blockwise_with_gw_rowwise"), [](const auto& p) { return p.param; });

// Of a key/value head that two ranks have, each has an addend of the gradient: what is quantized is the sum, on both.
TEST_P(EveryRecipe, CopiesQuantizeTheSumOfTheirGradients) {
  const Recipe recipe = recipe_called(GetParam());
  const Matrix w = random("w", outputs, inputs), x = random("x", tokens, inputs), addends[2] = {random("dy 0", tokens, outputs), random("dy 1", tokens, outputs)};
  Matrix sum = addends[0];
  for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] = to_bf16(to_float(addends[0].values[i]) + to_float(addends[1].values[i]));
  const auto backward = [&](Rig& rig, Matrix dy) -> Seen {
    const Pass pass = rig.pass();
    const Linear& l = *rig.linear;
    Matrix input = x;
    LinearInput in = l.allocate_input(pass, rig.scratch, tokens);
    if (in.value) ops::copy(rig.ctx, input.tensor(), in.value);
    if (in.images.wanted()) ops::quantize(rig.ctx, input.tensor(), in.images);
    l.finish_input(pass, rig.scratch, in, tokens);
    l.sum_copies(pass, dy.tensor());
    const LinearGrad grad = l.quantize_grad(pass, dy.tensor(), tokens);
    l.backward_weight(pass, grad, in, true);
    return {{}, {}, image(grad.row[0], false), image(grad.col[0], true), {}, {}, floats(rig.weight.grad)};
  };
  Rig one(recipe, w, {}, Cut::none);
  const Seen want = backward(one, sum);
  run_local_ranks(2, [&](World& world) {
    RunConfig c;
    c.parallel.tp = 2;
    c.model.num_key_value_heads = 1;
    c.batch.micro = c.batch.global = 1;
    const Mesh mesh(c, world);
    Rig rig(recipe, w, TensorParallel(mesh, c.parallel), Cut::outputs, true);
    const Seen got = backward(rig, addends[world.rank()]);
    if (recipe.dy_row.quantized()) expect_part(got.dy_row, want.dy_row, 0, 0, recipe.dy_row, false, GetParam() + ": dy.row");
    if (recipe.dy_col.quantized()) expect_part(got.dy_col, want.dy_col, 0, 0, recipe.dy_col, true, GetParam() + ": dy.col");
    EXPECT_EQ(got.dw, want.dw) << GetParam() << ", rank " << world.rank();
  });
}

TEST(FeatureRange, WholeGroupsOf128WhileThereAreEnough) {
  const auto ranges = [](int64_t extent, int ranks) {
    std::vector<int64_t> edges{0};
    for (int r = 0; r < ranks; ++r) {
      const RowRange range = feature_range(extent, ranks, r);
      EXPECT_EQ(range.first, edges.back());
      edges.push_back(range.first + range.count);
    }
    EXPECT_EQ(edges.back(), extent);
    return edges;
  };
  EXPECT_EQ(ranges(14336, 8), (std::vector<int64_t>{0, 1792, 3584, 5376, 7168, 8960, 10752, 12544, 14336}));
  EXPECT_EQ(ranges(11008, 4), (std::vector<int64_t>{0, 2816, 5632, 8320, 11008}));   // 86 groups
  EXPECT_EQ(ranges(704, 2), (std::vector<int64_t>{0, 384, 704}));                    // the last group has 64
  EXPECT_EQ(ranges(160, 4), (std::vector<int64_t>{0, 64, 96, 128, 160}));            // groups of 32
  EXPECT_EQ(ranges(100, 4), (std::vector<int64_t>{0, 32, 64, 96, 100}));
}

}  // namespace
}  // namespace octet
