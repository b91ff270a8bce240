// Head: final norm, LM head and cross-entropy, in chunks of tokens so that the logits of a large vocabulary never exist at once.
#pragma once
#include "model/linear.h"

namespace octet {

struct Loss {
  double cross_entropy = 0;  // sum over valid tokens
  double z = 0;              // sum over valid tokens of z_coefficient * lse^2
  Loss& operator+=(const Loss& o) {
    cross_entropy += o.cross_entropy;
    z += o.z;
    return *this;
  }
};

class Head {
 public:
  Head(Param& norm, Linear lm_head, int64_t vocab, float norm_eps, float z_coefficient);

  // x + delta: [T, H], the residual stream after the last layer. Forward only.
  Loss evaluate(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels) const;
  // Forward and backward at once: each chunk's logits become their gradient. grad [T, H]: gradient of (x + delta), overwritten.
  // grad_scale: 1 / (valid tokens of the global batch).
  Loss forward_backward(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels, float grad_scale, const Tensor& grad) const;

  Linear& linear() { return lm_head_; }

 private:
  int64_t chunk_rows(const Pass& pass, int64_t tokens) const;

  Param& norm_;
  Linear lm_head_;
  int64_t vocab_;
  float norm_eps_, z_coefficient_;
};

}  // namespace octet
