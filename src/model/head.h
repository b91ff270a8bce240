// Head: final norm, LM head and cross-entropy, in chunks of tokens so that the logits of a large vocabulary never exist at once.
// The sums of the losses are added to Pass::loss_sums, on the device: nobody waits for them here.
#pragma once
#include "model/linear.h"

namespace octet {

class Head {
 public:
  Head(Param& norm, Linear lm_head, int64_t vocab, float norm_eps, float z_coefficient);

  // x + delta: [T, H], the residual stream after the last layer. Forward only.
  void evaluate(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels) const;
  // Forward and backward at once: each chunk's logits become their gradient. grad [T, H]: gradient of (x + delta), overwritten.
  // grad_scale: 1 / (valid tokens of the global batch), in the memory of the device.
  void forward_backward(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels, const float* grad_scale, const Tensor& grad) const;

  Linear& linear() { return lm_head_; }
  Param& norm() { return norm_; }

 private:
  int64_t chunk_rows(const Pass& pass, int64_t tokens) const;

  Param& norm_;
  Linear lm_head_;
  int64_t vocab_;
  float norm_eps_, z_coefficient_;
};

}  // namespace octet
