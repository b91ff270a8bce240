#include "core/agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace octet {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();

MatrixView matrix(std::vector<float>& v, int64_t cols) { return Tensor{v.data(), Dtype::f32, {static_cast<int64_t>(v.size()) / cols, cols}}; }

Agreement rows_of_two(std::vector<float> got, std::vector<float> want, const Tolerance& t) { return compare(matrix(got, 2), matrix(want, 2), t); }

TEST(agreement, without_a_tolerance_bits_count) {
  const Agreement a = rows_of_two({1, 2, 3, 4, 5, 6}, {1, 2, 3, 8, 5, 7}, {});
  EXPECT_EQ(a.elements, 6);
  EXPECT_EQ(a.differing, 2);
  EXPECT_EQ(a.row, 1);
  EXPECT_EQ(a.col, 1);
  EXPECT_EQ(a.got, 4);
  EXPECT_EQ(a.want, 8);
  EXPECT_TRUE(std::isinf(a.units) && std::isinf(a.worst));
  EXPECT_EQ(rows_of_two({0.0f, 1}, {-0.0f, 1}, {}).differing, 1);
  EXPECT_EQ(rows_of_two({nan, -inf}, {nan, -inf}, {}).differing, 0);
}

TEST(agreement, tolerances_add_up_and_are_the_unit) {
  // 0.5 of the largest magnitude, 4, beside one rounding of each element.
  const Tolerance half{.relative = 0.5, .ulps = 1};
  const Agreement good = rows_of_two({1, -4, 2, 3}, {2, -4, 1, 3}, half);
  EXPECT_EQ(good.differing, 0);
  EXPECT_NEAR(good.worst, 0.5, 1e-6);
  EXPECT_EQ(rows_of_two({1, 1}, {1, 1}, half).worst, 0);
  const Agreement bad = rows_of_two({1, -4, 9, 3}, {2, -4, 1, 3}, half);
  EXPECT_EQ(bad.differing, 1);
  EXPECT_EQ(bad.row, 1);
  EXPECT_NEAR(bad.units, 4, 1e-6);
  EXPECT_EQ(rows_of_two({0.5f, 0}, {0, 0}, half).differing, 1) << "nothing is allowed beside zeros";
  EXPECT_EQ(rows_of_two({0.5f, 0}, {0, 0}, {.relative = 0.5, .least = 1}).differing, 0);
}

TEST(agreement, numbers_that_are_not_finite) {
  const Tolerance rounded{.relative = 0.5, .ulps = 1};
  EXPECT_EQ(rows_of_two({nan, 1}, {nan, 1}, rounded).differing, 1);
  EXPECT_EQ(rows_of_two({nan, 1}, {nan, 1}, rounded.with_nan()).differing, 0);
  EXPECT_EQ(rows_of_two({nan, 1}, {inf, 1}, rounded.with_nan()).differing, 0);
  EXPECT_EQ(rows_of_two({nan, 1}, {1, 1}, rounded.with_nan()).differing, 1);
  EXPECT_EQ(rows_of_two({1, 1}, {inf, 1}, rounded.with_nan()).differing, 1);
  EXPECT_EQ(rows_of_two({-nan, 1}, {nan, 1}, Tolerance{}.with_nan()).differing, 0);
  EXPECT_EQ(rows_of_two({-inf, 1}, {inf, 1}, Tolerance{}.with_nan()).differing, 1);
  EXPECT_EQ(rows_of_two({1, 9}, {inf, 1}, rounded.with_nan()).differing, 2) << "Inf is not the largest magnitude";
}

TEST(agreement, column_ranges_and_types) {
  std::vector<uint16_t> got{0x3F80, 0x4000, 0, 0x3F80, 0x4000, 7}, want{0x3F80, 0x4000, 1, 0x3F81, 0x4000, 9};
  const auto columns = [](std::vector<uint16_t>& v, Dtype d) { return MatrixView(Tensor{v.data(), d, {2, 3}}).columns(0, 2); };
  EXPECT_EQ(compare(columns(got, Dtype::bf16), columns(want, Dtype::bf16), {.ulps = 1}).differing, 0);
  const Agreement words = compare(columns(got, Dtype::u16), columns(want, Dtype::u16), {});
  EXPECT_EQ(words.differing, 1);
  EXPECT_EQ(words.row, 1);
  EXPECT_EQ(words.col, 0);
  EXPECT_EQ(words.want, 0x3F81);
  EXPECT_EQ(largest_magnitude(columns(want, Dtype::bf16)), 2.0);
  EXPECT_EQ(compare(1.0, 1.0 + 1e-13, {.relative = 1e-12}).differing, 0);
  EXPECT_EQ(compare(1.0, 1.0 + 1e-11, {.relative = 1e-12}).differing, 1);
}

}  // namespace
}  // namespace octet
