// diff_checkpoints: element by element, in double.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <set>

#include "checkpoint/inspect.h"
#include "core/check.h"
#include "numerics/bf16.h"
#include "numerics/formats.h"

namespace octet {
namespace {

template <class T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

double element(Dtype dtype, const char* at) {
  switch (dtype) {
    case Dtype::f32: return load<float>(at);
    case Dtype::i32: return load<int32_t>(at);
    case Dtype::bf16: return to_float(bf16{load<uint16_t>(at)});
    case Dtype::u8: return load<uint8_t>(at);
    default: return decode(dtype, load<uint8_t>(at));
  }
}

std::vector<char> whole(const Checkpoint& c, const NamedTensor& t) {
  std::vector<char> bytes(static_cast<size_t>(*tensor_bytes(t.shape, t.dtype)));
  c.read(t.group, t.name, t.dtype, t.shape, bytes.data());
  return bytes;
}

std::string describe(const NamedTensor& t) { return fmt::format("{} {}", name(t.dtype), to_string(t.shape)); }

TensorDifference compare_values(const Checkpoint& a, const Checkpoint& b, const NamedTensor& t) {
  TensorDifference d{t.group, t.name, {}, t.shape.elements(), 0, 0, 0, 0};
  const std::vector<char> x = whole(a, t), y = whole(b, t);
  if (x == y) return d;
  const size_t size = size_bytes(t.dtype);
  for (size_t at = 0; at < x.size(); at += size) {
    if (std::memcmp(&x[at], &y[at], size) == 0) continue;
    ++d.differing;
    const double p = element(t.dtype, &x[at]), q = element(t.dtype, &y[at]);
    if (!std::isfinite(p) || !std::isfinite(q)) {
      ++d.nonfinite;
      continue;
    }
    const double gap = std::fabs(p - q), scale = std::max(std::fabs(p), std::fabs(q));
    d.max_abs = std::max(d.max_abs, gap);
    if (scale > 0) d.max_rel = std::max(d.max_rel, gap / scale);
  }
  return d;
}

// Everything but the config, as JSON pointers.
nlohmann::json flat_state(const Checkpoint& c) {
  nlohmann::json state = c.state();
  if (state.is_object()) state.erase("config");
  return state.flatten();
}

}  // namespace

CheckpointDiff diff_checkpoints(const Checkpoint& a, const Checkpoint& b) {
  std::map<std::pair<std::string, std::string>, std::pair<const NamedTensor*, const NamedTensor*>> all;
  const auto in_a = a.list(), in_b = b.list();
  for (const NamedTensor& t : in_a) all[{t.group, t.name}].first = &t;
  for (const NamedTensor& t : in_b) all[{t.group, t.name}].second = &t;

  CheckpointDiff out;
  out.tensors = all.size();
  for (const auto& [key, pair] : all) {
    const auto [x, y] = pair;
    TensorDifference d{key.first, key.second, {}, 0, 0, 0, 0, 0};
    if (!x || !y) {
      d.what = x ? "only in the first" : "only in the second";
    } else if (x->dtype != y->dtype || x->shape != y->shape) {
      d.what = fmt::format("{} and {}", describe(*x), describe(*y));
    } else {
      d = compare_values(a, b, *x);
      if (d.differing == 0) continue;
    }
    out.different.push_back(std::move(d));
  }

  const nlohmann::json x = flat_state(a), y = flat_state(b);
  std::set<std::string> pointers;
  for (const auto* flat : {&x, &y}) {
    for (const auto& item : flat->items()) pointers.insert(item.key());
  }
  for (const std::string& p : pointers) {
    nlohmann::json first = x.contains(p) ? x[p] : nlohmann::json(), second = y.contains(p) ? y[p] : nlohmann::json();
    if (first != second) out.state.push_back({p, std::move(first), std::move(second)});
  }
  return out;
}

}  // namespace octet
