// QuantRegistry against a straightforward model of delayed scaling, and its accounts.
#include "recipe/quant_registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "core/error.h"
#include "core/philox.h"

using namespace octet;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

QuantSpec delayed_spec(Dtype format, int margin = 0, bool pow2 = false) {
  QuantSpec s;
  s.format = format;
  s.scaling = Scaling::delayed;
  s.margin = margin;
  s.scale = pow2 ? ScaleKind::pow2 : ScaleKind::fp32;
  return s;
}

// The update rule as words say it: remember the newest L finite amaxes that are not 0, divide by the largest (or newest) of them.
struct Model {
  double format_max;
  int margin;
  bool pow2, most_recent;
  size_t length;
  std::deque<float> history;
  float scale = 1.0f;

  void update(float staged) {
    if (!(staged > 0) || std::isinf(staged)) return;
    history.push_back(staged);
    if (history.size() > length) history.pop_front();
    const float window = most_recent ? staged : *std::max_element(history.begin(), history.end());
    const double quotient = std::ldexp(format_max, -margin) / static_cast<double>(window);
    scale = static_cast<float>(std::min(quotient, static_cast<double>(std::numeric_limits<float>::max())));
    if (pow2) scale = std::ldexp(1.0f, std::ilogb(scale));
  }
};

// Stages `amax` at the site and closes the step, as the trainer does.
void step(QuantRegistry& q, int site, float amax) {
  *q.target(site).amax = amax;
  q.update_scales();
  q.begin_step(0);
}

// Rising, falling, unchanged, absent, non-finite, tiny and large.
const std::vector<float> staged_values = {1.0f, 3.0f, 0.5f,  0.0f,  0.25f, inf,   0.25f,  nan,    0.125f, 0.0f,
                                          0.0f, 7.0f, 1e-3f, 1e-3f, 1e-3f, 1e-3f, 1e-40f, 448.0f, 3e38f,  1e-6f};

TEST(registry, delayed_updates_follow_the_model) {
  for (int64_t length : {1, 2, 3, 16}) {
    for (bool most_recent : {false, true}) {
      for (int margin : {0, 1, 4, -2}) {
        for (bool pow2 : {false, true}) {
          for (const auto& [format, max] : {std::pair{Dtype::e4m3, 448.0}, std::pair{Dtype::e5m2, 57344.0}}) {
            QuantRegistry q;
            q.set_history(length, most_recent);
            const int site = q.add("layers.0.attn.qkv/x", Role::x, delayed_spec(format, margin, pow2), delayed_spec(format, margin, pow2));
            Model model{max, margin, pow2, most_recent, static_cast<size_t>(length), {}};
            EXPECT_EQ(*q.target(site).stored_scale, 1.0f);  // before any history
            for (size_t i = 0; i < staged_values.size(); ++i) {
              step(q, site, staged_values[i]);
              model.update(staged_values[i]);
              ASSERT_EQ(*q.target(site).stored_scale, model.scale)
                  << "step " << i << ", L " << length << ", margin " << margin << (most_recent ? ", most_recent" : ", max") << (pow2 ? ", pow2" : "");
              ASSERT_EQ(q.scales()[0], model.scale);
            }
            // The state that goes into a checkpoint: oldest first, zeros where nothing was seen yet.
            std::vector<float> want(static_cast<size_t>(length) - model.history.size(), 0.0f);
            want.insert(want.end(), model.history.begin(), model.history.end());
            EXPECT_EQ(q.history(), want);
          }
        }
      }
    }
  }
}

TEST(registry, published_sequence) {
  QuantRegistry q;
  q.set_history(3, false);
  const int site = q.add("x", Role::x, delayed_spec(Dtype::e4m3), delayed_spec(Dtype::e4m3));
  const std::pair<float, float> sequence[] = {{2.0f, 224.0f}, {4.0f, 112.0f}, {1.0f, 112.0f}, {1.0f, 112.0f},
                                              {1.0f, 448.0f}, {0.0f, 448.0f}, {8.0f, 56.0f}};
  for (const auto& [amax, scale] : sequence) {
    step(q, site, amax);
    EXPECT_EQ(q.scales()[0], scale) << amax;
  }
}

