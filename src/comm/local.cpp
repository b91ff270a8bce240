#include "comm/local.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>

#include "comm/reduce.h"

namespace octet {

std::string host_name() {
  char text[256] = {};
  if (::gethostname(text, sizeof text - 1) != 0 || text[0] == 0) return "localhost";
  return text;
}

int member_of(const std::string& name, const std::vector<int>& ranks, int rank, int world_size) {
  OCTET_CHECK(!ranks.empty() && std::is_sorted(ranks.begin(), ranks.end(), std::less_equal<>()) && ranks.front() >= 0 && ranks.back() < world_size,
              "group {} of the ranks {} in a world of {}: they must be ascending and in it", name, fmt::join(ranks, ", "), world_size);
  const auto me = std::find(ranks.begin(), ranks.end(), rank);
  OCTET_CHECK(me != ranks.end(), "rank {} makes the group {} of the ranks {}", rank, name, fmt::join(ranks, ", "));
  return static_cast<int>(me - ranks.begin());
}

void LocalJob::fail(int rank, const std::string& what) {
  const std::lock_guard lock(mutex);
  if (failed_rank < 0) {
    failed_rank = rank;
    failure = what;
  }
  changed.notify_all();
}

LocalGroup::LocalGroup(LocalJob& job, std::string name, std::vector<int> ranks)
    : job_(job), name_(std::move(name)), ranks_(std::move(ranks)), started_(ranks_.size()), thread_([this] { work(); }) {}

LocalGroup::~LocalGroup() {
  {
    const std::lock_guard lock(job_.mutex);
    stop_ = true;
    job_.changed.notify_all();
  }
  thread_.join();
}

void LocalGroup::fail_if_hopeless() const {
  if (broken_) throw *broken_;
  if (job_.failed_rank >= 0) throw Error(ExitCode::device, fmt::format("rank {} ended: {}", job_.failed_rank, job_.failure), fmt::format("group {}", name_));
}

uint64_t LocalGroup::start(int member, const Collective& call, double deadline_s) {
  const std::lock_guard lock(job_.mutex);
  fail_if_hopeless();
  const size_t me = static_cast<size_t>(member), n = ranks_.size();
  const uint64_t ticket = ++started_[me];
  const size_t place = static_cast<size_t>(ticket - done_ - 1);
  if (place == pending_.size()) {
    pending_.push_back({call, member, std::vector<std::vector<TensorInPieces>>(n), std::vector<double>(n), std::vector<Time>(n), std::vector<char>(n), static_cast<int>(n)});
  }
  Pending& op = pending_[place];
  if (!same_operation(op.call, call)) {
    broken_.emplace(ExitCode::internal, fmt::format("operation {} is {} on rank {} and {} on rank {}, or their tensors or pieces differ", ticket, describe(op.call),
                                                    ranks_[static_cast<size_t>(op.first)], describe(call), ranks_[me]),
                    fmt::format("group {}", name_));
    job_.changed.notify_all();
    throw *broken_;
  }
  op.x[me] = call.x;
  op.deadline_s[me] = deadline_s;
  op.begin[me] = std::chrono::steady_clock::now();
  op.started[me] = 1;
  if (--op.missing == 0) job_.changed.notify_all();
  return ticket;
}

Error LocalGroup::late(const Pending& op, int member) const {
  std::vector<int> absent;
  for (size_t m = 0; m < ranks_.size(); ++m) {
    if (!op.started[m]) absent.push_back(ranks_[m]);
  }
  return {ExitCode::deadline,
          fmt::format("{} (operation {}) has taken more than {} s; {}", describe(op.call), done_ + 1, op.deadline_s[static_cast<size_t>(member)],
                      absent.empty() ? "all ranks have started it" : fmt::format("not started by rank {}", fmt::join(absent, ", "))),
          fmt::format("rank {} on {}, group {}", ranks_[static_cast<size_t>(member)], host_name(), name_)};
}

void LocalGroup::wait(int member, uint64_t ticket) {
  std::unique_lock lock(job_.mutex);
  const size_t me = static_cast<size_t>(member);
  OCTET_CHECK(ticket >= 1 && ticket <= started_[me], "group {}: rank {} waits for operation {} of {}", name_, ranks_[me], ticket, started_[me]);
  while (done_ < ticket) {
    fail_if_hopeless();
    // Operations behind the front one have not begun; this rank has started that, since it started a later one.
    const Pending& front = pending_.front();
    const Time limit = std::max(front.begin[me], done_at_) + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(front.deadline_s[me]));
    const uint64_t done = done_;
    const auto moved = [&] { return done_ != done || broken_ || job_.failed_rank >= 0; };
    if (!job_.changed.wait_until(lock, limit, moved)) throw late(pending_.front(), member);
  }
}

