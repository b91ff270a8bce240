#include "model/param.h"

#include <algorithm>

#include "numerics/master.h"

namespace octet {
namespace {

// Runs f on ranges of [0, n) from the machine's threads.
void in_parallel(Machine& machine, int64_t n, const std::function<void(int64_t begin, int64_t end)>& f) {
  constexpr int64_t tile = int64_t{1} << 16;
  machine.pool().run((n + tile - 1) / tile, [&](int64_t t, int) { f(t * tile, std::min(n, (t + 1) * tile)); });
}

}  // namespace

Tensor Param::own_part(const Tensor& all) const {
  Tensor t = all;
  if (t.data) t.data = static_cast<char*>(t.data) + static_cast<size_t>(own.first * row_elements()) * size_bytes(t.dtype);
  t.shape = own_shape();
  return t;
}

void allocate(Param& p, const ParamArenas& a, const StateFormats& formats) {
  OCTET_CHECK(!formats.remainder || formats.compute == Dtype::bf16, "a remainder below {} weights", name(formats.compute));
  p.master = p.remainder = {};
  const bool master_is_working = formats.compute == Dtype::f32;
  if (!master_is_working) (formats.remainder ? p.remainder : p.master) = a.states->alloc(formats.remainder ? Dtype::u16 : Dtype::f32, p.own_shape());
  p.grad = (a.lent_grads ? a.lent_grads : a.lasting)->alloc(Dtype::f32, p.shape);
  p.own_grad = a.lent_grads ? a.lasting->alloc(Dtype::f32, p.own_shape()) : p.own_part(p.grad);
  p.exp_avg = a.states->alloc(formats.moments, p.own_shape());
  p.exp_avg_sq = a.states->alloc(formats.moments, p.own_shape());
  p.working = {nullptr, formats.compute, p.shape};
  if (!p.by_codes) p.working = (a.lent_working ? a.lent_working : a.lasting)->alloc(formats.compute, p.shape);
  p.own_working = a.lent_working || p.by_codes ? a.lasting->alloc(formats.compute, p.own_shape()) : p.own_part(p.working);
  if (master_is_working) p.master = p.own_working;
}

void write_master(Machine& machine, const Param& p, const std::function<void(float*)>& fill) {
  const int64_t n = p.own_elements();
  if (n == 0) return;
  const auto filled = [&](float* w) {
    fill(w);
    in_parallel(machine, n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) w[i] = resolve_tie(w[i]);
    });
  };
  if (p.master.shape.rank() != 0) return machine.write(p.master, [&](const Tensor& t) { filled(t.as<float>()); });
  std::vector<float> w(static_cast<size_t>(n));
  filled(w.data());
  machine.write(p.own_working, [&](const Tensor& working) {
    machine.write(p.remainder, [&](const Tensor& remainder) {
      in_parallel(machine, n, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const SplitMaster s = split_master(w[static_cast<size_t>(i)]);
          working.as<bf16>()[i] = s.weight;
          remainder.as<uint16_t>()[i] = s.remainder;
        }
      });
    });
  });
}

void read_master(Machine& machine, const Param& p, const std::function<void(const float*)>& use) {
  if (p.own_elements() == 0) return use(nullptr);
  if (p.master.shape.rank() != 0) return machine.read(p.master, [&](const Tensor& t) { use(t.as<float>()); });
  std::vector<float> w(static_cast<size_t>(p.own_elements()));
  machine.read(p.own_working, [&](const Tensor& working) {
    machine.read(p.remainder, [&](const Tensor& remainder) {
      in_parallel(machine, p.own_elements(), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) w[static_cast<size_t>(i)] = join_master(working.as<bf16>()[i], remainder.as<uint16_t>()[i]);
      });
    });
  });
  use(w.data());
}

void write_moment(Machine& machine, const Tensor& moment, const std::function<void(float*)>& fill) {
  if (moment.elements() == 0) return;
  if (moment.dtype == Dtype::f32) return machine.write(moment, [&](const Tensor& t) { fill(t.as<float>()); });
  std::vector<float> values(static_cast<size_t>(moment.elements()));
  fill(values.data());
  machine.write(moment, [&](const Tensor& t) {
    in_parallel(machine, t.elements(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) t.as<bf16>()[i] = to_bf16(values[static_cast<size_t>(i)]);
    });
  });
}

void read_moment(Machine& machine, const Tensor& moment, const std::function<void(const float*)>& use) {
  if (moment.elements() == 0) return use(nullptr);
  if (moment.dtype == Dtype::f32) return machine.read(moment, [&](const Tensor& t) { use(t.as<float>()); });
  std::vector<float> values(static_cast<size_t>(moment.elements()));
  machine.read(moment, [&](const Tensor& t) {
    in_parallel(machine, t.elements(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] = to_float(t.as<bf16>()[i]);
    });
  });
  use(values.data());
}

}  // namespace octet
