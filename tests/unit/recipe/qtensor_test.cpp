// Operand images: sizes of the scale grids and the views of them.
#include "recipe/qtensor.h"

#include <gtest/gtest.h>

using namespace octet;

namespace {

QuantSpec spec(int64_t rows, int64_t cols) {
  QuantSpec s;
  s.format = Dtype::e4m3;
  s.block_rows = rows;
  s.block_cols = cols;
  return s;
}

TEST(image, grids_of_row_and_column_images) {
  struct Row {
    int64_t block_rows, block_cols;
    Shape row_grid, col_grid;
  };
  // Of a stored matrix [300, 200]: a column image's blocks are transposed with the contraction.
  const Row rows[] = {{0, 0, {1, 1}, {1, 1}},        {1, 0, {300, 1}, {1, 200}},   {1, 128, {300, 2}, {3, 200}}, {128, 128, {3, 2}, {3, 2}},
                      {1, 32, {300, 7}, {10, 200}}, {32, 32, {10, 7}, {10, 7}},   {1, 7, {300, 29}, {43, 200}}, {0, 64, {1, 4}, {5, 1}},
                      {500, 500, {1, 1}, {1, 1}}};
  for (const Row& r : rows) {
    for (bool column : {false, true}) {
      Arena arena(1 << 20);
      const Operand o = alloc_image(arena, spec(r.block_rows, r.block_cols), 300, 200, column);
      EXPECT_TRUE(o.scale_inv.shape == (column ? r.col_grid : r.row_grid))
          << r.block_rows << "x" << r.block_cols << " " << to_string(o.scale_inv.shape);
      EXPECT_EQ(o.scale_inv.dtype, Dtype::f32);
      EXPECT_EQ(o.data.rows, 300);
      EXPECT_EQ(o.data.cols, 200);
      EXPECT_EQ(o.rows(), column ? 200 : 300);
      EXPECT_EQ(o.k(), column ? 300 : 200);
      EXPECT_TRUE(o.quantized());
      EXPECT_EQ(o.flipped().rows(), o.k());
    }
  }
}

TEST(image, unquantized_images_have_no_scales) {
  Arena arena(1 << 16);
  QuantSpec s;
  const Operand o = alloc_image(arena, s, 8, 4, false);
  EXPECT_FALSE(o.quantized());
  EXPECT_EQ(o.scale_inv.shape.rank(), 0);
  EXPECT_EQ(o.data.dtype, Dtype::bf16);
}

TEST(image, planning_has_shapes_but_no_memory) {
  Arena counted, real(1 << 20);
  const Operand planned = alloc_image(counted, spec(1, 128), 300, 200, true), made = alloc_image(real, spec(1, 128), 300, 200, true);
  EXPECT_EQ(planned.data.data, nullptr);
  EXPECT_EQ(planned.data.rows, made.data.rows);
  EXPECT_EQ(counted.high_water_bytes(), real.high_water_bytes());
}

// The scales as one dense matrix in either layout: element (i, j) of a grid is where the strides say, and no allocated float is left out.
TEST(image, scales_are_dense) {
  for (const ImageLayout layout : {ImageLayout::source, ImageLayout::gemm}) {
    for (const auto& [block_rows, block_cols] : {std::pair<int64_t, int64_t>{0, 0}, {1, 0}, {1, 128}, {1, 32}, {1, 1}, {128, 128}, {64, 64}, {4, 32}, {32, 0}, {0, 64}, {500, 500}}) {
      for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{300, 200}, {1, 200}, {300, 1}}) {
        for (const bool column : {false, true}) {
          Arena arena(1 << 22);
          const Operand o = alloc_image(arena, spec(block_rows, block_cols), rows, cols, column, layout);
          const size_t begin = static_cast<size_t>(static_cast<const char*>(o.scale_inv.data) - static_cast<const char*>(o.data.data));
          const Tensor scales = o.scales();
          const std::string what = std::to_string(block_rows) + "x" + std::to_string(block_cols) + " of " + std::to_string(rows) + "x" + std::to_string(cols) + (column ? " column" : " row");
          EXPECT_EQ((begin + scales.bytes() + 255) / 256 * 256, arena.high_water_bytes()) << what;
          for (int64_t i = 0; i < o.scale_inv.rows(); ++i) {
            for (int64_t j = 0; j < o.scale_inv.cols(); ++j) {
              const auto [outer, inner] = o.scales_by_columns() ? std::pair{j, i} : std::pair{i, j};
              ASSERT_EQ(outer * scales.cols() + inner, i * o.scale_row_stride + j * o.scale_col_stride) << what;
            }
          }
        }
      }
    }
  }
}

TEST(image, slices_follow_blocks) {
  Arena arena(1 << 20);
  const Operand o = alloc_image(arena, spec(128, 128), 300, 200, false);
  const Operand s = o.slice_rows(128, 172);
  EXPECT_EQ(s.rows(), 172);
  EXPECT_EQ(s.data.row<uint8_t>(0), o.data.row<uint8_t>(128));
  EXPECT_EQ(s.scale_inv.as<float>(), o.scale_inv.as<float>() + 2);
  EXPECT_TRUE(s.scale_inv.shape == Shape({2, 2}));
  EXPECT_THROW(o.slice_rows(100, 100), Error);   // inside a block
  EXPECT_THROW(o.slice_rows(256, 128), Error);   // beyond the end
  EXPECT_THROW(o.flipped().slice_rows(0, 100), Error);

  const Operand tensor = alloc_image(arena, spec(0, 0), 300, 200, false);
  EXPECT_EQ(tensor.slice_rows(17, 20).scale_inv.as<float>(), tensor.scale_inv.as<float>());
}

}  // namespace