void LocalGroup::leave(int member) {
  const size_t me = static_cast<size_t>(member);
  if (std::uncaught_exceptions() == 0) {
    try {
      uint64_t last;
      {
        const std::lock_guard lock(job_.mutex);
        last = started_[me];
      }
      if (last > 0) wait(member, last);
      return;
    } catch (const Error&) {   // the program's own waits throw it
    }
  }
  // Nothing that has not begun may touch this member's memory any more.
  std::unique_lock lock(job_.mutex);
  if (started_[me] > done_ && !broken_ && job_.failed_rank < 0) {
    broken_.emplace(ExitCode::device, fmt::format("rank {} left during operation {}", ranks_[me], done_ + 1), fmt::format("group {}", name_));
  }
  job_.changed.notify_all();
  job_.changed.wait(lock, [&] { return !executing_; });
}

void LocalGroup::work() {
  std::unique_lock lock(job_.mutex);
  for (;;) {
    const auto hopeless = [&] { return stop_ || broken_ || job_.failed_rank >= 0; };
    job_.changed.wait(lock, [&] { return hopeless() || (!pending_.empty() && pending_.front().missing == 0); });
    if (hopeless()) break;
    const auto ready = std::chrono::steady_clock::now() + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(job_.delay_s));
    if (job_.delay_s > 0 && job_.changed.wait_until(lock, ready, hopeless)) break;
    executing_ = true;
    const Pending& op = pending_.front();   // a deque's elements stay where they are when others are added
    lock.unlock();
    execute(op);
    lock.lock();
    executing_ = false;
    pending_.pop_front();
    ++done_;
    done_at_ = std::chrono::steady_clock::now();
    job_.changed.notify_all();
  }
}

void LocalGroup::execute(const Pending& op) const {
  for (size_t tensor = 0; tensor < op.call.x.size(); ++tensor) execute(op, tensor);
}

void LocalGroup::execute(const Pending& op, size_t tensor) const {
  const Collective& call = op.call;
  const Pieces& pieces = call.x[tensor].pieces;
  const int64_t elements = call.x[tensor].x.elements();
  const size_t n = ranks_.size(), element = size_bytes(call.dtype());
  const auto at = [&](size_t member, int64_t first) { return static_cast<char*>(op.x[member][tensor].x.data) + static_cast<size_t>(first) * element; };
  const auto sources = [&](int64_t first) {
    std::vector<const void*> from;
    for (size_t m = 0; m < n; ++m) from.push_back(at(m, first));
    return from;
  };
  const auto copy = [&](size_t from, size_t to, int64_t first, int64_t count) {
    if (from != to && count > 0) std::memcpy(at(to, first), at(from, first), static_cast<size_t>(count) * element);
  };
  if (elements == 0) return;   // perhaps without memory
  switch (call.kind) {
    case CollectiveKind::all_reduce:
      reduce_in_order(call.reduce, call.dtype(), at(0, 0), sources(0), elements);
      for (size_t m = 1; m < n; ++m) copy(0, m, 0, elements);
      break;
    case CollectiveKind::reduce_scatter:
      for (size_t m = 0; m < n; ++m) {
        const int64_t first = pieces.first(static_cast<int>(m)), count = pieces.count(static_cast<int>(m));
        if (count > 0) reduce_in_order(Reduce::sum, call.dtype(), at(m, first), sources(first), count);
      }
      for (size_t m = 0; m < n; ++m) {
        for (int other = 0; other < static_cast<int>(n); ++other) {
          if (other == static_cast<int>(m) || pieces.count(other) == 0) continue;
          std::memset(at(m, pieces.first(other)), 0xFF, static_cast<size_t>(pieces.count(other)) * element);
        }
      }
      break;
    case CollectiveKind::all_gather:
      for (size_t m = 0; m < n; ++m) {
        for (size_t to = 0; to < n; ++to) copy(m, to, pieces.first(static_cast<int>(m)), pieces.count(static_cast<int>(m)));
      }
      break;
    case CollectiveKind::broadcast:
      for (size_t m = 0; m < n; ++m) copy(static_cast<size_t>(call.root), m, 0, elements);
      break;
  }
}

