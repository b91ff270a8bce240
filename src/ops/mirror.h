// Mirror: one operator call on the GPU and on the CPU, from the same bits, and the comparison of what they wrote (ops/shadow.h).
//
//   Mirror m(ctx, "swiglu_backward");
//   m.run(cuda::swiglu_backward, cpu::swiglu_backward, m.in(dy), m.in(gate_up), m.out("d_gate_up", d_gate_up));
//
// in() and out() copy what an argument points to from the device when they are called: before run(), so that what is added to, or written in place, begins alike.
// Arguments that are not wanted stay so. Host memory lives as long as the Mirror.
// Errors: Shadow::compared; Error(device) when the device failed.
#pragma once
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "ops/quantize.h"
#include "ops/shadow.h"
#include "ops/step_control.h"

namespace octet {

// An argument of both calls.
template <class T>
struct Mirrored {
  T device, host;
};

class Mirror {
 public:
  Mirror(Ctx& ctx, const char* op);
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // What the operator reads.
  Mirrored<Tensor> in(const Tensor& t);
  Mirrored<MatrixView> in(const MatrixView& m);
  // Scales lie on the host as its products read them, row by row.
  Mirrored<Operand> in(const Operand& o);
  template <class T>
  Mirrored<const T*> in(const T* p, int64_t n = 1) {
    return {p, static_cast<const T*>(copy(p, sizeof(T) * static_cast<size_t>(n)))};
  }

  // What it writes or adds to. Without a tolerance the same bits are expected. `name`: in errors.
  Mirrored<Tensor> out(const std::string& name, const Tensor& t, const Tolerance& tolerance = {});
  Mirrored<MatrixView> out(const std::string& name, const MatrixView& m, const Tolerance& tolerance = {});
  template <class T>
  Mirrored<T*> out(const std::string& name, T* p, const Tolerance& tolerance = {}) {
    T* host = static_cast<T*>(copy(p, sizeof(T)));
    if (p) checks_.emplace_back([this, name, p, host, tolerance] { compare_numbers(name, numbers_of(*in(p).host), numbers_of(*host), tolerance); });
    return {p, host};
  }
  // Images have the layout of each device; compared is what they say. With them amax, count and statistics.
  // prefix: of their names, where an operator makes those of several matrices.
  Mirrored<QuantizedOut> out(const std::string& prefix, const QuantizedOut& q);
  // An output whose parts agree differently: out() is in() and a check() of each part.
  void check(const std::string& name, const Mirrored<MatrixView>& m, const Tolerance& tolerance);

  // on_device(ctx, arguments...), on_host(context of the CPU, arguments...), comparison.
  template <class Device, class Host, class... Arguments>
  void run(const Device& on_device, const Host& on_host, const Arguments&... arguments) {
    on_device(ctx_, device_of(arguments)...);
    run_on_host([&](Ctx& host) { on_host(host, host_of(arguments)...); });
    for (const auto& compare_result : checks_) compare_result();
  }

 private:
  template <class T>
  static const T& device_of(const Mirrored<T>& m) { return m.device; }
  template <class T>
  static const T& device_of(const T& same) { return same; }
  template <class T>
  static const T& host_of(const Mirrored<T>& m) { return m.host; }
  template <class T>
  static const T& host_of(const T& same) { return same; }

  // What is compared of plain data.
  struct Number {
    const char* name;   // of a member; null: the value itself
    double value;
    bool is_sum = false;   // of doubles, whose order differs
  };
  static std::vector<Number> numbers_of(double x) { return {{nullptr, x}}; }
  static std::vector<Number> numbers_of(int64_t n) { return {{nullptr, static_cast<double>(n)}}; }
  static std::vector<Number> numbers_of(const ImageHealth& h);
  static std::vector<Number> numbers_of(const StepOutcome& o);
  void compare_numbers(const std::string& name, const std::vector<Number>& got, const std::vector<Number>& want, const Tolerance& tolerance);

  void* copy(const void* device, size_t bytes);   // null for null
  void compare_matrices(const std::string& name, const MatrixView& got, const MatrixView& want, const Tolerance& tolerance) {
    shadow_.compared(name, compare(got, want, tolerance.with_nan()));
  }
  void run_on_host(const std::function<void(Ctx&)>& op);
  Operand image(const std::string& name, const Operand& device, const QuantSpec& spec, bool column);

  Ctx& ctx_;
  Shadow& shadow_;
  std::deque<std::vector<std::byte>> memory_;
  std::deque<Arena> images_;
  std::vector<std::function<void()>> checks_;
};

}  // namespace octet
