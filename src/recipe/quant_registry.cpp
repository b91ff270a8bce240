#include "recipe/quant_registry.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/philox.h"
#include "numerics/formats.h"
#include "numerics/scale.h"

namespace octet {

const char* name(Role r) {
  constexpr const char* names[] = {"x", "w", "dy"};
  return names[static_cast<size_t>(r)];
}

int QuantRegistry::add(std::string site_name, Role role, const QuantSpec& spec) {
  for (const auto& s : sites_) OCTET_CHECK(s.name != site_name, "quantization site {} registered twice", site_name);
  sites_.push_back({std::move(site_name), role, spec, spec.quantized() && spec.scaling == Scaling::delayed});
  scale_.push_back(1.0f);
  amax_.push_back(0.0f);
  nonfinite_.push_back(0);
  history_.resize(sites_.size() * static_cast<size_t>(length_), 0.0f);
  return static_cast<int>(sites_.size()) - 1;
}

void QuantRegistry::set_history(int64_t length, bool most_recent) {
  OCTET_CHECK(sites_.empty() && length >= 1, "history length {} must be set before sites are registered", length);
  length_ = length;
  most_recent_ = most_recent;
}

QuantTarget QuantRegistry::target(int site) {
  const auto i = static_cast<size_t>(site);
  return {&scale_[i], &amax_[i], &nonfinite_[i], fnv1a64(sites_[i].name)};
}

QuantTarget QuantRegistry::silent_target(int site) {
  QuantTarget t = target(site);
  t.amax = nullptr;
  t.nonfinite = nullptr;
  return t;
}

void QuantRegistry::clear_step() {
  std::fill(amax_.begin(), amax_.end(), 0.0f);
  std::fill(nonfinite_.begin(), nonfinite_.end(), 0);
}

void QuantRegistry::count(int site, Dtype format, int64_t n) { elements_[static_cast<size_t>(sites_[static_cast<size_t>(site)].role)][static_cast<size_t>(format)] += n; }

void QuantRegistry::update_delayed() {
  for (size_t i = 0; i < sites_.size(); ++i) {
    if (!sites_[i].delayed) continue;
    const float staged = amax_[i];
    if (staged == 0.0f || !std::isfinite(staged)) continue;
    float* h = history_.data() + i * static_cast<size_t>(length_);
    std::copy(h + 1, h + length_, h);
    h[length_ - 1] = staged;
    const float window = most_recent_ ? staged : *std::max_element(h, h + length_);
    const QuantSpec& s = sites_[i].spec;
    scale_[i] = delayed_scale(window, format_info(s.format).max_finite, s.margin, scale_[i], s.scale == ScaleKind::pow2, s.overflow_scale);
  }
}

int64_t QuantRegistry::nonfinite() const {
  int64_t n = 0;
  for (int64_t c : nonfinite_) n += c;
  return n;
}

std::string QuantRegistry::first_nonfinite_site() const {
  // The order of events in a step: weight images, inputs going forward, output gradients going back. What comes later may only have inherited it.
  const auto first = [&](Role role, bool backwards) -> std::string {
    for (size_t n = 0; n < sites_.size(); ++n) {
      const size_t i = backwards ? sites_.size() - 1 - n : n;
      if (sites_[i].role == role && nonfinite_[i]) return sites_[i].name;
    }
    return {};
  };
  for (const auto& [role, backwards] : {std::pair{Role::w, false}, {Role::x, false}, {Role::dy, true}}) {
    if (std::string found = first(role, backwards); !found.empty()) return found;
  }
  return {};
}

std::vector<QuantRegistry::Total> QuantRegistry::totals() const {
  std::vector<Total> out;
  for (size_t r = 0; r < elements_.size(); ++r) {
    for (size_t f = 0; f < elements_[r].size(); ++f) {
      if (elements_[r][f]) out.push_back({static_cast<Role>(r), static_cast<Dtype>(f), elements_[r][f]});
    }
  }
  return out;
}

bool QuantRegistry::add_total(const std::string& role_and_format, int64_t n) {
  for (size_t r = 0; r < elements_.size(); ++r) {
    for (size_t f = 0; f < elements_[r].size(); ++f) {
      const Dtype format = static_cast<Dtype>(f);
      if (!is_element_format(format) || role_and_format != std::string(octet::name(static_cast<Role>(r))) + "/" + std::string(octet::name(format))) continue;
      elements_[r][f] += n;
      return true;
    }
  }
  return false;
}

std::vector<std::string> QuantRegistry::site_names() const {
  std::vector<std::string> names;
  for (const auto& s : sites_) names.push_back(s.name);
  return names;
}

bool QuantRegistry::has_delayed() const {
  return std::any_of(sites_.begin(), sites_.end(), [](const Site& s) { return s.delayed; });
}

}  // namespace octet
