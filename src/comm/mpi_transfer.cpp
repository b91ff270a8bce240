#include "comm/mpi_transfer.h"

#include <algorithm>

#include "comm/reduce.h"

namespace octet {

void mpi_must(int rc, const char* call) {
  if (rc == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(rc, text, &length) != MPI_SUCCESS) length = 0;
  throw Error(ExitCode::device, fmt::format("{} failed: {}", call, length > 0 ? text : "unknown error"), "MPI");
}

int64_t mpi_chunk_bytes(int ranks) {
  const int64_t share = (int64_t{8} << 20) / std::max(1, ranks - 1);
  return std::clamp<int64_t>(share / 64 * 64, 64 << 10, 1 << 20);
}

int64_t MpiTransfer::bytes_of(const Segments& segments) {
  int64_t bytes = 0;
  for (const Segment& s : segments) bytes += s.bytes;
  return bytes;
}

MpiTransfer::Segments MpiTransfer::cut(const Segments& segments, int64_t first, int64_t count) {
  Segments found;
  for (const Segment& s : segments) {
    const int64_t from = std::max<int64_t>(first, 0), to = std::min(first + count, s.bytes);
    if (from < to) found.push_back({s.data + from, to - from});
    first -= s.bytes;
  }
  return found;
}

MpiTransfer::MpiTransfer(const MpiLink& link, const Collective& call, uint64_t ticket) : link_(link), call_(call), ticket_(ticket), chunk_(mpi_chunk_bytes(link.size)) {
  if (link.size == 1) return;
  find_pieces();
  const bool whole = call.bytes() <= kWholeBytes;
  switch (call.kind) {
    case CollectiveKind::all_gather: plan_gather(); break;
    case CollectiveKind::reduce_scatter: plan_reduce_scatter(); break;
    case CollectiveKind::all_reduce:
      if (whole) {
        plan_whole_reduce();
      } else {
        plan_reduce_scatter();
        plan_gather();
      }
      break;
    case CollectiveKind::broadcast:
      plan_broadcast();
      if (!whole) plan_gather();
      break;
  }
  begin_phase();
  finish_phases();
}

void MpiTransfer::find_pieces() {
  const int64_t element = static_cast<int64_t>(size_bytes(call_.dtype()));
  const auto append = [&](Segments& to, const Tensor& x, int64_t first, int64_t count) {
    if (count > 0) to.push_back({static_cast<std::byte*>(x.data) + first * element, count * element});
  };
  for (const TensorInPieces& t : call_.x) append(whole_, t.x, 0, t.x.elements());
  const Pieces even = even_pieces(call_.elements(), link_.size);
  for (int r = 0; r < link_.size; ++r) {
    Segments& piece = pieces_.emplace_back();
    if (call_.in_pieces()) {
      for (const TensorInPieces& t : call_.x) append(piece, t.x, t.pieces.first(r), t.pieces.count(r));
    } else {
      piece = cut(whole_, even.first(r) * element, even.count(r) * element);
    }
  }
}

void MpiTransfer::add(Phase& phase, int peer, bool receive, const Segments& memory) {
  if (!memory.empty()) phase.streams.push_back({peer, receive, memory, bytes_of(memory)});
}

void MpiTransfer::add_contributions(Phase& phase, const Segments& target) {
  phase.target = target;
  phase.target_bytes = bytes_of(target);
  for (int k = 1; k < link_.size && !target.empty(); ++k) {
    const int peer = (link_.rank - k + link_.size) % link_.size;
    const int place = peer < link_.rank ? peer : peer - 1;
    phase.streams.push_back({peer, true, {}, phase.target_bytes, link_.scratch + place * chunk_});
  }
}

// Peers in another order on each rank, so that not all send to the same one at first.
void MpiTransfer::plan_gather() {
  Phase phase;
  for (int k = 1; k < link_.size; ++k) {
    const int to = (link_.rank + k) % link_.size, from = (link_.rank - k + link_.size) % link_.size;
    add(phase, from, true, pieces_[static_cast<size_t>(from)]);
    add(phase, to, false, pieces_[static_cast<size_t>(link_.rank)]);
  }
  phases_.push_back(std::move(phase));
}

void MpiTransfer::plan_reduce_scatter() {
  Phase phase;
  add_contributions(phase, pieces_[static_cast<size_t>(link_.rank)]);
  for (int k = 1; k < link_.size; ++k) {
    const int to = (link_.rank + k) % link_.size;
    add(phase, to, false, pieces_[static_cast<size_t>(to)]);
  }
  phases_.push_back(std::move(phase));
}

void MpiTransfer::plan_whole_reduce() {
  Phase phase;
  add_contributions(phase, whole_);
  phase.target_is_sent = true;
  for (int k = 1; k < link_.size; ++k) add(phase, (link_.rank + k) % link_.size, false, whole_);
  phases_.push_back(std::move(phase));
}

// All of it, or the pieces that are gathered then.
void MpiTransfer::plan_broadcast() {
  Phase phase;
  const bool whole = call_.bytes() <= kWholeBytes;
  const auto part = [&](int receiver) -> const Segments& { return whole ? whole_ : pieces_[static_cast<size_t>(receiver)]; };
  if (link_.rank != call_.root) add(phase, call_.root, true, part(link_.rank));
  for (int k = 1; k < link_.size && link_.rank == call_.root; ++k) {
    const int to = (link_.rank + k) % link_.size;
    add(phase, to, false, part(to));
  }
  phases_.push_back(std::move(phase));
}

int64_t MpiTransfer::length(const Stream& s, int64_t chunk) const { return std::min(chunk_, s.bytes - chunk * chunk_); }

void MpiTransfer::begin_phase() {
  if (done()) return;
  const Phase& phase = phases_[phase_];
  requests_.assign(2 * phase.streams.size(), MPI_REQUEST_NULL);
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  unfinished_ = reduced_ = 0;
  to_reduce_ = chunks(phase.target_bytes);
  for (const Stream& s : phase.streams) unfinished_ += chunks(s.bytes);
  for (size_t i = 0; i < phase.streams.size(); ++i) post(i);
}

void MpiTransfer::finish_phases() {
  while (!done() && unfinished_ == 0 && reduced_ == to_reduce_) {
    ++phase_;
    begin_phase();
  }
}

void MpiTransfer::post(size_t stream) {
  Stream& s = phases_[phase_].streams[stream];
  // 15 bits, which every MPI has. Messages of one pair keep their order, so the tag only shows members that do not call the same.
  const int tag = static_cast<int>((ticket_ & 0x1FFF) << 2 | static_cast<uint64_t>(call_.kind));
  while (s.posted < chunks(s.bytes)) {
    MPI_Request& request = requests_[2 * stream + static_cast<size_t>(s.posted % 2)];
    if (request != MPI_REQUEST_NULL || (s.scratch && s.posted >= reduced_ + 2)) return;
    const int64_t bytes = length(s, s.posted);
    post_message(s, s.scratch ? Segments{{s.scratch + s.posted % 2 * (link_.size - 1) * chunk_, bytes}} : cut(s.memory, s.posted * chunk_, bytes), tag, request);
    if (!s.receive) sent_ += bytes;
    ++s.posted;
  }
}

void MpiTransfer::post_message(Stream& s, const Segments& memory, int tag, MPI_Request& request) {
  const auto begin = [&](void* at, int count, MPI_Datatype type) {
    if (s.receive) mpi_must(MPI_Irecv(at, count, type, s.peer, tag, link_.comm, &request), "MPI_Irecv");
    else mpi_must(MPI_Isend(at, count, type, s.peer, tag, link_.comm, &request), "MPI_Isend");
  };
  if (memory.size() == 1) return begin(memory[0].data, static_cast<int>(memory[0].bytes), MPI_BYTE);
  std::vector<int> lengths;
  std::vector<MPI_Aint> places;   // relative to the first, in the order of the stream
  MPI_Aint origin = 0;
  mpi_must(MPI_Get_address(memory[0].data, &origin), "MPI_Get_address");
  for (const Segment& m : memory) {
    MPI_Aint place = 0;
    mpi_must(MPI_Get_address(m.data, &place), "MPI_Get_address");
    places.push_back(MPI_Aint_diff(place, origin));
    lengths.push_back(static_cast<int>(m.bytes));
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  mpi_must(MPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(), places.data(), MPI_BYTE, &type), "MPI_Type_create_hindexed");
  mpi_must(MPI_Type_commit(&type), "MPI_Type_commit");
  begin(memory[0].data, 1, type);
  mpi_must(MPI_Type_free(&type), "MPI_Type_free");   // MPI keeps it until the message is over
}

void MpiTransfer::take(size_t slot, MPI_Status& status) {
  Stream& s = phases_[phase_].streams[slot / 2];
  // The chunk in this slot: the last or the last but one that was posted.
  const int64_t chunk = (s.posted - 1) % 2 == static_cast<int64_t>(slot % 2) ? s.posted - 1 : s.posted - 2;
  if (s.receive) {
    int bytes = 0;
    mpi_must(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    OCTET_CHECK(bytes == length(s, chunk), "operation {}, {}: rank {} of the group sent {} bytes where {} were expected: members called it with different sizes", ticket_,
                describe(call_), s.peer, bytes, length(s, chunk));
    s.arrived[slot % 2] = true;
  }
  ++s.finished;
  --unfinished_;
}

// Adds up the next chunk if all its contributions are here.
bool MpiTransfer::reduce_next() {
  Phase& phase = phases_[phase_];
  if (reduced_ == to_reduce_ || (phase.target_is_sent && unfinished_ > 0)) return false;
  const size_t set = static_cast<size_t>(reduced_ % 2);
  for (const Stream& s : phase.streams) {
    if (s.scratch && !s.arrived[set]) return false;
  }
  std::vector<const void*> from(static_cast<size_t>(link_.size));
  int64_t before = 0;   // bytes of the chunk
  for (const Segment& target : cut(phase.target, reduced_ * chunk_, std::min(chunk_, phase.target_bytes - reduced_ * chunk_))) {
    for (int r = 0; r < link_.size; ++r) {
      const int64_t place = static_cast<int64_t>(set) * (link_.size - 1) + (r < link_.rank ? r : r - 1);
      from[static_cast<size_t>(r)] = r == link_.rank ? target.data : link_.scratch + place * chunk_ + before;
    }
    reduce_in_order(call_.reduce, call_.dtype(), target.data, from, target.bytes / static_cast<int64_t>(size_bytes(call_.dtype())));
    before += target.bytes;
  }
  ++reduced_;
  for (size_t i = 0; i < phase.streams.size(); ++i) {
    if (!phase.streams[i].scratch) continue;
    phase.streams[i].arrived[set] = false;
    post(i);
  }
  return true;
}

bool MpiTransfer::poll() {
  if (done()) return false;
  int count = 0;
  const int rc = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
  if (rc == MPI_ERR_IN_STATUS) {
    for (int k = 0; k < count; ++k) {
      const Stream& s = phases_[phase_].streams[static_cast<size_t>(indices_[static_cast<size_t>(k)]) / 2];
      const int error = statuses_[static_cast<size_t>(k)].MPI_ERROR;
      if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
      mpi_must(error, fmt::format("operation {}, {}: a message {} rank {} of the group", ticket_, describe(call_), s.receive ? "from" : "to", s.peer).c_str());
    }
  }
  mpi_must(rc, "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return false;
  for (int k = 0; k < count; ++k) take(static_cast<size_t>(indices_[static_cast<size_t>(k)]), statuses_[static_cast<size_t>(k)]);
  while (reduce_next()) {
  }
  for (int k = 0; k < count; ++k) post(static_cast<size_t>(indices_[static_cast<size_t>(k)]) / 2);
  finish_phases();
  return true;
}

void MpiTransfer::cancel() {
  for (size_t slot = 0; !done() && slot < requests_.size(); ++slot) {
    if (requests_[slot] != MPI_REQUEST_NULL && phases_[phase_].streams[slot / 2].receive) mpi_must(MPI_Cancel(&requests_[slot]), "MPI_Cancel");
  }
}

std::vector<int> MpiTransfer::waiting_for() const {
  std::vector<int> ranks;
  for (const bool receive : {true, false}) {
    for (size_t i = 0; !done() && i < phases_[phase_].streams.size(); ++i) {
      const Stream& s = phases_[phase_].streams[i];
      if (s.receive == receive && s.finished < chunks(s.bytes) && std::find(ranks.begin(), ranks.end(), s.peer) == ranks.end()) ranks.push_back(s.peer);
    }
    if (!ranks.empty()) break;   // who has to send first explains the rest
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace octet
