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

namespace {

// The scale that maps `amax` to the format's largest value, as far below as the margin says.
float stored_scale(const QuantSpec& s, float amax, float old) {
  return delayed_scale(amax, format_info(s.format).max_finite, s.margin, old, s.scale == ScaleKind::pow2, s.overflow_scale);
}

}  // namespace

int QuantRegistry::add(std::string site_name, Role role, const QuantSpec& row, const QuantSpec& col, bool copy) {
  for (const auto& s : sites_) OCTET_CHECK(s.name != site_name, "quantization site {} registered twice", site_name);
  const std::string module = site_name.substr(0, site_name.find('/'));
  const auto& globs = health_options_.modules;
  const bool watched = health_options_.interval > 0 && std::any_of(globs.begin(), globs.end(), [&](const std::string& g) { return glob_match(g, module); });
  sites_.push_back({std::move(site_name), role, row, col, watched, copy, false});
  health_.resize(2 * sites_.size());
  const QuantSpec& spec = sites_.back().stored();
  scale_.push_back(spec.stored_scale() && spec.static_amax > 0 ? stored_scale(spec, spec.static_amax, 1.0f) : 1.0f);
  amax_.push_back(0.0f);
  nonfinite_.push_back(0);
  early_amax_.push_back(0.0f);
  early_nonfinite_.push_back(0);
  history_.resize(sites_.size() * static_cast<size_t>(length_), 0.0f);
  return static_cast<int>(sites_.size()) - 1;
}

void QuantRegistry::set_history(int64_t length, bool most_recent) {
  OCTET_CHECK(sites_.empty() && length >= 1, "history length {} must be set before sites are registered", length);
  length_ = length;
  most_recent_ = most_recent;
}

void QuantRegistry::place(Arena& arena) {
  device_.scale = arena.alloc_array<float>(sites());
  device_.amax = arena.alloc_array<float>(sites());
  device_.nonfinite = arena.alloc_array<int64_t>(sites());
  device_.early_amax = arena.alloc_array<float>(sites());
  device_.early_nonfinite = arena.alloc_array<int64_t>(sites());
  device_.health = arena.alloc_array<ImageHealth>(2 * sites());
}

std::vector<QuantRegistry::Mirror> QuantRegistry::to_device() {
  if (!device_.scale) return {};
  std::vector<Mirror> all = from_device();
  all.push_back({scale_.data(), device_.scale, scale_.size() * sizeof(float)});
  return all;
}

std::vector<QuantRegistry::Mirror> QuantRegistry::from_device() {
  if (!device_.scale) return {};
  std::vector<Mirror> all{{amax_.data(), device_.amax, amax_.size() * sizeof(float)},
                          {nonfinite_.data(), device_.nonfinite, nonfinite_.size() * sizeof(int64_t)},
                          {early_amax_.data(), device_.early_amax, early_amax_.size() * sizeof(float)},
                          {early_nonfinite_.data(), device_.early_nonfinite, early_nonfinite_.size() * sizeof(int64_t)}};
  if (due_) all.push_back({health_.data(), device_.health, health_.size() * sizeof(ImageHealth)});
  return all;
}

QuantTarget QuantRegistry::target(int site) {
  const auto i = static_cast<size_t>(site);
  const bool placed = device_.scale != nullptr;
  float *scale = placed ? device_.scale : scale_.data(), *amax = placed ? device_.amax : amax_.data();
  int64_t* nonfinite = placed ? device_.nonfinite : nonfinite_.data();
  QuantTarget t{uses_stored_scale(site) ? scale + i : nullptr, amax + i, nonfinite + i, fnv1a64(sites_[i].name)};
  const bool measured = !sites_[i].copy && (sites_[i].role != Role::w || (sites_[i].by_rows ? first_replica_ : counts_weights_));
  if (!measured) t.nonfinite = nullptr;
  if (due_ && sites_[i].watched && measured) {
    ImageHealth* health = placed ? device_.health : health_.data();
    t.row_health = health + 2 * i;
    // Two images of the same bytes are measured once.
    if (!images_share_bytes(sites_[i].row, sites_[i].col)) t.col_health = health + 2 * i + 1;
  }
  return t;
}

void QuantRegistry::set_ranks(int64_t ranks, bool counts_weights, bool first_replica) {
  ranks_ = ranks;
  counts_weights_ = counts_weights;
  first_replica_ = first_replica;
}

Tensor QuantRegistry::staged_amax() { return {device_.scale ? device_.amax : amax_.data(), Dtype::f32, {sites()}}; }

Tensor QuantRegistry::staged_nonfinite() { return {device_.scale ? device_.nonfinite : nonfinite_.data(), Dtype::i64, {sites()}}; }

