// FP8 health of a run: the numerics statistics of its quantized tensors over steps, from the lines "stats" of metrics.jsonl.
//
//   {"kind":"event","event":"stats_sites","sites":[{"name","module","tensor","role","image","format"}, ...]}
//   {"kind":"stats","step":N,"elements":[..],"amax":[..],"underflow":[..],"saturation":[..],"sqnr_db":[..],"nonfinite":[..], ...}
//
// The arrays follow the order of the latest stats_sites event. underflow and saturation are fractions of the elements, sqnr_db is in dB;
// null is undefined (all zero, or exact). Other arrays of the line (scale_min, scale_max, cosine) are not shown by the report and not kept.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace octet::report {

enum class HealthMetric { underflow, saturation, sqnr_db, amax, nonfinite };
constexpr std::array<HealthMetric, 5> kHealthMetrics{HealthMetric::underflow, HealthMetric::saturation, HealthMetric::sqnr_db, HealthMetric::amax,
                                                     HealthMetric::nonfinite};
const char* health_key(HealthMetric metric);  // "underflow", ... as in the lines

struct HealthSite {
  std::string name, module, tensor, role, image, format;
};

struct HealthColumn {
  int64_t step = 0;
  size_t layout = 0;                                              // which list of sites the values follow
  std::array<std::vector<float>, kHealthMetrics.size()> values;  // by metric; NaN: undefined; empty: not in the line
};

class Health {
 public:
  // Both throw Error(data) that names `where` for anything that is not as above; a stats line without sites before it too.
  void add_sites(const nlohmann::json& line, const std::string& where);
  void add_stats(const nlohmann::json& line, const std::string& where);
  // A train line was read. When its step is not beyond the one before, the run was resumed: columns of the earlier life from there on go.
  void train_line(int64_t step, bool resumed);

  bool empty() const { return columns_.empty(); }
  const std::vector<HealthSite>& sites() const { return sites_; }  // the union over layouts, in order of appearance
  const std::vector<HealthColumn>& columns() const { return columns_; }
  // Value of a site (index into sites()) in a column; NaN where there is none.
  float value(const HealthColumn& column, size_t site, HealthMetric metric) const;

 private:
  std::vector<HealthSite> sites_;
  std::map<std::string, size_t> site_of_name_;
  std::vector<std::unordered_map<size_t, size_t>> layouts_;  // site -> place in the arrays
  std::vector<HealthColumn> columns_;
  size_t columns_before_train_line_ = 0;
};

// Extremes of one site over its run; NaN where never defined.
struct HealthExtremes {
  double underflow = 0, saturation = 0, sqnr_db = 0, amax = 0;  // largest, largest, smallest, largest
  double nonfinite = 0;                                         // sum
};
HealthExtremes extremes(const Health& health, size_t site);

// Columns pooled to at most `count`, each over neighbouring steps, keeping the worst: the largest underflow, saturation, amax and count of
// non-finite elements, the smallest SQNR.
struct PooledHealth {
  std::vector<int64_t> first_step, last_step;
  std::vector<size_t> sites;  // rows, indices into Health::sites()
  // [metric][row][column]; NaN: undefined
  std::array<std::vector<std::vector<float>>, kHealthMetrics.size()> values;
};
// At most `max_sites` rows: those with the worst saturation, underflow and SQNR, in the order of the run.
PooledHealth pool(const Health& health, size_t count, size_t max_sites);

}  // namespace octet::report
