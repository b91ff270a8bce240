#include "data/blend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace octet::data {
namespace {

// np.sum of doubles: one by one below 8, eight interleaved sums up to 128, halves above.
double numpy_sum(std::span<const double> v) {
  const size_t n = v.size();
  if (n > 128) {
    const size_t half = n / 2 - n / 2 % 8;
    return numpy_sum(v.first(half)) + numpy_sum(v.subspan(half));
  }
  double sum = 0;
  size_t i = 0;
  if (n >= 8) {
    double r[8];
    std::copy_n(v.begin(), 8, r);
    for (i = 8; i + 8 <= n; i += 8) {
      for (size_t k = 0; k < 8; ++k) r[k] += v[i + k];
    }
    sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  }
  for (; i < n; ++i) sum += v[i];
  return sum;
}

std::vector<double> shares_of(const std::vector<int64_t>& sizes, int64_t total) {
  std::vector<double> weights;
  for (int64_t size : sizes) weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  return weights;
}

int64_t checked_count(double samples) {
  if (samples < 9e18) return static_cast<int64_t>(samples);
  throw Error(ExitCode::config, fmt::format("a blend of {:.3g} samples", samples), "run.steps", "ask for fewer steps");
}

}  // namespace

std::vector<double> normalised_weights(std::vector<double> weights) {
  const double sum = numpy_sum(weights);
  for (double& w : weights) {
    if (!(w > 0) || !std::isfinite(w) || !std::isfinite(sum)) {
      throw Error(ExitCode::config, fmt::format("{} is no weight of a blend", w), "data.train", "give positive numbers");
    }
    w /= sum;
  }
  return weights;
}

int64_t target_samples(double weight, int64_t samples) { return checked_count(std::ceil(static_cast<double>(samples) * weight)); }

int64_t built_samples(double weight, int64_t samples) {
  constexpr double surplus = 0.005;
  return checked_count(std::ceil(static_cast<double>(target_samples(weight, samples)) * (1 + surplus)));
}

BlendOrder BlendOrder::weighted(std::vector<double> weights) {
  BlendOrder order;
  order.weights_ = normalised_weights(std::move(weights));
  order.taken_.resize(order.weights_.size());
  order.in_pass_.resize(order.weights_.size());
  return order;
}

BlendOrder BlendOrder::once(std::vector<int64_t> sizes, std::vector<double> weights) {
  BlendOrder order;
  order.pass_samples_ = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  order.weights_ = weights.empty() ? shares_of(sizes, order.pass_samples_) : normalised_weights(std::move(weights));
  OCTET_CHECK(order.weights_.size() == sizes.size(), "{} weights of {} sources", order.weights_.size(), sizes.size());
  order.sizes_ = std::move(sizes);
  order.taken_.resize(order.sizes_.size());
  order.in_pass_.resize(order.sizes_.size());
  return order;
}

BlendOrder BlendOrder::exhaustive(std::vector<int64_t> sizes) {
  BlendOrder order = once(std::move(sizes));
  order.repeat_ = true;
  return order;
}

BlendOrder BlendOrder::recorded(std::vector<int16_t> source_of, int64_t sources) {
  BlendOrder order;
  order.pass_samples_ = static_cast<int64_t>(source_of.size());
  order.recorded_ = std::move(source_of);
  order.taken_.resize(static_cast<size_t>(sources));
  return order;
}

int64_t BlendOrder::pick() const {
  if (!recorded_.empty()) return recorded_[static_cast<size_t>(position_)];
  const double i = static_cast<double>(std::max<int64_t>(pass_position_, 1));
  int64_t best = -1;
  double most = 0;
  for (size_t k = 0; k < weights_.size(); ++k) {
    if (!sizes_.empty() && in_pass_[k] == sizes_[k]) continue;
    const double error = weights_[k] * i - static_cast<double>(in_pass_[k]);
    if (best >= 0 && !(error > most)) continue;
    best = static_cast<int64_t>(k);
    most = error;
  }
  return best;
}

BlendPick BlendOrder::next() {
  if (ended()) {
    throw Error(ExitCode::data, fmt::format("the blend order has {} samples; the run wants more", position_), "data.blend_cache",
        "make the cache for a longer run, or leave out blend_cache");
  }
  if (repeat_ && pass_position_ == pass_samples_) {
    std::fill(in_pass_.begin(), in_pass_.end(), 0);
    pass_position_ = 0;
  }
  const int64_t source = pick();
  OCTET_CHECK(source >= 0 && source < sources(), "source {} of {}", source, sources());
  if (!in_pass_.empty()) ++in_pass_[static_cast<size_t>(source)];
  ++pass_position_;
  ++position_;
  return {source, taken_[static_cast<size_t>(source)]++};
}

void BlendOrder::skip_to(int64_t position) {
  OCTET_CHECK(position >= position_, "from sample {} back to {}", position_, position);
  while (position_ < position) next();
}

}  // namespace octet::data
