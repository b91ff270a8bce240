// Directional derivatives of every parameter tensor: (L(w + e d) - L(w - e d)) / 2e against <gradient, d>, 20 random directions each.
// The loss is evaluated by the forward-only path, so forward, evaluation and backward must agree.
#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.h"
#include "grad/reference_case.h"

namespace octet::test {
namespace {

constexpr int directions = 20;
constexpr double slope_tolerance = 1e-3;

double loss_at(Engine& engine, Param& p, const std::vector<float>& origin, const std::vector<double>& d, double e, const ReferenceCase& c) {
  float* w = p.master.as<float>();
  for (size_t i = 0; i < origin.size(); ++i) w[i] = static_cast<float>(origin[i] + e * d[i]);
  engine.weights_loaded();
  return engine.evaluate({c.batch});
}

class Directional : public testing::TestWithParam<std::string> {};

TEST_P(Directional, EveryParameter) {
  const ReferenceCase c = load_reference_case(GetParam());
  Engine engine(c.config);
  set_weights(engine, c);
  engine.step(split_batch(c, c.batch.samples), 0);
  set_weights(engine, c);  // undo the update; gradients stay
  for (const auto& p : engine.model().params()) {
    const auto n = static_cast<size_t>(p->whole.elements());
    const std::vector<float> origin(p->master.as<float>(), p->master.as<float>() + n);
    double norm_g = 0, norm_w = 0;
    for (size_t i = 0; i < n; ++i) {
      norm_g += static_cast<double>(p->grad.as<float>()[i]) * p->grad.as<float>()[i];
      norm_w += static_cast<double>(origin[i]) * origin[i];
    }
    const double step = 1e-2 * (std::sqrt(norm_w / static_cast<double>(n)) + 1e-2);
    for (int k = 0; k < directions; ++k) {
      // Half of each direction is the gradient itself, so that the derivative is never lost in rounding.
      const Philox rng(static_cast<uint64_t>(k), RngPurpose::init, p->name);
      std::vector<double> d(n);
      double along = 0;
      for (size_t i = 0; i < n; ++i) {
        const double g = p->grad.as<float>()[i] / std::sqrt(norm_g / static_cast<double>(n) + 1e-30);
        d[i] = rng.normal(i) + g;
        along += d[i] * static_cast<double>(p->grad.as<float>()[i]);
      }
      const double e = step / 4;
      // Fourth-order central difference.
      const double near = loss_at(engine, *p, origin, d, e, c) - loss_at(engine, *p, origin, d, -e, c);
      const double far = loss_at(engine, *p, origin, d, 2 * e, c) - loss_at(engine, *p, origin, d, -2 * e, c);
      const double measured = (8 * near - far) / (12 * e);
      EXPECT_NEAR(measured, along, slope_tolerance * std::abs(along) + 2e-5) << c.name << ", " << p->name << ", direction " << k;
    }
    loss_at(engine, *p, origin, std::vector<double>(n, 0.0), 0.0, c);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Directional, testing::Values("gqa", "tied", "qk_norm", "llama3_rope", "partial_rotary", "qkv_bias", "document_mask"),
                         [](const auto& test_case) { return test_case.param; });

}  // namespace
}  // namespace octet::test
