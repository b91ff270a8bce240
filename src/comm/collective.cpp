#include "comm/collective.h"

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

std::string describe(const Collective& call) {
  std::string text = name(call.kind);
  if (call.kind == CollectiveKind::all_reduce) text += call.reduce == Reduce::sum ? " sum" : " max";
  text += fmt::format(" of {} {} ({} bytes)", call.x.elements(), name(call.x.dtype), call.x.bytes());
  if (call.kind == CollectiveKind::broadcast) text += fmt::format(" from rank {}", call.root);
  return text;
}

void check_collective(const Collective& call, const std::string& group, int size) {
  const int64_t elements = call.x.elements();
  OCTET_CHECK(call.x.data || elements == 0, "group {}: {} has no memory", group, describe(call));
  if (call.kind == CollectiveKind::all_reduce) {
    const bool typed = call.x.dtype == Dtype::f32 || call.x.dtype == Dtype::f64 || call.x.dtype == Dtype::i64 ||
                       (call.x.dtype == Dtype::bf16 && call.reduce == Reduce::sum);
    OCTET_CHECK(typed, "group {}: {} is not defined, f32, f64 and i64 are, and sums of bf16", group, describe(call));
  } else if (call.kind == CollectiveKind::reduce_scatter) {
    OCTET_CHECK(call.x.dtype == Dtype::f32 || call.x.dtype == Dtype::bf16, "group {}: {} is not defined, f32 and bf16 are", group, describe(call));
  } else if (call.kind == CollectiveKind::broadcast) {
    OCTET_CHECK(call.root >= 0 && call.root < size, "group {}: {} in a group of {}", group, describe(call), size);
  }
  if (call.kind != CollectiveKind::reduce_scatter && call.kind != CollectiveKind::all_gather) return;
  const std::vector<int64_t>& begin = call.pieces.begin;
  OCTET_CHECK(begin.size() == static_cast<size_t>(size) + 1, "group {}: {} in {} pieces by {} ranks", group, describe(call), static_cast<int64_t>(begin.size()) - 1, size);
  OCTET_CHECK(begin.front() == 0 && begin.back() == elements, "group {}: {} in pieces from {} to {}", group, describe(call), begin.front(), begin.back());
  for (int r = 0; r < size; ++r) OCTET_CHECK(call.pieces.count(r) >= 0, "group {}: {} with {} elements for rank {}", group, describe(call), call.pieces.count(r), r);
}

bool same_operation(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.x.dtype == b.x.dtype && a.x.elements() == b.x.elements() && a.reduce == b.reduce && a.root == b.root && a.pieces.begin == b.pieces.begin;
}

int64_t sent_bytes(const Collective& call, int rank, int size) {
  const int64_t total = static_cast<int64_t>(call.x.bytes()), others = size - 1, element = static_cast<int64_t>(size_bytes(call.x.dtype));
  const bool pieces_given = call.kind == CollectiveKind::reduce_scatter || call.kind == CollectiveKind::all_gather;
  const int64_t own = (pieces_given ? call.pieces : even_pieces(call.x.elements(), size)).count(rank) * element;
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
