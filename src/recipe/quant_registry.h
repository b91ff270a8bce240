// QuantRegistry: the state and the accounts of quantization, one site a quantized tensor (layers.0.attn.qkv/x, .../q_proj/w, ...).
//
// Sites are registered while the model is built, in a fixed order: a site that happens not to run (an expert without tokens) still has
// its slot, so collectives over the flat arrays never mismatch. Delayed scaling follows Transformer Engine's update rule
// (FP8_SPEC 2.1): the scale in use was computed from earlier steps, the current amax is staged, and update_scales() runs
// once an optimizer step with the maximum over its micro-batches. Two rules differ on purpose: a non-finite amax never enters the
// history (it would freeze the scale for its length), and a site without a staged amax neither rolls nor changes.
//
// Calibration: in the first steps of a run, tensors with a stored scale (delayed, static) are scaled by themselves, and their amaxes collected. Delayed
// scaling then goes on with its histories; static scales stay at what the largest collected amax gave. A tensor that calibration never
// saw (no tokens reached it) goes on scaling by itself until it has been seen once.
//
// On a GPU, kernels read and write a copy of the arrays in device memory (place()); the host's arrays stay the truth. Once a step, what kernels staged is copied
// from the device, and once a step, behind begin_step(), the scales and the emptied arrays go back: updates are made by the same code for every device.
//
// Health: every `interval` steps the sites of matching modules hand their kernels a place for statistics (recipe/health.h).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/place.h"
#include "recipe/health.h"
#include "recipe/recipe.h"

namespace octet {

enum class Role : uint8_t { x, w, dy };
const char* name(Role r);

// What a quantize kernel reads and writes besides data; null members are not wanted. Plain pointers: they may point to device memory.
struct QuantTarget {
  const float* stored_scale = nullptr;   // quantize multiplier of delayed and static scaling; null: the matrix at hand gives it
  float* amax = nullptr;                 // running maximum of |x| since begin_step(); +Inf when any element was not finite
  int64_t* nonfinite = nullptr;          // running count of NaN and Inf elements
  uint64_t site_hash = 0;                // names the random stream of stochastic rounding
  ImageHealth* row_health = nullptr;     // statistics of the two images are added to these
  ImageHealth* col_health = nullptr;
  MatrixPlace place{};                   // of the matrix in the tensor that the site names, for stochastic rounding; default: it is whole
};

struct HealthOptions {
  int64_t interval = 0;                    // steps between statistics, 0: never; those of step number n (from 1) when interval divides n
  std::vector<std::string> modules{"*"};   // globs of module paths
};

class QuantRegistry {
 public:
  // Before sites are registered.
  void set_history(int64_t length, bool most_recent);
  void set_calibration(int64_t steps) { calibration_steps_ = steps; }
  void set_health(HealthOptions options) { health_options_ = std::move(options); }

  // Returns the site's number. Names, MODULE/TENSOR, are unique. row, col: what its two images are; either may be unquantized. copy: another rank of the job quantizes
  // the same elements, and is the one that checks and measures them.
  int add(std::string site_name, Role role, const QuantSpec& row, const QuantSpec& col, bool copy = false);

  // Of a weight of which each shard of ZeRO quantizes its own rows: those of one replica check and measure them.
  void cut_by_rows(int site) { sites_[static_cast<size_t>(site)].by_rows = true; }

  // Of a job: x and dy are counted `ranks` times, since every data-parallel rank quantizes as many of its own; weights, which all of them quantize, are checked and
  // measured by one (counts_weights).
  void set_ranks(int64_t ranks, bool counts_weights, bool first_replica);

  // Puts the arrays of kernels into device memory (or counts them). Without this call they are the host's own.
  void place(Arena& arena);
  // What has to be copied: to the device after begin_step() and restore(), from it before anything that looks at a step's results. Empty without place().
  struct Mirror {
    void *host, *device;
    size_t bytes;
  };
  std::vector<Mirror> to_device();
  std::vector<Mirror> from_device();

  // Valid for as long as work() stays the same.
  QuantTarget target(int site);
  // Without statistics: validation and recomputation must not touch histories or counts.
  QuantTarget silent_target(int site);

  // Of a weight's images that the optimizer's pass makes at the end of the step before the one that reads them: what is staged counts for the latter.
  QuantTarget early_target(int site);
  // Whether images for step `step` may be made so: their scales come from the weights alone, they are rounded to nearest, and that step wants no statistics of them.
  bool made_early(int site, int64_t step) const;

