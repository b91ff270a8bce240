// One transformer layer: pre-norm attention and pre-norm SwiGLU MLP on a residual stream.
//
//   s1 = x + delta            (delta: the previous layer's MLP output, added inside the norm)
//   s2 = s1 + out(attention(rope(qkv(norm1(s1)))))
//   m  = down(swiglu(gate_up(norm2(s2))))          the caller adds m to s2 inside the next norm
//
// With tensor parallelism A, K and I are this rank's heads and features; [t, H] are its tokens of the residual stream, all T without sequence parallelism.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "model/linear.h"
#include "ops/rope.h"

namespace octet {

struct RecomputePolicy {
  bool norm = false, swiglu = false, attention = false, block = false;
  bool swiglu_fp8 = false;   // not computed again but kept in FP8: gate and up
};

// What stays fixed over a micro-batch.
struct TokenGeometry {
  int64_t tokens = 0, seq_len = 0;
  Tensor positions, document_start, cos_sin;
};

struct BlockParams {
  Param *attn_norm, *mlp_norm;               // [H]
  Param *q_norm = nullptr, *k_norm = nullptr;  // [d], Qwen3
};

// Activations kept from forward to backward. Fields that a recompute policy drops are made again by backward before it reads them.
struct BlockSaved {
  Tensor s1, s2;          // [t, H] residual stream at the two norms
  Tensor rstd1, rstd2;    // [t]
  LinearInput qkv_in, out_in, gate_up_in, down_in;
  Tensor qkv_raw;         // [T, (A + 2K) d] before QK-norm and RoPE; only with QK-norm
  Tensor qkv;             // [T, (A + 2K) d] after RoPE
  Tensor qk_rstd;         // [T, A + K]
  Tensor attn, lse;       // [T, A d], [B, A, S]
  Tensor gate_up;         // [T, 2 I]; only of the forward pass when it is kept as
  Operand gate, up;       // [T, I] each, E4M3 in 1x128 blocks
};

class Block {
 public:
  Block(BlockParams params, Linear qkv, Linear out, Linear gate_up, Linear down, HeadGeometry heads, RecomputePolicy recompute);

  // x, delta (may be empty): [t, H]. Writes saved.s1, saved.s2 (the stream after attention) and m [t, H].
  void forward(const Pass& pass, const TokenGeometry& t, const Tensor& x, const Tensor& delta, BlockSaved& saved, const Tensor& m) const;
  // grad: [t, H], in: gradient of (s2 + m), out: gradient of s1. Adds to the gradients of all parameters.
  void backward(const Pass& pass, const TokenGeometry& t, BlockSaved& saved, const Tensor& grad) const;

  std::vector<Param*> params() const;
  std::vector<Linear*> linears() { return {&qkv_, &out_, &gate_up_, &down_}; }

 private:
  // Both stages expect s.s1 (and s.s2) to have memory; every other field is allocated from pass.saved or dropped by policy.
  void attention_forward(const Pass& pass, const TokenGeometry& t, const Tensor& x, const Tensor& delta, BlockSaved& s, const Tensor& attn_out) const;
  void mlp_forward(const Pass& pass, const TokenGeometry& t, const Tensor& attn_out, BlockSaved& s, const Tensor& m) const;
  void mlp_backward(const Pass& pass, const TokenGeometry& t, BlockSaved& s, const Tensor& grad) const;
  void attention_backward(const Pass& pass, const TokenGeometry& t, BlockSaved& s, const Tensor& grad) const;
  // The results of a norm that backward does without (`sum`, rstd) may be empty.
  LinearInput normed_input(const Pass& pass, const TokenGeometry& t, const Linear& consumer, const Param& gamma, const Tensor& x, const Tensor& delta, const Tensor& sum, const Tensor& rstd,
                           Linear::Reader reader = Linear::Reader::forward) const;
  LinearInput swiglu_input(const Pass& pass, const Tensor& gate_up) const;
  LinearGrad swiglu_grad(const Pass& pass, const Tensor& dy, const Tensor& gate_up) const;
  void keep_gate_up(const Pass& pass, BlockSaved& s) const;
  // Of backward: what was kept, from scratch memory when it was quantized.
  Tensor kept_gate_up(const Pass& pass, const BlockSaved& s) const;
  LinearInput attention_core(const Pass& pass, const TokenGeometry& t, BlockSaved& s) const;
  QkNorm qk_norm(const Tensor& rstd) const;
  std::string_view layer() const;
  double attention_flops(const TokenGeometry& t) const;

  BlockParams params_;
  Linear qkv_, out_, gate_up_, down_;
  HeadGeometry heads_;
  RecomputePolicy recompute_;
};

}  // namespace octet
