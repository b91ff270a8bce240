// Small-sample statistics of loss comparisons: Student's t by inversion of the regularized incomplete beta function.
// Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.8 (continued fraction), 26.7.1 (Student's t).
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace octet::stats {

double mean(const std::vector<double>& x);           // NaN when empty
double sample_stddev(const std::vector<double>& x);  // divisor n - 1; NaN for fewer than two values
double root_mean_square(const std::vector<double>& x);
double median(std::vector<double> x);  // of the finite values; NaN when there are none

// I_x(a, b), for a, b > 0 and x in [0, 1].
double incomplete_beta(double a, double b, double x);

// t with P(T <= t) = p for Student's t with `df` >= 1 degrees of freedom; p in (0, 1).
double student_t_quantile(double p, double df);

struct Interval {
  double mean = 0, lower = 0, upper = 0;
};
// Two-sided interval of the mean at confidence `level`, in (0, 1); absent for fewer than two values.
std::optional<Interval> t_interval(const std::vector<double>& x, double level = 0.95);

// Smallest n > have with t(0.975, n - 1) * stddev / sqrt(n) < distance: the number of pairs at which a bound would clear a
// margin `distance` away, if mean and spread stay as they are. Absent beyond 1,000,000.
std::optional<int64_t> pairs_to_resolve(double stddev, double distance, int64_t have);

}  // namespace octet::stats
