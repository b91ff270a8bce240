#include "report/health.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace octet::report {
namespace {

using nlohmann::json;

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kMaxSites = 1'000'000;

[[noreturn]] void bad_line(const std::string& where, const std::string& what) { throw Error(ExitCode::data, what, where, "repair or remove the line"); }

std::string field(const json& site, const char* key, const std::string& where) {
  const auto it = site.find(key);
  if (it == site.end() || !it->is_string()) bad_line(where, fmt::format("a site of \"stats_sites\" has no text \"{}\"", key));
  return it->get<std::string>();
}

double worse(HealthMetric metric, double a, double b) { return metric == HealthMetric::sqnr_db ? std::fmin(a, b) : std::fmax(a, b); }

}  // namespace

const char* health_key(HealthMetric metric) {
  switch (metric) {
    case HealthMetric::underflow: return "underflow";
    case HealthMetric::saturation: return "saturation";
    case HealthMetric::sqnr_db: return "sqnr_db";
    case HealthMetric::amax: return "amax";
    case HealthMetric::nonfinite: return "nonfinite";
  }
  return "";
}

void Health::add_sites(const json& line, const std::string& where) {
  const auto list = line.find("sites");
  if (list == line.end() || !list->is_array()) bad_line(where, "\"stats_sites\" has no array \"sites\"");
  std::unordered_map<size_t, size_t> layout;
  for (const json& item : *list) {
    if (!item.is_object()) bad_line(where, "a site of \"stats_sites\" is not an object");
    HealthSite site{field(item, "name", where), field(item, "module", where), field(item, "tensor", where),
                    field(item, "role", where), field(item, "image", where),  field(item, "format", where)};
    const auto [it, fresh] = site_of_name_.try_emplace(site.name, sites_.size());
    if (fresh && sites_.size() == kMaxSites) bad_line(where, fmt::format("more than {} sites", kMaxSites));
    if (fresh) sites_.push_back(std::move(site));
    if (!layout.emplace(it->second, layout.size()).second) bad_line(where, fmt::format("site \"{}\" is listed twice", it->first));
  }
  layouts_.push_back(std::move(layout));
}

void Health::add_stats(const json& line, const std::string& where) {
  const auto step = line.find("step");
  constexpr int64_t most = int64_t{1} << 53;
  const bool whole = step != line.end() && step->is_number_integer() && !(step->is_number_unsigned() && step->get<uint64_t>() > uint64_t{most});
  if (!whole || step->get<int64_t>() < 0 || step->get<int64_t>() > most) {
    bad_line(where, "\"step\" of the stats line is not a whole number between 0 and 2^53");
  }
  if (layouts_.empty()) bad_line(where, "a stats line without an event \"stats_sites\" before it");
  HealthColumn column;
  column.step = step->get<int64_t>();
  column.layout = layouts_.size() - 1;
  for (const HealthMetric metric : kHealthMetrics) {
    const auto list = line.find(health_key(metric));
    if (list == line.end()) continue;
    if (!list->is_array() || list->size() != layouts_.back().size()) {
      bad_line(where, fmt::format("\"{}\" is not an array of {} values, one a site", health_key(metric), layouts_.back().size()));
    }
    auto& values = column.values[static_cast<size_t>(metric)];
    values.reserve(list->size());
    for (const json& value : *list) {
      if (!value.is_number() && !value.is_null()) bad_line(where, fmt::format("\"{}\" holds something else than numbers and null", health_key(metric)));
      constexpr double largest = std::numeric_limits<float>::max();
      values.push_back(value.is_null() ? kUnknown : static_cast<float>(std::clamp(value.get<double>(), -largest, largest)));
    }
  }
  while (!columns_.empty() && columns_.back().step >= column.step) columns_.pop_back();  // the later line counts
  columns_before_train_line_ = std::min(columns_before_train_line_, columns_.size());
  columns_.push_back(std::move(column));
}

void Health::train_line(int64_t step, bool resumed) {
  if (resumed) {
    const auto end = columns_.begin() + static_cast<std::ptrdiff_t>(columns_before_train_line_);
    columns_.erase(std::find_if(columns_.begin(), end, [&](const HealthColumn& c) { return c.step >= step; }), end);
  }
  columns_before_train_line_ = columns_.size();
}

float Health::value(const HealthColumn& column, size_t site, HealthMetric metric) const {
  const auto& values = column.values[static_cast<size_t>(metric)];
  const auto& layout = layouts_[column.layout];
  const auto it = values.empty() ? layout.end() : layout.find(site);
  return it == layout.end() ? kUnknown : values[it->second];
}

HealthExtremes extremes(const Health& health, size_t site) {
  HealthExtremes out{kUnknown, kUnknown, kUnknown, kUnknown, 0};
  for (const HealthColumn& column : health.columns()) {
    const auto take = [&](double& to, HealthMetric metric) { to = worse(metric, to, health.value(column, site, metric)); };
    take(out.underflow, HealthMetric::underflow);
    take(out.saturation, HealthMetric::saturation);
    take(out.sqnr_db, HealthMetric::sqnr_db);
    take(out.amax, HealthMetric::amax);
    const float n = health.value(column, site, HealthMetric::nonfinite);
    if (std::isfinite(n)) out.nonfinite += static_cast<double>(n);
  }
  return out;
}

PooledHealth pool(const Health& health, size_t count, size_t max_sites) {
  PooledHealth out;
  out.sites.resize(health.sites().size());
  std::iota(out.sites.begin(), out.sites.end(), size_t{0});
  if (out.sites.size() > max_sites) {
    std::vector<double> badness(out.sites.size());
    for (const size_t site : out.sites) {
      const HealthExtremes e = extremes(health, site);
      // An order, not a measure: a percent of saturation weighs as much as ten of underflow or ten decibels.
      badness[site] = (e.nonfinite > 0 ? 1e6 : 0) + 1000 * std::fmax(0, e.saturation) + 100 * std::fmax(0, e.underflow) - std::fmin(100, e.sqnr_db);
    }
    std::stable_sort(out.sites.begin(), out.sites.end(), [&](size_t a, size_t b) { return badness[a] > badness[b]; });
    out.sites.resize(max_sites);
    std::sort(out.sites.begin(), out.sites.end());
  }
  const size_t columns = health.columns().size(), pooled = std::min(count, columns);
  for (auto& rows : out.values) rows.assign(out.sites.size(), std::vector<float>(pooled, kUnknown));
  for (size_t i = 0; i < pooled; ++i) {
    const size_t begin = i * columns / pooled, end = (i + 1) * columns / pooled;
    out.first_step.push_back(health.columns()[begin].step);
    out.last_step.push_back(health.columns()[end - 1].step);
    for (size_t k = begin; k < end; ++k) {
      for (size_t row = 0; row < out.sites.size(); ++row) {
        for (const HealthMetric metric : kHealthMetrics) {
          float& to = out.values[static_cast<size_t>(metric)][row][i];
          to = static_cast<float>(worse(metric, to, health.value(health.columns()[k], out.sites[row], metric)));
        }
      }
    }
  }
  return out;
}

}  // namespace octet::report