TEST(registry, absent_and_non_finite_amaxes_leave_the_history_alone) {
  QuantRegistry q;
  q.set_history(4, false);
  const int site = q.add("x", Role::x, delayed_spec(Dtype::e4m3), delayed_spec(Dtype::e4m3));
  step(q, site, 2.0f);
  step(q, site, 1.0f);
  const std::vector<float> history = q.history();
  EXPECT_EQ(history, (std::vector<float>{0, 0, 2, 1}));
  for (float amax : {0.0f, inf, nan, -inf}) {
    step(q, site, amax);
    EXPECT_EQ(q.history(), history) << amax;
    EXPECT_EQ(q.scales()[0], 224.0f) << amax;
  }
}

TEST(registry, sites_do_not_disturb_each_other) {
  QuantRegistry q;
  q.set_history(2, false);
  const int a = q.add("a", Role::x, delayed_spec(Dtype::e4m3), delayed_spec(Dtype::e4m3));
  QuantSpec current;
  current.format = Dtype::e4m3;
  const int b = q.add("b", Role::w, current, current);
  const int c = q.add("c", Role::dy, delayed_spec(Dtype::e5m2), delayed_spec(Dtype::e5m2));
  *q.target(a).amax = 4.0f;
  *q.target(b).amax = 8.0f;
  *q.target(c).amax = 2.0f;
  q.update_scales();
  EXPECT_EQ(q.scales(), (std::vector<float>{112.0f, 1.0f, 28672.0f}));
  EXPECT_EQ(q.history(), (std::vector<float>{0, 4, 0, 0, 0, 2}));
  EXPECT_EQ(q.site_names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(q.sites(), 3);
  EXPECT_TRUE(q.has_state());
}

// Steps `numbers` with these amaxes at one site.
void run_steps(QuantRegistry& q, int site, int64_t first, const std::vector<float>& amaxes) {
  for (float a : amaxes) {
    *q.target(site).amax = a;
    q.update_scales();
    q.begin_step(++first);
  }
}

QuantSpec static_spec(Dtype format, float amax, int margin = 0) {
  QuantSpec s = delayed_spec(format, margin);
  s.scaling = Scaling::fixed;
  s.static_amax = amax;
  return s;
}

TEST(registry, static_constants_never_move) {
  QuantRegistry q;
  q.set_calibration(3);
  const int site = q.add("m/x", Role::x, static_spec(Dtype::e4m3, 100.0f), static_spec(Dtype::e4m3, 100.0f));
  const int half = q.add("m/w", Role::w, static_spec(Dtype::e4m3, 100.0f, 1), static_spec(Dtype::e4m3, 100.0f, 1));
  EXPECT_EQ(q.scales(), (std::vector<float>{448.0f / 100.0f, 224.0f / 100.0f}));
  EXPECT_TRUE(q.uses_stored_scale(site) && q.uses_stored_scale(half));
  EXPECT_FALSE(q.has_state());
  run_steps(q, site, 0, {1.0f, 500.0f, 2.0f});
  EXPECT_EQ(q.scales()[0], 448.0f / 100.0f);
  q.restore({1.0f, 1.0f}, std::vector<float>(q.history().size(), 7.0f));   // a checkpoint of another constant
  EXPECT_EQ(q.scales()[0], 448.0f / 100.0f);
}

TEST(registry, static_scales_freeze_at_the_largest_calibrated_amax) {
  QuantRegistry q;
  q.set_calibration(3);
  const QuantSpec s = static_spec(Dtype::e4m3, 0);
  const int site = q.add("m/x", Role::x, s, s), unseen = q.add("m/w", Role::w, s, s);
  q.begin_step(0);
  EXPECT_TRUE(q.has_state());
  EXPECT_EQ(q.target(site).stored_scale, nullptr);                     // scaled by itself
  run_steps(q, site, 0, {2.0f, 8.0f});
  EXPECT_EQ(q.target(site).stored_scale, nullptr);
  run_steps(q, site, 2, {4.0f});
  ASSERT_NE(q.target(site).stored_scale, nullptr);
  EXPECT_EQ(*q.target(site).stored_scale, 56.0f);
  EXPECT_EQ(q.silent_target(site).stored_scale, q.target(site).stored_scale);
  run_steps(q, site, 3, {1000.0f, inf});
  EXPECT_EQ(q.scales()[0], 56.0f);
  // What calibration never saw goes on by itself until it has been seen.
  EXPECT_EQ(q.target(unseen).stored_scale, nullptr);
  run_steps(q, unseen, 5, {inf, 1.0f, 3.0f});
  EXPECT_EQ(*q.target(unseen).stored_scale, 448.0f);
}

TEST(registry, delayed_scaling_takes_over_calibrated_histories) {
  QuantRegistry q;
  q.set_history(4, false);
  q.set_calibration(2);
  const int site = q.add("m/x", Role::x, delayed_spec(Dtype::e4m3), delayed_spec(Dtype::e4m3));
  q.begin_step(0);
  EXPECT_FALSE(q.uses_stored_scale(site));
  run_steps(q, site, 0, {2.0f, 1.0f});
  ASSERT_TRUE(q.uses_stored_scale(site));
  EXPECT_EQ(*q.target(site).stored_scale, 224.0f);
  run_steps(q, site, 2, {1.0f, 1.0f, 1.0f});
  EXPECT_EQ(q.scales()[0], 448.0f);                                     // 2 has left the window
}

TEST(registry, health_is_gathered_at_its_interval_and_from_matching_modules) {
  QuantRegistry q;
  q.set_health({5, {"layers.*"}});
  QuantSpec tensor;
  tensor.format = Dtype::e4m3;
  QuantSpec rows = tensor;
  rows.block_rows = 1;
  const int shared = q.add("layers.0.mlp.down/x", Role::x, tensor, tensor), both = q.add("layers.0.mlp.down/down_proj/dy", Role::dy, rows, rows);
  const int head = q.add("head/x", Role::x, tensor, tensor);
  q.begin_step(3);
  EXPECT_FALSE(q.health_due());
  EXPECT_EQ(q.target(shared).row_health, nullptr);
  q.begin_step(4);                                                       // step number 5
  EXPECT_TRUE(q.health_due());
  q.target(shared).row_health->merge({10, 0, 3});
  q.target(both).col_health->merge({4, 1, 0});
  q.target(both).col_health->merge({4, 0, 2});
  EXPECT_EQ(q.target(head).row_health, nullptr);
  EXPECT_EQ(q.silent_target(shared).row_health, nullptr);
  const auto entries = q.health();
  ASSERT_EQ(entries.size(), 3u);
  const char* images[] = {"both", "row", "col"};
  for (size_t i = 0; i < 3; ++i) EXPECT_STREQ(entries[i].image, images[i]);
  EXPECT_EQ(entries[0].values.underflow, 3);
  EXPECT_EQ(entries[2].values.elements, 8);
  EXPECT_EQ(entries[2].values.nonfinite, 1);
  EXPECT_EQ(entries[2].site, "layers.0.mlp.down/down_proj/dy");
  q.begin_step(9);
  EXPECT_EQ(q.health()[0].values.elements, 0);
}

TEST(registry, begin_step_forgets_statistics_only) {
  QuantRegistry q;
  q.set_history(2, false);
  const int site = q.add("x", Role::x, delayed_spec(Dtype::e4m3), delayed_spec(Dtype::e4m3));
  *q.target(site).amax = 4.0f;
  *q.target(site).nonfinite = 3;
  q.count(site, Dtype::e4m3, 10);
  q.update_scales();
  q.begin_step(0);
  EXPECT_EQ(*q.target(site).amax, 0.0f);
  EXPECT_EQ(q.nonfinite(), 0);
  EXPECT_EQ(q.first_nonfinite_site(), "");
  EXPECT_EQ(q.scales()[0], 112.0f);
  ASSERT_EQ(q.totals().size(), 1u);
  EXPECT_EQ(q.totals()[0].elements, 10);
}

TEST(registry, non_finite_counts_name_the_first_site) {
  QuantRegistry q;
  QuantSpec s;
  s.format = Dtype::e4m3;
  for (const char* name : {"a/x", "b/x", "b/dy"}) q.add(name, Role::x, s, s);
  EXPECT_EQ(q.first_nonfinite_site(), "");
  *q.target(2).nonfinite += 5;
  EXPECT_EQ(q.first_nonfinite_site(), "b/dy");
  *q.target(1).nonfinite += 2;
  EXPECT_EQ(q.first_nonfinite_site(), "b/x");
  EXPECT_EQ(q.nonfinite(), 7);
}

TEST(registry, silent_targets_share_scale_and_random_stream_only) {
  QuantRegistry q;
  const int site = q.add("layers.3.mlp.down/x", Role::x, delayed_spec(Dtype::e4m3), delayed_spec(Dtype::e4m3));
  const QuantTarget loud = q.target(site), silent = q.silent_target(site);
  EXPECT_EQ(silent.stored_scale, loud.stored_scale);
  EXPECT_EQ(silent.site_hash, loud.site_hash);
  EXPECT_EQ(silent.site_hash, fnv1a64("layers.3.mlp.down/x"));
  EXPECT_EQ(silent.amax, nullptr);
  EXPECT_EQ(silent.nonfinite, nullptr);
  EXPECT_NE(loud.amax, nullptr);
  EXPECT_NE(loud.nonfinite, nullptr);
}

TEST(registry, totals_by_role_and_format) {
  QuantRegistry q;
  QuantSpec s;
  s.format = Dtype::e4m3;
  const int x = q.add("x", Role::x, s, s), w = q.add("w", Role::w, s, s), dy = q.add("dy", Role::dy, s, s), x2 = q.add("x2", Role::x, s, s);
  EXPECT_TRUE(q.totals().empty());
  q.count(x, Dtype::e4m3, 100);
  q.count(x2, Dtype::e4m3, 11);
  q.count(dy, Dtype::e5m2, 7);
  q.count(w, Dtype::e4m3, int64_t{1} << 40);
  q.count(dy, Dtype::e4m3, 2);
  EXPECT_TRUE(q.add_total("w/e4m3", 5));
  EXPECT_TRUE(q.add_total("x/e2m1", 9));
  for (const char* wrong : {"", "w", "w/", "/e4m3", "w/bf16", "w/f32", "w/e8m0", "v/e4m3", "w/e4m3 ", "w/e9m9"})
    EXPECT_FALSE(q.add_total(wrong, 1)) << wrong;
  std::vector<std::string> text;
  for (const auto& t : q.totals()) text.push_back(std::string(name(t.role)) + "/" + std::string(name(t.format)) + " " + std::to_string(t.elements));
  std::sort(text.begin(), text.end());
  EXPECT_EQ(text, (std::vector<std::string>{"dy/e4m3 2", "dy/e5m2 7", "w/e4m3 1099511627781", "x/e2m1 9", "x/e4m3 111"}));
}

TEST(registry, misuse_is_an_internal_error) {
  QuantRegistry q;
  QuantSpec s;
  q.add("x", Role::x, s, s);
  EXPECT_THROW(q.add("x", Role::dy, s, s), Error);
  EXPECT_THROW(q.set_history(8, false), Error);  // sites exist already
  QuantRegistry empty;
  EXPECT_THROW(empty.set_history(0, false), Error);
  EXPECT_FALSE(q.has_state());
}

// Images made at the end of a step for the next one.
TEST(registry, early_images_count_for_the_step_that_reads_them) {
  QuantRegistry q;
  q.set_health({4, {"a"}});
  const QuantSpec current = block_spec(Dtype::e4m3, 128, 128);
  QuantSpec delayed = block_spec(Dtype::e4m3, 0, 0), stochastic = current;
  delayed.scaling = Scaling::delayed;
  stochastic.rounding = Rounding::stochastic;
  const int w = q.add("a/w", Role::w, current, current), other = q.add("b/w", Role::w, current, current), stored = q.add("a/v/w", Role::w, delayed, delayed),
            random = q.add("a/u/w", Role::w, current, stochastic), x = q.add("a/x", Role::x, current, current);
  for (int64_t step = 0; step < 8; ++step) {
    EXPECT_EQ(q.made_early(w, step), step % 4 != 3) << "statistics of step number 4 and 8";
    EXPECT_TRUE(q.made_early(other, step)) << "none of b are gathered";
    for (const int site : {stored, random, x}) EXPECT_FALSE(q.made_early(site, step)) << site;
  }
  q.begin_step(0);
  *q.early_target(w).amax = 7.0f;
  *q.early_target(w).nonfinite = 3;
  *q.target(w).amax = 2.0f;
  EXPECT_EQ(*q.target(w).amax, 2.0f);
  EXPECT_EQ(q.nonfinite(), 0);
  EXPECT_EQ(q.early_target(w).site_hash, q.target(w).site_hash);
  q.begin_step(1);
  EXPECT_EQ(*q.target(w).amax, 7.0f);
  EXPECT_EQ(q.nonfinite(), 3);
  EXPECT_EQ(q.first_nonfinite_site(), "a/w");
  q.begin_step(2);
  EXPECT_EQ(*q.target(w).amax, 0.0f);
  EXPECT_EQ(q.nonfinite(), 0);
}

}  // namespace
