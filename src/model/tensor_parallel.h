// TensorParallel: the place of a rank among those that share each matrix of a model, and what they exchange.
//
// As Megatron-LM (Shoeybi et al., arXiv 1909.08053): qkv and gate_up are cut by output features (whole heads; the same features of gate and up), out and down by input
// features, embedding and head by rows of the vocabulary. Between the two linears of a half of a layer nothing is exchanged; behind the second the ranks' partial results are summed, and
// in backward those of the first one's input gradient. With sequence parallelism (Korthikanti et al., arXiv 2205.05198) the residual stream and what works on it token by token, norms
// and additions, is cut by tokens too: the sums leave each rank its tokens, and before a cut linear the tokens are gathered.
#pragma once
#include "comm/mesh.h"
#include "core/context.h"
#include "model/param.h"

namespace octet {

// A sum over the ranks that is under way; its memory belongs to it until finish().
class RowSum {
 public:
  RowSum() = default;
  RowSum(Comm& group, Comm::Ticket ticket, const Tensor& from, const Tensor& to) : group_(&group), ticket_(ticket), from_(from), to_(to) {}
  void finish(Ctx& ctx);

 private:
  Comm* group_ = nullptr;
  Comm::Ticket ticket_ = 0;
  Tensor from_, to_;   // what has to be copied when the sum is there; nothing when they are one
};

struct TensorParallel {
  const Mesh* mesh = nullptr;   // null: one rank has everything
  int rank = 0, size = 1;
  bool sequence = false;        // the residual stream is cut by tokens
  bool overlap = true;          // sums move beside computation
  bool fp8_gather = false;      // of quantized linears: tokens are gathered as codes and scales

  TensorParallel() = default;
  TensorParallel(const Mesh& mesh, const ParallelConfig& config);

  bool alone() const { return size == 1; }
  // This rank's tokens of the residual stream.
  RowRange tokens(int64_t all) const;
  // Elements of a [tokens, width] matrix, by rank.
  Pieces pieces(int64_t all_tokens, int64_t width) const;

  // whole: [T, W] of any type, in which this rank's tokens are there: then all are.
  void gather(Ctx& ctx, const Tensor& whole) const;
  // The same from this rank's tokens, own [tokens(T), W], in memory of `arena`.
  Tensor gathered(Ctx& ctx, Arena& arena, const Tensor& own, int64_t all_tokens) const;
  // whole = the ranks' parts, of which `own` is this rank's: one below the other, as tokens are dealt; side by side, equal ones, of each its first columns (scratch memory for all parts).
  void gather_rows(Ctx& ctx, const Tensor& own, const Tensor& whole) const;
  void gather_columns(Ctx& ctx, const Tensor& own, const MatrixView& whole) const;
  // Elements of all ranks, equally many of each, one rank's behind the other's.
  void gather_equal(Ctx& ctx, const Tensor& all) const;
  // amax[i] = its maximum over the ranks.
  void maxima(Ctx& ctx, const Tensor& amax) const;
  // x = its sum over the ranks that have this one's key/value heads.
  void sum_over_copies(Ctx& ctx, const Tensor& x) const;
  // out = this rank's tokens (all of them without `sequence`) of the sum over the ranks of partial [T, W], which is overwritten. out: [tokens(T), W]; may be `partial`.
  RowSum start_sum(Ctx& ctx, const Tensor& partial, const Tensor& out) const;
  void sum(Ctx& ctx, const Tensor& partial, const Tensor& out) const { start_sum(ctx, partial, out).finish(ctx); }
};

// This rank's part of an extent that has no structure (the width of an MLP): groups of 128, so that no block of a recipe is cut, dealt evenly, the first ranks one more; of
// 64, 32 or 16 where there are fewer than ranks.
RowRange feature_range(int64_t extent, int ranks, int rank);

}  // namespace octet
