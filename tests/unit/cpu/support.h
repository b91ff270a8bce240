// Shared by the operator tests: owned tensors, deterministic data, and a runner that proves three things for every call of
// an operator: that its scratch memory is what the dry run counted, that it reads no stale scratch (poisoned with NaN), and that
// one thread and four give the same bits.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace cpu_test {

using namespace octet;

// A tensor that owns its memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Dtype dtype, Shape shape, int fill = 0)
      : dtype_(dtype), shape_(shape), bytes_(static_cast<size_t>(shape.elements()) * size_bytes(dtype), static_cast<uint8_t>(fill)) {}

  Tensor tensor() { return {bytes_.data(), dtype_, shape_}; }
  MatrixView columns(int64_t begin, int64_t count) { return MatrixView(tensor()).columns(begin, count); }
  int64_t elements() const { return shape_.elements(); }
  int64_t cols() const { return shape_.cols(); }
  Dtype dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  uint8_t code(int64_t i) const { return bytes_[static_cast<size_t>(i)]; }

  double at(int64_t i) const {
    if (dtype_ == Dtype::bf16) return to_float(load<bf16>(i));
    if (dtype_ == Dtype::i32) return load<int32_t>(i);
    return static_cast<double>(load<float>(i));
  }
  float f(int64_t i) const { return dtype_ == Dtype::bf16 ? to_float(load<bf16>(i)) : load<float>(i); }
  void set(int64_t i, double x) {
    if (dtype_ == Dtype::bf16) return store(i, to_bf16(static_cast<float>(x)));
    if (dtype_ == Dtype::i32) return store(i, static_cast<int32_t>(x));
    store(i, static_cast<float>(x));
  }
  std::vector<double> values() const {
    std::vector<double> v;
    for (int64_t i = 0; i < elements(); ++i) v.push_back(at(i));
    return v;
  }

 private:
  template <class T>
  T load(int64_t i) const {
    T x;
    std::memcpy(&x, bytes_.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return x;
  }
  template <class T>
  void store(int64_t i, T x) { std::memcpy(bytes_.data() + static_cast<size_t>(i) * sizeof(T), &x, sizeof(T)); }

  Dtype dtype_ = Dtype::f32;
  Shape shape_;
  std::vector<uint8_t> bytes_;
};

// scale * N(0, 1) + shift, rounded to dtype; the name makes the stream.
inline Buffer normal(const char* name, Dtype dtype, Shape shape, double scale = 1.0, double shift = 0.0) {
  Buffer b(dtype, shape);
  const Philox rng(99, RngPurpose::init, name);
  for (int64_t i = 0; i < b.elements(); ++i) b.set(i, scale * rng.normal(static_cast<uint64_t>(i)) + shift);
  return b;
}

inline Buffer integers(std::initializer_list<int32_t> values) {
  Buffer b(Dtype::i32, {static_cast<int64_t>(values.size())});
  int64_t i = 0;
  for (int32_t v : values) b.set(i++, v);
  return b;
}

using Outputs = std::vector<Buffer>;
using Op = std::function<void(Ctx&, Outputs&)>;

inline void run_planned(int threads, GemmMath math, const Op& op, Outputs& out) {
  ThreadPool pool(threads);
  Arena counted;
  {
    const Outputs before = out;
    Ctx plan(pool, counted, math);
    op(plan, out);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i].bytes(), before[i].bytes()) << "the dry run wrote output " << i;
  }
  Arena scratch(counted.high_water_bytes(), true);
  Ctx ctx(pool, scratch, math);
  op(ctx, out);
  EXPECT_EQ(scratch.high_water_bytes(), counted.high_water_bytes()) << "the dry run counted other scratch memory";
  EXPECT_EQ(scratch.used_bytes(), 0u);
}