  // What kernels staged in this step, in the memory of the device, for maxima and sums over ranks: [sites] f32 and i64. Statistics, on the host: [2 x sites].
  Tensor staged_amax();
  Tensor staged_nonfinite();
  std::vector<ImageHealth>& statistics() { return health_; }

  // Enters step `step` (from 0), before its other weight images are made: staged amaxes, non-finite counts and statistics begin anew, with what early images staged.
  void begin_step(int64_t step);
  int64_t step() const { return step_; }
  // Adds n elements quantized to `format` in this run (host-side; sizes are known without looking at data).
  void count(int site, Dtype format, int64_t n);
  // Elements by role and format. Work that is recorded counts once: whoever does it again adds what it counted.
  using Counts = std::array<std::array<int64_t, 16>, 3>;
  const Counts& counts() const { return elements_; }
  Counts counted_since(const Counts& before) const;
  void add(const Counts& counts);
  // Updates histories and scales from the staged amaxes: delayed sites, and static ones while they calibrate.
  void update_scales();
  // Whether this step quantizes the site with its stored scale.
  bool uses_stored_scale(int site) const;

  // What of this step's work differs from other steps' beside numbers in memory: whether statistics are gathered, and which sites use their stored scale.
  std::vector<bool> work() const;

  int64_t nonfinite() const;                       // elements since begin_step()
  std::string first_nonfinite_site() const;        // where it appeared first in the step; empty if none
  struct Total {
    Role role;
    Dtype format;
    int64_t elements;
  };
  std::vector<Total> totals() const;               // elements quantized since construction, by role and format
  // Adds to a total by its name "x/e4m3" (resume); false when there is no such role or format.
  bool add_total(const std::string& role_and_format, int64_t elements);

  // Flat state, for checkpoints: scale [sites], history [sites x length] (oldest first, newest last; static sites: the largest amax, last).
  const std::vector<float>& scales() const { return scale_; }
  const std::vector<float>& history() const { return history_; }
  // Takes over saved state of the same sizes. Static scales that the config gives as constants are not replaced.
  void restore(const std::vector<float>& scales, const std::vector<float>& history);
  std::vector<std::string> site_names() const;
  int64_t history_length() const { return length_; }
  bool has_state() const;                          // whether any site's scale is kept from step to step
  int64_t sites() const { return static_cast<int64_t>(sites_.size()); }

  // Health of one image, named SITE.row or SITE.col; "both" when the two images have the same bytes, stored once or twice.
  struct HealthEntry {
    std::string site;
    Role role;
    const char* image;      // row | col | both
    Dtype format;
    ImageHealth values;     // since begin_step()
  };
  // The images that have statistics, always the same ones in the same order.
  std::vector<HealthEntry> health() const;
  bool health_due() const { return due_; }         // whether this step gathers them

 private:
  struct Site {
    std::string name;
    Role role;
    QuantSpec row, col;
    bool watched;           // its module matches HealthOptions::modules
    bool copy, by_rows;
    const QuantSpec& stored() const { return row.quantized() ? row : col; }
  };
  bool gathers_statistics(int64_t step) const { return health_options_.interval > 0 && (step + 1) % health_options_.interval == 0; }
  float* history_of(size_t site) { return history_.data() + site * static_cast<size_t>(length_); }
  const float* history_of(size_t site) const { return history_.data() + site * static_cast<size_t>(length_); }
  std::vector<Site> sites_;
  struct {
    float *scale = nullptr, *amax = nullptr, *early_amax = nullptr;
    int64_t *nonfinite = nullptr, *early_nonfinite = nullptr;
    ImageHealth* health = nullptr;
  } device_;
  std::vector<ImageHealth> health_;   // [2 x sites]: row, col
  HealthOptions health_options_;
  int64_t step_ = 0, calibration_steps_ = 0;
  bool due_ = false;
  std::vector<float> scale_, amax_, early_amax_, history_;
  std::vector<int64_t> nonfinite_, early_nonfinite_;
  Counts elements_{};
  int64_t ranks_ = 1;
  bool counts_weights_ = true, first_replica_ = true;
  int64_t length_ = 16;
  bool most_recent_ = false;
};

}  // namespace octet