namespace {

class LocalComm : public Comm {
 public:
  // No shared group: one rank, whose operations are done when they are called.
  LocalComm(std::string name, int rank, int size, std::shared_ptr<LocalGroup> group, const LocalWorld& world)
      : Comm(std::move(name), rank, size), group_(std::move(group)), world_(world) {}
  ~LocalComm() override {
    if (group_) group_->leave(rank());
  }

  Ticket start(const Collective& call) override {
    check_collective(call, name(), size());
    const Ticket ticket = group_ ? group_->start(rank(), call, world_.deadline_s()) : ++alone_;
    count_.add(call, sent_bytes(call, rank(), size()));
    return ticket;
  }
  void wait(Ticket ticket) override {
    if (group_) return group_->wait(rank(), ticket);
    OCTET_CHECK(ticket >= 1 && ticket <= alone_, "group {}: waits for operation {} of {}", name(), ticket, alone_);
  }
  TrafficTable traffic() const override { return count_.table(); }

 private:
  std::shared_ptr<LocalGroup> group_;
  const LocalWorld& world_;
  TrafficCount count_;
  Ticket alone_ = 0;
};

}  // namespace

LocalWorld::LocalWorld(LocalJob& job, int rank, int size, const Options& options) : job_(job), deadline_s_(options.deadline_s) {
  rank_ = local_rank_ = rank;
  size_ = local_size_ = size;
  hosts_.assign(static_cast<size_t>(size), host_name());
}

std::unique_ptr<Comm> LocalWorld::group(const std::string& name, const std::vector<int>& ranks) {
  const int me = member_of(name, ranks, rank_, size_);
  std::shared_ptr<LocalGroup> shared;
  if (ranks.size() > 1) {
    const std::lock_guard lock(job_.mutex);
    std::weak_ptr<LocalGroup>& place = job_.groups[{name, ranks, made_[{name, ranks}]++}];
    shared = place.lock();
    if (!shared) place = shared = std::make_shared<LocalGroup>(job_, name, ranks);
  }
  return std::make_unique<LocalComm>(name, me, static_cast<int>(ranks.size()), std::move(shared), *this);
}

void LocalWorld::poison(ExitCode, const std::string& what) { job_.fail(rank_, what); }

void run_local_ranks(int n, const std::function<void(World&)>& program, double delay_s, const World::Options& options) {
  OCTET_CHECK(n >= 1, "{} ranks", n);
  LocalJob job;
  job.delay_s = delay_s;
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        LocalWorld world(job, rank, n, options);
        program(world);
      } catch (const std::exception& e) {
        thrown[static_cast<size_t>(rank)] = std::current_exception();
        job.fail(rank, e.what());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  if (job.failed_rank >= 0 && thrown[static_cast<size_t>(job.failed_rank)]) std::rethrow_exception(thrown[static_cast<size_t>(job.failed_rank)]);
  for (const std::exception_ptr& e : thrown) {
    if (e) std::rethrow_exception(e);
  }
}

}  // namespace octet