// Runs op on copies of `initial` with one and with four threads; returns what one thread wrote.
inline Outputs run(const Outputs& initial, const Op& op, GemmMath math = GemmMath::blas) {
  Outputs one = initial, four = initial;
  run_planned(1, math, op, one);
  run_planned(4, math, op, four);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i].bytes(), four[i].bytes()) << "output " << i << " depends on the number of threads";
  return one;
}

// Every element of `got` within one rounding to its dtype of `want`, plus `tolerance` times the largest |want| for the FP32 arithmetic.
inline void expect_close(const Buffer& got, const std::vector<double>& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.elements(), static_cast<int64_t>(want.size())) << what;
  double largest = 0;
  for (double w : want) largest = std::max(largest, std::fabs(w));
  const double unit = got.dtype() == Dtype::bf16 ? 0x1p-8 : 0x1p-24;
  for (int64_t i = 0; i < got.elements(); ++i) {
    const double w = want[static_cast<size_t>(i)], error = std::fabs(got.at(i) - w);
    // Not "error > bound": a NaN must fail.
    if (!(error <= unit * std::fabs(w) * 1.01 + tolerance * largest)) {
      ADD_FAILURE() << what << ": element " << i << " is " << got.at(i) << ", " << w << " expected (error " << error << ", largest " << largest
                    << ")";
      return;
    }
  }
}

constexpr Dtype both_dtypes[] = {Dtype::f32, Dtype::bf16};

// The gradient of a scalar loss by directional derivatives: for 20 random directions v over all elements of `inputs`, the dot product of
// `gradients` with v against the five-point difference quotient of loss(). Errors are relative to |gradient|, the size of that dot product.
inline void expect_gradient(const std::vector<Buffer*>& inputs, const std::vector<Buffer>& gradients, const std::function<double()>& loss,
                            double h = 1e-2) {
  double norm = 0;
  for (const Buffer& g : gradients) {
    for (double x : g.values()) norm += x * x;
  }
  norm = std::sqrt(norm);
  ASSERT_GT(norm, 0.0);
  std::vector<Buffer> origin;
  for (Buffer* b : inputs) {
    ASSERT_EQ(b->dtype(), Dtype::f32);
    origin.push_back(*b);
  }
  for (uint64_t direction = 0; direction < 20; ++direction) {
    const Philox rng(direction, RngPurpose::init, "direction");
    const auto displaced = [&](double step) {
      uint64_t element = 0;
      for (size_t k = 0; k < inputs.size(); ++k) {
        for (int64_t i = 0; i < inputs[k]->elements(); ++i) inputs[k]->set(i, origin[k].at(i) + step * rng.normal(element++));
      }
      return loss();
    };
    double analytic = 0;
    uint64_t element = 0;
    for (size_t k = 0; k < inputs.size(); ++k) {
      for (int64_t i = 0; i < inputs[k]->elements(); ++i) analytic += gradients[k].at(i) * rng.normal(element++);
    }
    const double numeric = (8.0 * (displaced(h) - displaced(-h)) - (displaced(2 * h) - displaced(-2 * h))) / (12.0 * h);
    EXPECT_NEAR(analytic, numeric, 1e-3 * norm) << "direction " << direction;
  }
  for (size_t k = 0; k < inputs.size(); ++k) *inputs[k] = origin[k];
}

// Sum of weights * values in double: turns an operator's output into a loss whose output gradient is `weights`.
inline double weighted_sum(const Buffer& values, const Buffer& weights) {
  double sum = 0;
  for (int64_t i = 0; i < values.elements(); ++i) sum += values.at(i) * weights.at(i);
  return sum;
}

// A context for calls whose planning and threads are tested elsewhere.
class Machine {
 public:
  explicit Machine(GemmMath math = GemmMath::fixed, int threads = 1, size_t scratch_bytes = size_t{2} << 20)
      : pool_(threads), scratch_(scratch_bytes, true), ctx(pool_, scratch_, math) {}

 private:
  ThreadPool pool_;
  Arena scratch_;

 public:
  Ctx ctx;
};

}  // namespace cpu_test
