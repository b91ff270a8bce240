#include "comm/collective.h"

#include <algorithm>

namespace octet {

const char* name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce: return "all_reduce";
    case CollectiveKind::reduce_scatter: return "reduce_scatter";
    case CollectiveKind::all_gather: return "all_gather";
    case CollectiveKind::broadcast: return "broadcast";
  }
  return "?";
}

int64_t Collective::elements() const {
  int64_t all = 0;
  for (const TensorInPieces& t : x) all += t.x.elements();
  return all;
}

int64_t Collective::count(int rank) const {
  int64_t all = 0;
  for (const TensorInPieces& t : x) all += t.pieces.count(rank);
  return all;
}

std::string describe(const Collective& call) {
  std::string text = name(call.kind);
  if (call.kind == CollectiveKind::all_reduce) text += call.reduce == Reduce::sum ? " sum" : " max";
  text += " of ";
  if (call.x.size() != 1) text += fmt::format("{} tensors, ", call.x.size());
  text += call.x.empty() ? "nothing" : fmt::format("{} {} ({} bytes)", call.elements(), name(call.dtype()), call.bytes());
  if (call.kind == CollectiveKind::broadcast) text += fmt::format(" from rank {}", call.root);
  return text;
}

namespace {

void check_pieces(const Collective& call, size_t i, const std::string& group, int size) {
  const Pieces& pieces = call.x[i].pieces;
  const int64_t elements = call.x[i].x.elements();
  const auto what = [&] { return call.x.size() == 1 ? describe(call) : fmt::format("{}, number {} of {} elements", describe(call), i, elements); };
  const std::vector<int64_t>& begin = pieces.begin;
  OCTET_CHECK(begin.size() == static_cast<size_t>(size) + 1, "group {}: {} in {} pieces by {} ranks", group, what(), static_cast<int64_t>(begin.size()) - 1, size);
  OCTET_CHECK(begin.front() == 0 && begin.back() == elements, "group {}: {} in pieces from {} to {}", group, what(), begin.front(), begin.back());
  for (int r = 0; r < size; ++r) OCTET_CHECK(pieces.count(r) >= 0, "group {}: {} with {} elements for rank {}", group, what(), pieces.count(r), r);
}

}  // namespace

void check_collective(const Collective& call, const std::string& group, int size) {
  OCTET_CHECK(!call.x.empty(), "group {}: {}", group, describe(call));
  const Dtype dtype = call.dtype();
  for (size_t i = 0; i < call.x.size(); ++i) {
    const Tensor& x = call.x[i].x;
    OCTET_CHECK(x.dtype == dtype, "group {}: {} with one of {}, all must be of one type", group, describe(call), name(x.dtype));
    OCTET_CHECK(x.data || x.elements() == 0, "group {}: {} has no memory for number {}", group, describe(call), i);
    if (call.in_pieces()) check_pieces(call, i, group, size);
  }
  if (call.kind == CollectiveKind::all_reduce) {
    const bool typed = dtype == Dtype::f32 || dtype == Dtype::f64 || dtype == Dtype::i64 || (dtype == Dtype::bf16 && call.reduce == Reduce::sum);
    OCTET_CHECK(typed, "group {}: {} is not defined, f32, f64 and i64 are, and sums of bf16", group, describe(call));
  } else if (call.kind == CollectiveKind::reduce_scatter) {
    OCTET_CHECK(dtype == Dtype::f32 || dtype == Dtype::bf16, "group {}: {} is not defined, f32 and bf16 are", group, describe(call));
  } else if (call.kind == CollectiveKind::broadcast) {
    OCTET_CHECK(call.root >= 0 && call.root < size, "group {}: {} in a group of {}", group, describe(call), size);
  }
}

bool same_operation(const Collective& a, const Collective& b) {
  const auto same_tensors = [](const TensorInPieces& s, const TensorInPieces& t) {
    return s.x.dtype == t.x.dtype && s.x.elements() == t.x.elements() && s.pieces.begin == t.pieces.begin;
  };
  return a.kind == b.kind && a.reduce == b.reduce && a.root == b.root && std::equal(a.x.begin(), a.x.end(), b.x.begin(), b.x.end(), same_tensors);
}

int64_t sent_bytes(const Collective& call, int rank, int size) {
  const int64_t total = call.bytes(), others = size - 1, element = static_cast<int64_t>(size_bytes(call.dtype()));
  const int64_t own = (call.in_pieces() ? call.count(rank) : even_pieces(call.elements(), size).count(rank)) * element;
  switch (call.kind) {
    case CollectiveKind::all_reduce: return total <= kWholeBytes ? total * others : total - own + own * others;
    case CollectiveKind::reduce_scatter: return total - own;
    case CollectiveKind::all_gather: return own * others;
    case CollectiveKind::broadcast:
      if (total <= kWholeBytes) return rank == call.root ? total * others : 0;
      return (rank == call.root ? total - own : 0) + own * others;
  }
  return 0;
}

}  // namespace octet
