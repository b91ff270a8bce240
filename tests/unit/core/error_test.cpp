// The text of errors, failed checks, and the views that raise them.
#include "core/error.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "core/error_text.h"
#include "core/tensor.h"

using namespace octet;

namespace {

// As another rank gets it, whatever bytes its texts have.
TEST(error, comes_back_from_its_text) {
  for (const Error& e : {Error(ExitCode::data, "two\nlines, 3 numbers 4", "a \xff path", "mend it"), Error(ExitCode::deadline, "", "", "")}) {
    const Error back = error_of_text(error_text(e));
    EXPECT_EQ(back.code, e.code);
    EXPECT_EQ(back.message, e.message);
    EXPECT_EQ(back.where, e.where);
    EXPECT_EQ(back.fix, e.fix);
    EXPECT_FALSE(back.shared);
  }
}

TEST(error, every_exception_becomes_one) {
  const auto caught = [](const auto& thrown) {
    try {
      throw thrown;
    } catch (...) {
      return caught_error();
    }
  };
  EXPECT_EQ(caught(Error(ExitCode::config, "a")).code, ExitCode::config);
  EXPECT_EQ(caught(std::bad_alloc()).code, ExitCode::device);
  EXPECT_EQ(std::string(caught(std::runtime_error("odd")).what()), "internal error: odd");
  EXPECT_EQ(caught(5).code, ExitCode::internal);
}

TEST(error, composes_place_message_and_remedy) {
  struct Row {
    const char *what, *where, *fix, *text;
  };
  const Row rows[] = {{"bad", "", "", "bad"},
                      {"bad", "data.train", "", "data.train: bad"},
                      {"bad", "", "good", "bad (good)"},
                      {"unknown key \"modle\"", "a.json:3", "did you mean \"model\"?", "a.json:3: unknown key \"modle\" (did you mean \"model\"?)"}};
  for (const Row& r : rows) {
    const Error e(ExitCode::data, r.what, r.where, r.fix);
    EXPECT_STREQ(e.what(), r.text);
    EXPECT_EQ(e.code, ExitCode::data);
    EXPECT_EQ(e.message, r.what);
    EXPECT_EQ(e.where, r.where);
    EXPECT_EQ(e.fix, r.fix);
  }
}

TEST(error, exit_codes_are_the_published_ones) {
  const std::pair<ExitCode, int> table[] = {
      {ExitCode::ok, 0},          {ExitCode::verdict_no, 1}, {ExitCode::usage, 2},       {ExitCode::config, 10},     {ExitCode::data, 11},
      {ExitCode::checkpoint, 12}, {ExitCode::stopped, 20},   {ExitCode::time_limit, 21}, {ExitCode::non_finite, 30}, {ExitCode::deadline, 31},
      {ExitCode::device, 32},     {ExitCode::hardware, 33},  {ExitCode::internal, 70}};
  for (const auto& [code, number] : table) EXPECT_EQ(static_cast<int>(code), number);
}

// What a failed check says; "" when it did not fail.
template <class F>
std::string failure(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::internal);
    return e.what();
  }
  return {};
}

TEST(check, says_condition_values_and_place) {
  const int rows = 3;
  const std::string text = failure([&] { OCTET_CHECK(rows == 4, "{} rows, {} expected", rows, 4); });
  for (const char* part : {"error_test.cpp:", "internal error: 3 rows, 4 expected [rows == 4]", "please report"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " not in: " << text;
  }
  EXPECT_EQ(failure([&] { OCTET_CHECK(rows == 3, "never"); }), "");
}

TEST(shape, matrix_view_and_text) {
  struct Row {
    Shape shape;
    int64_t rows, cols, elements;
    const char* text;
  };
  const Row table[] = {{{}, 1, 1, 1, "[]"},         {{5}, 1, 5, 5, "[5]"},
                       {{2, 3}, 2, 3, 6, "[2, 3]"}, {{2, 3, 4, 5}, 24, 5, 120, "[2, 3, 4, 5]"},
                       {{0, 7}, 0, 7, 0, "[0, 7]"}, {{4, 0}, 4, 0, 0, "[4, 0]"}};
  for (const Row& r : table) {
    EXPECT_EQ(r.shape.rows(), r.rows) << r.text;
    EXPECT_EQ(r.shape.cols(), r.cols) << r.text;
    EXPECT_EQ(r.shape.elements(), r.elements) << r.text;
    EXPECT_EQ(to_string(r.shape), r.text);
  }
  EXPECT_TRUE(Shape({2, 3}) == Shape({2, 3}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({3, 2}));
  EXPECT_FALSE(Shape({6}) == Shape({1, 6}));
}

TEST(tensor, typed_access_and_slices_are_checked) {
  float data[12] = {};
  const Tensor t{data, Dtype::f32, {4, 3}};
  EXPECT_EQ(t.as<float>(), data);
  EXPECT_EQ(t.bytes(), 48u);
  EXPECT_EQ(t.slice_rows(1, 2).as<float>(), data + 3);
  EXPECT_TRUE(t.slice_rows(1, 2).shape == Shape({2, 3}));
  EXPECT_NE(failure([&] { t.as<bf16>(); }), "");
  EXPECT_NE(failure([&] { t.as<uint8_t>(); }), "");
  EXPECT_NE(failure([&] { t.slice_rows(3, 2); }), "");
  EXPECT_NE(failure([&] { t.slice_rows(-1, 2); }), "");
  EXPECT_EQ((Tensor{nullptr, Dtype::f32, {4, 3}}.slice_rows(1, 2).data), nullptr);

  const MatrixView m(t);
  EXPECT_EQ(m.columns(1, 2).row<float>(2), data + 2 * 3 + 1);
  EXPECT_EQ(m.columns(1, 2).ld, 3);
  EXPECT_NE(failure([&] { m.columns(2, 2); }), "");
  EXPECT_NE(failure([&] { m.row<bf16>(0); }), "");
  EXPECT_NE(failure([&] { m.row<uint8_t>(0); }), "");
}

}  // namespace
