// QuantRegistry: the state and the accounts of quantization, one site a quantized tensor (layers.0.attn.qkv/x, .../q_proj/w, ...).
//
// Sites are registered while the model is built, in a fixed order: a site that happens not to run (an expert without tokens) still has
// its slot, so collectives over the flat arrays never mismatch. Delayed scaling follows Transformer Engine's update rule
// (FP8_SPEC 2.1): the scale in use was computed from earlier steps, the current amax is staged, and update_delayed() runs
// once an optimizer step with the maximum over its micro-batches. Two rules differ on purpose: a non-finite amax never enters the
// history (it would freeze the scale for its length), and a site without a staged amax neither rolls nor changes.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace octet {

enum class Role : uint8_t { x, w, dy };
const char* name(Role r);

// What a quantize kernel reads and writes besides data; null members are not wanted. Plain pointers: they may point to device memory.
struct QuantTarget {
  const float* delayed_scale = nullptr;  // quantize multiplier, delayed scaling only
  float* amax = nullptr;                 // running maximum of |x| since clear_step(); +Inf when any element was not finite
  int64_t* nonfinite = nullptr;          // running count of NaN and Inf elements
  uint64_t site_hash = 0;                // names the random stream of stochastic rounding
  int64_t first_row = 0;                 // number of the matrix' first row in the global batch (0 for weights): same random numbers for any split
};

class QuantRegistry {
 public:
  // Returns the site's number. Names are unique.
  int add(std::string site_name, Role role, const QuantSpec& spec);
  void set_history(int64_t length, bool most_recent);

  QuantTarget target(int site);
  // Without statistics: validation and recomputation must not touch histories or counts.
  QuantTarget silent_target(int site);

  // Forgets staged amaxes and non-finite counts; called between the update and the weight images of the next step.
  void clear_step();
  // Adds n elements quantized to `format` in this run (host-side; sizes are known without looking at data).
  void count(int site, Dtype format, int64_t n);
  // Updates scales and histories of delayed sites from the staged amaxes.
  void update_delayed();

  int64_t nonfinite() const;                       // elements since clear_step()
  std::string first_nonfinite_site() const;        // where it appeared first in the step; empty if none
  struct Total {
    Role role;
    Dtype format;
    int64_t elements;
  };
  std::vector<Total> totals() const;               // elements quantized since construction, by role and format
  // Adds to a total by its name "x/e4m3" (resume); false when there is no such role or format.
  bool add_total(const std::string& role_and_format, int64_t elements);

  // Flat state, for checkpoints: scale [sites], history [sites x length] (oldest first, newest last).
  std::vector<float>& scales() { return scale_; }
  std::vector<float>& history() { return history_; }
  std::vector<std::string> site_names() const;
  int64_t history_length() const { return length_; }
  bool has_delayed() const;
  int64_t sites() const { return static_cast<int64_t>(sites_.size()); }

 private:
  struct Site {
    std::string name;
    Role role;
    QuantSpec spec;
    bool delayed;
  };
  std::vector<Site> sites_;
  std::vector<float> scale_, amax_, history_;
  std::vector<int64_t> nonfinite_;
  std::array<std::array<int64_t, 16>, 3> elements_{};
  int64_t length_ = 16;
  bool most_recent_ = false;
};

}  // namespace octet