QuantTarget QuantRegistry::early_target(int site) {
  const auto i = static_cast<size_t>(site);
  const bool placed = device_.scale != nullptr;
  QuantTarget t;
  t.amax = (placed ? device_.early_amax : early_amax_.data()) + i;
  t.nonfinite = (placed ? device_.early_nonfinite : early_nonfinite_.data()) + i;
  t.site_hash = fnv1a64(sites_[i].name);
  return t;
}

bool QuantRegistry::made_early(int site, int64_t step) const {
  const Site& s = sites_[static_cast<size_t>(site)];
  const bool rounds_to_nearest = s.row.rounding == Rounding::nearest && s.col.rounding == Rounding::nearest;
  return s.role == Role::w && !s.stored().stored_scale() && rounds_to_nearest && !(s.watched && gathers_statistics(step));
}

bool QuantRegistry::uses_stored_scale(int site) const {
  const auto i = static_cast<size_t>(site);
  const QuantSpec& s = sites_[i].stored();
  if (!s.stored_scale()) return false;
  if (s.static_amax > 0) return true;
  if (s.scaling == Scaling::delayed && calibration_steps_ == 0) return true;
  return step_ >= calibration_steps_ && history_of(i)[length_ - 1] > 0;
}

QuantTarget QuantRegistry::silent_target(int site) {
  QuantTarget t = target(site);
  t.amax = nullptr;
  t.nonfinite = nullptr;
  t.row_health = t.col_health = nullptr;
  return t;
}

void QuantRegistry::begin_step(int64_t step) {
  step_ = step;
  due_ = gathers_statistics(step);
  amax_ = early_amax_;
  nonfinite_ = early_nonfinite_;
  std::fill(early_amax_.begin(), early_amax_.end(), 0.0f);
  std::fill(early_nonfinite_.begin(), early_nonfinite_.end(), 0);
  if (due_) std::fill(health_.begin(), health_.end(), ImageHealth{});
}

void QuantRegistry::count(int site, Dtype format, int64_t n) {
  const Role role = sites_[static_cast<size_t>(site)].role;
  elements_[static_cast<size_t>(role)][static_cast<size_t>(format)] += role == Role::w ? n : n * ranks_;
}

QuantRegistry::Counts QuantRegistry::counted_since(const Counts& before) const {
  Counts more = elements_;
  for (size_t r = 0; r < more.size(); ++r) {
    for (size_t f = 0; f < more[r].size(); ++f) more[r][f] -= before[r][f];
  }
  return more;
}

void QuantRegistry::add(const Counts& counts) {
  for (size_t r = 0; r < counts.size(); ++r) {
    for (size_t f = 0; f < counts[r].size(); ++f) elements_[r][f] += counts[r][f];
  }
}

std::vector<bool> QuantRegistry::work() const {
  std::vector<bool> bits{due_};
  for (int64_t i = 0; i < sites(); ++i) bits.push_back(uses_stored_scale(static_cast<int>(i)));
  return bits;
}

void QuantRegistry::update_scales() {
  for (size_t i = 0; i < sites_.size(); ++i) {
    const QuantSpec& s = sites_[i].stored();
    if (!s.stored_scale() || s.static_amax > 0) continue;
    const float staged = amax_[i];
    if (staged == 0.0f || !std::isfinite(staged)) continue;
    float* h = history_of(i);
    if (s.scaling == Scaling::fixed) {
      if (uses_stored_scale(static_cast<int>(i))) continue;
      h[length_ - 1] = std::max(h[length_ - 1], staged);
      scale_[i] = stored_scale(s, h[length_ - 1], scale_[i]);
      continue;
    }
    std::copy(h + 1, h + length_, h);
    h[length_ - 1] = staged;
    scale_[i] = stored_scale(s, most_recent_ ? staged : *std::max_element(h, h + length_), scale_[i]);
  }
}

void QuantRegistry::restore(const std::vector<float>& scales, const std::vector<float>& history) {
  OCTET_CHECK(scales.size() == scale_.size() && history.size() == history_.size(), "saved scales of {} sites for {}", scales.size(), scale_.size());
  for (size_t i = 0; i < sites_.size(); ++i) {
    if (sites_[i].stored().static_amax == 0) scale_[i] = scales[i];
  }
  history_ = history;
}

std::vector<QuantRegistry::HealthEntry> QuantRegistry::health() const {
  std::vector<HealthEntry> out;
  for (size_t i = 0; i < sites_.size(); ++i) {
    const Site& s = sites_[i];
    if (!s.watched) continue;
    const bool shared = images_share_bytes(s.row, s.col);
    if (s.row.quantized()) out.push_back({s.name, s.role, shared ? "both" : "row", s.row.format, health_[2 * i]});
    if (s.col.quantized() && !shared) out.push_back({s.name, s.role, "col", s.col.format, health_[2 * i + 1]});
  }
  return out;
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

bool QuantRegistry::has_state() const {
  return std::any_of(sites_.begin(), sites_.end(), [](const Site& s) { return s.stored().stored_scale() && s.stored().static_amax == 0; });
}

}  // namespace octet
