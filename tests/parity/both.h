// An operator on both machines, its tensors declared once: for tests of operators over rows and elements.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/step_control.h"
#include "rig.h"

namespace parity {

inline constexpr Dtype both[] = {Dtype::bf16, Dtype::f32};
struct Size {
  int64_t rows, cols;
};

inline Tensor absent(const Host& h) { return {nullptr, h.dtype(), h.shape()}; }

// An operator with named tensors: inputs are uploaded, outputs (blank, or given their first content) come back.
class Both {
 public:
  explicit Both(Rig& rig) : rig_(rig) {}

  int input(Host h) { return add(std::move(h), false); }
  int output(Dtype dtype, Shape shape) { return add(Host(dtype, shape), true); }
  int updated(Host h) { return add(std::move(h), true); }

  // op is given the tensors in the order of their declaration.
  using Op = std::function<void(Ctx&, const std::vector<Tensor>&)>;
  void run(const Op& on_cpu, const Op& on_cuda) {
    want_ = hosts_;
    std::vector<Tensor> cpu, device;
    for (Host& h : want_) cpu.push_back(!h.bytes().empty() ? h.tensor() : Tensor{});
    rig_.on_host([&](Ctx& ctx) {
      if (!ctx.planning()) on_cpu(ctx, cpu);
      else on_cpu(ctx, planned());
    });
    std::vector<Host> first;
    for (int round = 0; round < 2; ++round) {
      device.clear();
      for (Host& h : hosts_) device.push_back(!h.bytes().empty() ? rig_.upload(h) : Tensor{});
      rig_.on_device([&](Ctx& ctx) {
        if (!ctx.planning()) on_cuda(ctx, device);
        else on_cuda(ctx, planned());
      });
      got_.clear();
      for (const Tensor& t : device) got_.push_back(t.data ? rig_.download(t) : Host());
      if (round == 0) first = got_;
      rig_.reset();
    }
    for (size_t i = 0; i < got_.size(); ++i) EXPECT_EQ(got_[i].bytes(), first[i].bytes()) << "tensor " << i << " differs between two calls";
    for (size_t i = 0; i < got_.size(); ++i) {
      if (!outputs_[i]) {
        EXPECT_EQ(got_[i].bytes(), hosts_[i].bytes()) << "input " << i << " was changed";
      }
    }
  }
  const Host& got(int i) const { return got_[static_cast<size_t>(i)]; }
  const Host& want(int i) const { return want_[static_cast<size_t>(i)]; }
  void same(int i, const std::string& what) { expect_same(got(i), want(i), what); }
  void close(int i, double tolerance, const std::string& what) { expect_close(got(i), want(i), tolerance, what); }

 private:
  int add(Host h, bool output) {
    hosts_.push_back(std::move(h));
    outputs_.push_back(output);
    return static_cast<int>(hosts_.size()) - 1;
  }
  std::vector<Tensor> planned() {
    std::vector<Tensor> t;
    for (const Host& h : hosts_) t.push_back(!h.bytes().empty() ? absent(h) : Tensor{});
    return t;
  }
  Rig& rig_;
  std::vector<Host> hosts_, want_, got_;
  std::vector<bool> outputs_;
};

inline std::string label(const std::string& what, Dtype dtype, int64_t rows, int64_t cols) { return what + " " + std::string(name(dtype)) + " " + std::to_string(rows) + "x" + std::to_string(cols); }

inline Host step_control(float grad_scale, int32_t skip) {
  Host h(Dtype::u8, {static_cast<int64_t>(sizeof(StepControl))});
  const StepControl c{grad_scale, skip};
  std::memcpy(h.bytes().data(), &c, sizeof c);
  return h;
}

}  // namespace parity
