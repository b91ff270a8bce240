#include "comm/staged.h"

namespace octet {
namespace {

class StagedComm : public Comm {
 public:
  StagedComm(std::unique_ptr<Comm> host, DeviceCopies copies) : Comm(host->name(), host->rank(), host->size()), host_(std::move(host)), copies_(std::move(copies)) {}

  Ticket all_reduce(const Tensor& x, Reduce op) override {
    const Pieces whole{{0, x.elements()}};
    return run(x, whole, 0, whole, 0, [&](const Tensor& t) { return host_->all_reduce(t, op); });
  }
  Ticket reduce_scatter(const Tensor& x, const Pieces& pieces) override {
    return run(x, {{0, x.elements()}}, 0, pieces, rank(), [&](const Tensor& t) { return host_->reduce_scatter(t, pieces); });
  }
  Ticket all_gather(const Tensor& x, const Pieces& pieces) override {
    return run(x, pieces, rank(), {{0, x.elements()}}, 0, [&](const Tensor& t) { return host_->all_gather(t, pieces); });
  }
  Ticket broadcast(const Tensor& x, int root) override {
    const Pieces whole{{0, x.elements()}};
    return run(x, whole, 0, whole, 0, [&](const Tensor& t) { return host_->broadcast(t, root); });
  }
  void wait(Ticket ticket) override { host_->wait(ticket); }
  TrafficTable traffic() const override { return host_->traffic(); }

 private:
  // Copies one piece out, and another one back.
  template <class Operation>
  Ticket run(const Tensor& x, const Pieces& given, int give, const Pieces& taken, int take, const Operation& operation) {
    if (buffer_.size() < x.bytes()) buffer_.resize(x.bytes());
    const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * size_bytes(x.dtype); };
    const auto device = [&](int64_t element) { return static_cast<std::byte*>(x.data) + bytes(element); };
    Tensor host = x;
    host.data = buffer_.data();
    if (given.count(give) > 0) copies_.out(buffer_.data() + bytes(given.first(give)), device(given.first(give)), bytes(given.count(give)));
    const Ticket ticket = operation(host);
    host_->wait(ticket);
    if (taken.count(take) > 0) copies_.in(device(taken.first(take)), buffer_.data() + bytes(taken.first(take)), bytes(taken.count(take)));
    return ticket;
  }

  std::unique_ptr<Comm> host_;
  DeviceCopies copies_;
  std::vector<std::byte> buffer_;   // as large as the largest tensor so far
};

}  // namespace

std::unique_ptr<Comm> staged(std::unique_ptr<Comm> host, DeviceCopies copies) { return std::make_unique<StagedComm>(std::move(host), std::move(copies)); }

}  // namespace octet
