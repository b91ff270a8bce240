// Rotary frequencies: plain, partial, and the bands of Llama 3.1.
#include "model/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/arena.h"

using namespace octet;

namespace {

ModelConfig head(int64_t dim, double theta, double partial = 1.0) {
  ModelConfig m;
  m.head_dim = dim;
  m.rope_theta = theta;
  m.partial_rotary_factor = partial;
  return m;
}

ModelConfig llama3(int64_t dim, double factor) {
  ModelConfig m = head(dim, 5e5);
  m.rope_scaling = {"llama3", factor, 1.0, 4.0, 8192};
  return m;
}

TEST(rope_table, plain_frequencies) {
  const std::vector<double> f = rope_frequencies(head(8, 1e4));
  const double want[] = {1.0, 0.1, 0.01, 0.001};
  ASSERT_EQ(f.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(f[i], want[i], 1e-15);
}

TEST(rope_table, partial_rotation_uses_the_rotated_width) {
  const ModelConfig m = head(16, 1e4, 0.5);
  EXPECT_EQ(rotary_dim(m), 8);
  EXPECT_EQ(rope_frequencies(m), rope_frequencies(head(8, 1e4)));
  EXPECT_EQ(rotary_dim(head(128, 1e4, 0.25)), 32);
}

TEST(rope_table, llama3_bands) {
  struct Row {
    int64_t dim;
    double factor;
    size_t mixed_begin, divided_begin;
  };
  // Wavelengths up to 8192 / 4 are kept, those above 8192 divided, those between interpolated.
  for (const Row& r : {Row{64, 32.0, 15, 18}, Row{128, 8.0, 29, 35}}) {
    const std::vector<double> plain = rope_frequencies(head(r.dim, 5e5)), scaled = rope_frequencies(llama3(r.dim, r.factor));
    ASSERT_EQ(scaled.size(), static_cast<size_t>(r.dim / 2));
    for (size_t i = 0; i < scaled.size(); ++i) {
      if (i < r.mixed_begin) {
        EXPECT_EQ(scaled[i], plain[i]) << i;
      } else if (i < r.divided_begin) {
        EXPECT_LT(scaled[i], plain[i]) << i;
        EXPECT_GT(scaled[i], plain[i] / r.factor) << i;
      } else {
        EXPECT_EQ(scaled[i], plain[i] / r.factor) << i;
      }
    }
  }
}

TEST(rope_table, llama3_reference_pair) {
  EXPECT_NEAR(rope_frequencies(head(128, 5e5))[30], 0.00213112, 5e-9);
  EXPECT_NEAR(rope_frequencies(llama3(128, 8.0))[30], 0.00137189, 5e-9);
}

TEST(rope_table, scaling_of_type_default_changes_nothing) {
  ModelConfig m = head(64, 1e4);
  m.rope_scaling.factor = 8.0;
  EXPECT_EQ(rope_frequencies(m), rope_frequencies(head(64, 1e4)));
}

TEST(rope_table, rows_hold_cosines_then_sines) {
  const ModelConfig m = head(8, 1e4);
  Arena memory(1 << 20);
  const Tensor table = memory.alloc(Dtype::f32, {5000, rotary_dim(m)});
  fill_rope_table(m, table);
  const double freq[] = {1.0, 0.1, 0.01, 0.001};
  for (int64_t p : {0, 1, 17, 4999}) {
    const float* row = table.as<float>() + p * 8;
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(row[i], std::cos(static_cast<double>(p) * freq[i]), 1e-7) << p;
      EXPECT_NEAR(row[4 + i], std::sin(static_cast<double>(p) * freq[i]), 1e-7) << p;
    }
  }
}

}  // namespace
