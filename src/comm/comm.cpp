#include "comm/comm.h"

#include <algorithm>

#include "comm/collective.h"

namespace octet {

Pieces even_pieces(int64_t elements, int ranks) {
  Pieces pieces;
  const int64_t each = elements / ranks, longer = elements % ranks;
  for (int64_t r = 0; r <= ranks; ++r) pieces.begin.push_back(each * r + std::min<int64_t>(r, longer));
  return pieces;
}

Comm::Ticket Comm::all_reduce(const std::vector<Tensor>& x, Reduce op) {
  Collective call{CollectiveKind::all_reduce, {}, op, 0};
  for (const Tensor& t : x) call.x.push_back({t, {}});
  return start(call);
}
Comm::Ticket Comm::all_reduce(const Tensor& x, Reduce op) { return start({CollectiveKind::all_reduce, {{x, {}}}, op, 0}); }
Comm::Ticket Comm::reduce_scatter(const std::vector<TensorInPieces>& x) { return start({CollectiveKind::reduce_scatter, x, Reduce::sum, 0}); }
Comm::Ticket Comm::reduce_scatter(const Tensor& x, const Pieces& pieces) { return start({CollectiveKind::reduce_scatter, {{x, pieces}}, Reduce::sum, 0}); }
Comm::Ticket Comm::all_gather(const std::vector<TensorInPieces>& x) { return start({CollectiveKind::all_gather, x, Reduce::sum, 0}); }
Comm::Ticket Comm::all_gather(const Tensor& x, const Pieces& pieces) { return start({CollectiveKind::all_gather, {{x, pieces}}, Reduce::sum, 0}); }
Comm::Ticket Comm::broadcast(const Tensor& x, int root) { return start({CollectiveKind::broadcast, {{x, {}}}, Reduce::sum, root}); }

std::vector<std::string> exchange(Comm& comm, std::string mine) {
  const size_t n = static_cast<size_t>(comm.size()), me = static_cast<size_t>(comm.rank());
  std::vector<int64_t> lengths(n);
  lengths[me] = static_cast<int64_t>(mine.size());
  comm.wait(comm.all_gather({lengths.data(), Dtype::i64, {static_cast<int64_t>(n)}}, even_pieces(comm.size(), comm.size())));
  Pieces pieces{{0}};
  for (int64_t length : lengths) pieces.begin.push_back(pieces.begin.back() + length);
  std::string all(static_cast<size_t>(pieces.begin.back()), '\0');
  mine.copy(all.data() + pieces.first(comm.rank()), mine.size());
  comm.wait(comm.all_gather({all.data(), Dtype::u8, {pieces.begin.back()}}, pieces));
  std::vector<std::string> texts;
  for (int r = 0; r < comm.size(); ++r) texts.push_back(all.substr(static_cast<size_t>(pieces.first(r)), static_cast<size_t>(pieces.count(r))));
  return texts;
}

int64_t sum_of(Comm& comm, int64_t mine) {
  comm.wait(comm.all_reduce({&mine, Dtype::i64, {1}}, Reduce::sum));
  return mine;
}

int64_t max_of(Comm& comm, int64_t mine) {
  comm.wait(comm.all_reduce({&mine, Dtype::i64, {1}}, Reduce::max));
  return mine;
}

// The result needs every rank's number, so nobody has it before all have come.
void barrier(Comm& comm) { sum_of(comm, 0); }

}  // namespace octet
