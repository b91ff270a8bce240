// A rank's part of its machine's cores.
#include "train/cores.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

TEST(Cores, AreDividedAmongTheRanksThatMayRunOnThem) {
  EXPECT_EQ(part_of_cores({0, 1, 2, 3}, {{0, 1, 2, 3}}), 4);
  EXPECT_EQ(part_of_cores({0, 1, 2, 3}, {{0, 1, 2, 3}, {0, 1, 2, 3}}), 2);
  EXPECT_EQ(part_of_cores({2, 3}, {{0, 1}, {2, 3}}), 2);   // bound: not divided once more
  EXPECT_EQ(part_of_cores({0, 1}, {{0, 1}, {0, 1}, {2, 3}, {2, 3}}), 1);
  EXPECT_EQ(part_of_cores({0, 1}, {{0, 1}, {1}}), 1.5);
}

}  // namespace
}  // namespace octet
