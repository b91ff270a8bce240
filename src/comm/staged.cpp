#include "comm/staged.h"

#include "comm/collective.h"

namespace octet {
namespace {

class StagedComm : public Comm {
 public:
  StagedComm(std::unique_ptr<Comm> host, DeviceCopies copies) : Comm(host->name(), host->rank(), host->size()), host_(std::move(host)), copies_(std::move(copies)) {}

  Ticket start(const Collective& call) override {
    check_collective(call, name(), size());
    const size_t element = size_bytes(call.dtype()), bytes = static_cast<size_t>(call.bytes());
    Collective on_host = call;
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    std::byte* next = buffer_.data();
    for (TensorInPieces& t : on_host.x) {
      t.x.data = next;
      next += t.x.bytes();
    }
    // A gather needs the own pieces only, a reduce-scatter gives only those.
    const auto each = [&](bool own, const auto& copy) {
      for (size_t i = 0; i < call.x.size(); ++i) {
        const Pieces& pieces = call.x[i].pieces;
        const size_t first = own ? static_cast<size_t>(pieces.first(rank())) * element : 0;
        const size_t count = own ? static_cast<size_t>(pieces.count(rank())) * element : call.x[i].x.bytes();
        if (count > 0) copy(static_cast<std::byte*>(on_host.x[i].x.data) + first, static_cast<std::byte*>(call.x[i].x.data) + first, count);
      }
    };
    each(call.kind == CollectiveKind::all_gather, [&](std::byte* host, std::byte* device, size_t n) { copies_.out(host, device, n); });
    const Ticket ticket = host_->start(on_host);
    host_->wait(ticket);
    each(call.kind == CollectiveKind::reduce_scatter, [&](std::byte* host, std::byte* device, size_t n) { copies_.in(device, host, n); });
    return ticket;
  }
  void wait(Ticket ticket) override { host_->wait(ticket); }
  TrafficTable traffic() const override { return host_->traffic(); }

 private:
  std::unique_ptr<Comm> host_;
  DeviceCopies copies_;
  std::vector<std::byte> buffer_;   // as large as the largest operation so far
};

}  // namespace

std::unique_ptr<Comm> staged(std::unique_ptr<Comm> host, DeviceCopies copies) { return std::make_unique<StagedComm>(std::move(host), std::move(copies)); }

DeviceGroups staged_groups(DeviceCopies copies) {
  return [copies = std::move(copies)](std::unique_ptr<Comm> host) { return staged(std::move(host), copies); };
}

}  // namespace octet
