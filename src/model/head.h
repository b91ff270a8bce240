// Head: final norm, LM head and cross-entropy, in chunks of tokens so that the logits of a large vocabulary never exist at once.
// With tensor parallelism a rank has some rows of the vocabulary: of each token's logits it knows maximum and sum over those, which the ranks exchange (ops/loss.h).
// The sums of the losses are added to Pass::loss_sums, on the device: nobody waits for them here.
#pragma once
#include "model/linear.h"

namespace octet {

class Head {
 public:
  // The first row of lm_head is number Param::first_row of the `vocab` words.
  Head(Param& norm, Linear lm_head, int64_t vocab, float norm_eps, float z_coefficient, const TensorParallel& tp = {});

  // x + delta: [t, H], this rank's tokens of the residual stream after the last layer. Forward only.
  void evaluate(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels) const;
  // Forward and backward at once: each chunk's logits become their gradient. grad [t, H]: gradient of (x + delta), overwritten.
  // grad_scale: 1 / (valid tokens of the global batch), in the memory of the device.
  void forward_backward(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels, const float* grad_scale, const Tensor& grad) const;

  Linear& linear() { return lm_head_; }
  Param& norm() { return norm_; }

 private:
  int64_t chunk_rows(const Pass& pass, int64_t tokens) const;
  LinearInput normed_input(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& sum, const Tensor& rstd, int64_t tokens, Linear::Reader reader) const;
  void cross_entropy(const Pass& pass, const Tensor& logits, const Tensor& labels, const float* grad_scale, const Tensor& loss, const Tensor& z) const;

  Param& norm_;
  Linear lm_head_;
  int64_t vocab_;
  float norm_eps_, z_coefficient_;
  TensorParallel tp_;
};

}  // namespace octet
