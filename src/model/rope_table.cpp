#include "model/rope_table.h"

#include <cmath>

namespace octet {

int64_t rotary_dim(const ModelConfig& m) { return static_cast<int64_t>(static_cast<double>(m.head_dim) * m.partial_rotary_factor); }

std::vector<double> rope_frequencies(const ModelConfig& m) {
  const int64_t rotary = rotary_dim(m);
  std::vector<double> freq;
  for (int64_t i = 0; i < rotary / 2; ++i) {
    double f = std::pow(m.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
    const RopeScaling& s = m.rope_scaling;
    if (s.rope_type == "llama3") {
      const double original = static_cast<double>(s.original_max_position_embeddings);
      const double wavelength = 6.283185307179586476925 / f;
      if (wavelength > original / s.low_freq_factor) {
        f /= s.factor;
      } else if (wavelength >= original / s.high_freq_factor) {
        const double smooth = (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
        f = (1.0 - smooth) * f / s.factor + smooth * f;
      }
    }
    freq.push_back(f);
  }
  return freq;
}

void fill_rope_table(const ModelConfig& m, const Tensor& table) {
  const std::vector<double> freq = rope_frequencies(m);
  const auto half = static_cast<int64_t>(freq.size());
  for (int64_t p = 0; p < table.rows(); ++p) {
    float* row = table.as<float>() + p * table.cols();
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * freq[static_cast<size_t>(i)];
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace octet
