#include "train/health_lines.h"

#include <fmt/format.h>

namespace octet {
namespace {

nlohmann::json six_digits(double value) { return std::isfinite(value) ? nlohmann::json(std::stod(fmt::format("{:.6g}", value))) : nlohmann::json(); }
nlohmann::json six_digits(const std::optional<double>& value) { return value ? six_digits(*value) : nlohmann::json(); }

}  // namespace

nlohmann::json health_sites(const std::vector<QuantRegistry::HealthEntry>& entries) {
  nlohmann::json sites = nlohmann::json::array();
  for (const auto& e : entries) {
    const size_t slash = e.site.find('/');
    sites.push_back({{"name", e.site + "." + e.image},
                     {"module", e.site.substr(0, slash)},
                     {"tensor", e.site.substr(slash + 1)},
                     {"role", name(e.role)},
                     {"image", e.image},
                     {"format", std::string(name(e.format))}});
  }
  return sites;
}

nlohmann::json health_values(const std::vector<QuantRegistry::HealthEntry>& entries) {
  nlohmann::json out = nlohmann::json::object();
  for (const char* key : {"elements", "amax", "scale_min", "scale_max", "underflow", "saturation", "sqnr_db", "cosine", "nonfinite"}) out[key] = nlohmann::json::array();
  for (const auto& e : entries) {
    const ImageHealth& h = e.values;
    const bool scaled = h.scale_max > 0;
    out["elements"].push_back(h.elements);
    out["nonfinite"].push_back(h.nonfinite);
    out["amax"].push_back(six_digits(h.amax));
    out["scale_min"].push_back(scaled ? six_digits(h.scale_min) : nlohmann::json());
    out["scale_max"].push_back(scaled ? six_digits(h.scale_max) : nlohmann::json());
    out["underflow"].push_back(six_digits(h.underflow_share()));
    out["saturation"].push_back(six_digits(h.saturated_share()));
    out["sqnr_db"].push_back(six_digits(h.sqnr_db()));
    out["cosine"].push_back(six_digits(h.cosine()));
  }
  return out;
}

}  // namespace octet
