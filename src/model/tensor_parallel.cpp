#include "model/tensor_parallel.h"

#include <algorithm>

#include "ops/reduce.h"

namespace octet {

void RowSum::finish(Ctx& ctx) {
  if (group_) group_->wait(ticket_);
  if (from_.data != to_.data) ops::copy(ctx, from_, to_);
}

TensorParallel::TensorParallel(const Mesh& m, const ParallelConfig& config)
    : mesh(&m), rank(m.layout().tp_rank), size(m.layout().tp), sequence(config.sequence_parallel && size > 1), overlap(config.overlap), fp8_gather(config.fp8_activation_gather && sequence) {}

RowRange TensorParallel::tokens(int64_t all) const {
  if (!sequence) return {0, all};
  const Pieces p = even_pieces(all, size);
  return {p.first(rank), p.count(rank)};
}

Pieces TensorParallel::pieces(int64_t all_tokens, int64_t width) const {
  Pieces p = even_pieces(all_tokens, size);
  for (int64_t& b : p.begin) b *= width;
  return p;
}

void TensorParallel::gather(Ctx& ctx, const Tensor& whole) const {
  if (ctx.planning()) return;
  Comm& group = *mesh->tp();
  group.wait(group.all_gather(whole, pieces(whole.rows(), whole.cols())));
}

Tensor TensorParallel::gathered(Ctx& ctx, Arena& arena, const Tensor& own, int64_t all_tokens) const {
  const Tensor whole = arena.alloc(own.dtype, {all_tokens, own.cols()});
  gather_rows(ctx, own, whole);
  return whole;
}

void TensorParallel::gather_rows(Ctx& ctx, const Tensor& own, const Tensor& whole) const {
  const RowRange mine = tokens(whole.rows());
  ops::copy(ctx, own, whole.slice_rows(mine.first, mine.count));
  gather(ctx, whole);
}

// A gather moves contiguous pieces, and columns of a matrix are none.
void TensorParallel::gather_columns(Ctx& ctx, const Tensor& own, const MatrixView& whole) const {
  Arena::Scope scope(ctx.scratch());
  const Tensor parts = ctx.scratch().alloc(own.dtype, {size * own.rows(), own.cols()});
  gather_rows(ctx, own, parts);
  ops::join_columns(ctx, MatrixView(parts).columns(0, whole.cols / size), whole);
}

void TensorParallel::gather_equal(Ctx& ctx, const Tensor& all) const {
  if (ctx.planning()) return;
  Comm& group = *mesh->tp();
  group.wait(group.all_gather(all, even_pieces(all.elements(), size)));
}

void TensorParallel::maxima(Ctx& ctx, const Tensor& amax) const {
  if (ctx.planning()) return;
  Comm& group = *mesh->tp();
  group.wait(group.all_reduce(amax, Reduce::max));
}

void TensorParallel::sum_over_copies(Ctx& ctx, const Tensor& x) const {
  if (ctx.planning()) return;
  Comm& group = *mesh->kv();
  group.wait(group.all_reduce(x, Reduce::sum));
}

RowSum TensorParallel::start_sum(Ctx& ctx, const Tensor& partial, const Tensor& out) const {
  const RowRange own = tokens(partial.rows());
  const Tensor result = sequence ? partial.slice_rows(own.first, own.count) : partial;
  if (alone() || ctx.planning()) return {};
  Comm& group = *mesh->tp();
  const Comm::Ticket ticket = sequence ? group.reduce_scatter(partial, pieces(partial.rows(), partial.cols())) : group.all_reduce(partial, Reduce::sum);
  if (!overlap) group.wait(ticket);
  return {group, ticket, result, out};
}

RowRange feature_range(int64_t extent, int ranks, int rank) {
  int64_t unit = 128;
  while (unit > 16 && (extent + unit - 1) / unit < ranks) unit /= 2;
  const Pieces groups = even_pieces((extent + unit - 1) / unit, ranks);
  const int64_t first = std::min(groups.first(rank) * unit, extent), end = std::min((groups.first(rank) + groups.count(rank)) * unit, extent);
  return {first, end - first};
}

}  // namespace octet
