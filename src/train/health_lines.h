// FP8 health statistics as metrics.jsonl has them (docs/numerics.md, "Health statistics"):
//
//   {"kind":"event","event":"stats_sites","sites":[{"name","module","tensor","role","image","format"}, ...]}    when a run starts or goes on
//   {"kind":"stats","step",KEY:[...], ...}                                                                      arrays in the order of the latest stats_sites
// KEY: elements amax scale_min scale_max underflow saturation sqnr_db cosine nonfinite. underflow and saturation are shares of the elements; null
// where a value is undefined. Numbers are rounded to six digits.
#pragma once
#include <nlohmann/json.hpp>
#include <vector>

#include "recipe/quant_registry.h"

namespace octet {

nlohmann::json health_sites(const std::vector<QuantRegistry::HealthEntry>& entries);
nlohmann::json health_values(const std::vector<QuantRegistry::HealthEntry>& entries);

}  // namespace octet
