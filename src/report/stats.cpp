#include "report/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace octet::stats {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Continued fraction of I_x(a, b) by the modified Lentz method; converges fast for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr double tiny = 1e-300;
  const auto guard = [](double v) { return std::abs(v) < tiny ? tiny : v; };
  double c = 1, d = 1 / guard(1 - (a + b) * x / (a + 1)), h = d;
  for (int i = 1; i < 10000; ++i) {
    const double m = i;
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / guard(1 + even * d);
    c = guard(1 + even / c);
    h *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / guard(1 + odd * d);
    c = guard(1 + odd / c);
    h *= d * c;
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return h;
}

double half_width(double stddev, int64_t n) {
  return student_t_quantile(0.975, static_cast<double>(n - 1)) * stddev / std::sqrt(static_cast<double>(n));
}

}  // namespace

double mean(const std::vector<double>& x) {
  if (x.empty()) return kNan;
  double sum = 0;
  for (double v : x) sum += v;
  return sum / static_cast<double>(x.size());
}

double sample_stddev(const std::vector<double>& x) {
  if (x.size() < 2) return kNan;
  const double m = mean(x);
  double sum = 0;
  for (double v : x) sum += (v - m) * (v - m);
  return std::sqrt(sum / static_cast<double>(x.size() - 1));
}

double root_mean_square(const std::vector<double>& x) {
  if (x.empty()) return kNan;
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

double median(std::vector<double> x) {
  std::erase_if(x, [](double v) { return !std::isfinite(v); });
  if (x.empty()) return kNan;
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  if (x.size() % 2) return *middle;
  return (*middle + *std::max_element(x.begin(), middle)) / 2;
}

double incomplete_beta(double a, double b, double x) {
  OCTET_CHECK(a > 0 && b > 0 && x >= 0 && x <= 1, "incomplete_beta({}, {}, {})", a, b, x);
  if (x == 0 || x == 1) return x;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double student_t_quantile(double p, double df) {
  OCTET_CHECK(p > 0 && p < 1 && df >= 1, "student_t_quantile({}, {})", p, df);
  if (p == 0.5) return 0;
  if (p < 0.5) return -student_t_quantile(1 - p, df);
  const auto tail = [df](double t) { return incomplete_beta(df / 2, 0.5, df / (df + t * t)) / 2; };  // P(T > t)
  double low = 0, high = 1;
  while (tail(high) > 1 - p && high < 1e300) high *= 2;
  while (true) {
    const double t = low + (high - low) / 2;
    if (t <= low || t >= high) return t;
    (tail(t) > 1 - p ? low : high) = t;
  }
}

std::optional<Interval> t_interval(const std::vector<double>& x, double level) {
  if (x.size() < 2) return std::nullopt;
  const double n = static_cast<double>(x.size()), m = mean(x);
  const double half = student_t_quantile((1 + level) / 2, n - 1) * sample_stddev(x) / std::sqrt(n);
  return Interval{m, m - half, m + half};
}

std::optional<int64_t> pairs_to_resolve(double stddev, double distance, int64_t have) {
  constexpr int64_t limit = 1000000;
  int64_t high = std::max<int64_t>(have + 1, 2), low = high - 1;  // half_width falls with n: bracket, then bisect
  while (!(half_width(stddev, high) < distance)) {
    if (high >= limit) return std::nullopt;
    low = high;
    high = std::min(limit, high * 2);
  }
  while (high - low > 1) {
    const int64_t n = low + (high - low) / 2;
    (half_width(stddev, n) < distance ? high : low) = n;
  }
  return high;
}

}  // namespace octet::stats
