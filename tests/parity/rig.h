// Parity of the CUDA backend with the CPU backend: the same operator on the same bits, in one process.
//
// The tests of this folder are built twice: parity_simt runs the kernels on the host (tests/simt; everywhere, CI included), parity_cuda on a GPU.
// A Rig holds both machines. Every device buffer begins as NaN patterns and lies between guard bytes that must not change; scratch memory is counted by a
// dry run and poisoned. Tests make each call at least twice and want the same bits.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/agreement.h"
#include "core/context.h"
#include "core/philox.h"
#include "cuda/device.h"
#include "recipe/qtensor.h"

namespace parity {

using namespace octet;

// A host tensor that owns its memory; what both machines are given.
class Host {
 public:
  Host() = default;
  Host(Dtype dtype, Shape shape, int fill = 0xFF) : dtype_(dtype), shape_(shape), bytes_(static_cast<size_t>(shape.elements()) * size_bytes(dtype), static_cast<uint8_t>(fill)) {}

  Tensor tensor() { return {bytes_.data(), dtype_, shape_}; }
  Dtype dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return shape_.elements(); }
  std::vector<uint8_t>& bytes() { return bytes_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

  float at(int64_t i) const {
    if (dtype_ == Dtype::bf16) return to_float(bf16{load<uint16_t>(i)});
    if (dtype_ == Dtype::i32) return static_cast<float>(load<int32_t>(i));
    return load<float>(i);
  }
  void set(int64_t i, double x) {
    if (dtype_ == Dtype::bf16) return store(i, to_bf16(static_cast<float>(x)).bits);
    if (dtype_ == Dtype::i32) return store(i, static_cast<int32_t>(x));
    store(i, static_cast<float>(x));
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

// scale * N(0, 1) + shift; the name makes the stream.
inline Host normal(const std::string& name, Dtype dtype, Shape shape, double scale = 1.0, double shift = 0.0) {
  Host h(dtype, shape);
  const Philox rng(7, RngPurpose::init, name);
  for (int64_t i = 0; i < h.elements(); ++i) h.set(i, scale * rng.normal(static_cast<uint64_t>(i)) + shift);
  return h;
}

class Rig {
 public:
  explicit Rig(size_t device_bytes = size_t{64} << 20);

  cuda::Device& device() { return device_; }
  AttentionKernels attention = AttentionKernels::mma;

  // Device memory with the content of `host`, or only of its size when `blank` (then NaN patterns). Valid until reset().
  Tensor upload(const Host& host, bool blank = false);
  Operand upload_image(const QuantSpec& spec, int64_t rows, int64_t cols, bool column);
  template <class T>
  T* upload_value(const T& value) {
    Tensor t = alloc(Dtype::u8, {static_cast<int64_t>(sizeof(T))});
    device_.copy_in(t.data, &value, sizeof(T));
    device_.synchronize();
    return static_cast<T*>(t.data);
  }
  template <class T>
  T download_value(const T* at) {
    T value;
    device_.copy_out(&value, at, sizeof(T));
    return value;
  }
  // Of a dense tensor.
  Host download(const Tensor& t);
  PlainImage download_image(const Operand& image, bool column);

  // Runs `op` on the device as the engine does: scratch counted by a dry run, then poisoned.
  void on_device(const std::function<void(Ctx&)>& op, uint64_t seed = 1, StepKey key = {});
  // The same operator on the CPU.
  void on_host(const std::function<void(Ctx&)>& op, uint64_t seed = 1, StepKey key = {});
  // Fails the test when a guard was overwritten; then forgets all device memory.
  void reset();

 private:
  Tensor alloc(Dtype dtype, Shape shape);

  cuda::Device device_;
  Arena memory_;
  std::unique_ptr<Arena::Scope> scope_;
  std::vector<std::pair<char*, size_t>> guards_;
  ThreadPool pool_{2};
  int calls_ = 0;
};

// The same bits; says where the first difference is.
void expect_same(const Host& got, const Host& want, const std::string& what);
void expect_same(const PlainImage& got, const PlainImage& want, const std::string& what);
// As Tolerance{tolerance, ulps, least} says (core/agreement.h). NaN fails.
void expect_close(const Host& got, const Host& want, double tolerance, const std::string& what, double ulps = 1.0, double least = 0.0);

}  // namespace parity
