#include "comm/mpi_engine.h"

#include <fmt/ranges.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace octet {
namespace {

constexpr int kHelloTag = 1, kPoisonTag = 2;
constexpr size_t kPoisonBytes = 2048;   // code, rank, text

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// What members must agree on when they make a group.
std::array<char, kHelloBytes> hello_of(const std::string& name, const std::vector<int>& ranks) {
  uint64_t hash = 0xCBF29CE484222325ull;   // FNV-1a
  const auto mix = [&](uint64_t byte) { hash = (hash ^ byte) * 0x100000001B3ull; };
  for (char c : name) mix(static_cast<unsigned char>(c));
  for (int r : ranks) {
    for (int shift = 0; shift < 32; shift += 8) mix(static_cast<uint64_t>(r) >> shift & 0xFF);
  }
  std::array<char, kHelloBytes> hello{};
  std::memcpy(hello.data(), &hash, sizeof hash);
  std::memcpy(hello.data() + sizeof hash, name.data(), std::min<size_t>(name.size(), kHelloBytes - sizeof hash - 1));
  return hello;
}

}  // namespace

MpiEngine::MpiEngine(MpiGuard& guard, double deadline_s) : guard_(guard), deadline_s_(deadline_s), poison_in_(kPoisonBytes), poison_out_(kPoisonBytes) {
  ::prctl(PR_SET_TIMERSLACK, 1000);   // ns; this thread's sleeps are of microseconds
  mpi_must(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_must(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup");
  mpi_must(MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_must(MPI_Comm_rank(control_, &rank_), "MPI_Comm_rank");
  mpi_must(MPI_Comm_size(control_, &size_), "MPI_Comm_size");
  MPI_Comm node = MPI_COMM_NULL;
  mpi_must(MPI_Comm_split_type(control_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  mpi_must(MPI_Comm_rank(node, &local_rank_), "MPI_Comm_rank");
  mpi_must(MPI_Comm_size(node, &local_size_), "MPI_Comm_size");
  mpi_must(MPI_Comm_free(&node), "MPI_Comm_free");
  std::vector<char> mine(MPI_MAX_PROCESSOR_NAME), all(mine.size() * static_cast<size_t>(size_));
  int length = 0;
  mpi_must(MPI_Get_processor_name(mine.data(), &length), "MPI_Get_processor_name");
  mpi_must(MPI_Allgather(mine.data(), MPI_MAX_PROCESSOR_NAME, MPI_CHAR, all.data(), MPI_MAX_PROCESSOR_NAME, MPI_CHAR, control_), "MPI_Allgather");
  for (int r = 0; r < size_; ++r) {
    const char* text = all.data() + static_cast<size_t>(r) * mine.size();
    hosts_.emplace_back(text, ::strnlen(text, mine.size()));
  }
  receive_poison();
}

std::string MpiEngine::place(int rank) const { return fmt::format("rank {} on {}", rank, hosts_[static_cast<size_t>(rank)]); }

std::string MpiEngine::places(const std::vector<int>& ranks) const {
  constexpr size_t kShown = 8;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) shown.push_back(place(ranks[i]));
  if (ranks.size() > kShown) shown.push_back(fmt::format("{} more", ranks.size() - kShown));
  return fmt::format("{}", fmt::join(shown, ", "));
}

// ---- other threads

void MpiEngine::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  inbox_.push_back(std::move(work));
  inbox_filled_ = true;
  work_.notify_one();
}

std::shared_ptr<MpiEngine::Group> MpiEngine::make_group(const std::string& name, const std::vector<int>& ranks, int member) {
  const auto making = std::make_shared<Making>();
  making->group = std::make_shared<Group>();
  making->group->name = name;
  making->group->ranks = ranks;
  making->group->link.rank = member;
  making->group->link.size = static_cast<int>(ranks.size());
  making->member = member;
  making->deadline_s = deadline_s_;
  post([this, making] { begin_making(making); });
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return making->over; });
  if (making->error) std::rethrow_exception(making->error);
  return making->group;
}

uint64_t MpiEngine::submit(const std::shared_ptr<Group>& group, const Collective& call) {
  const std::lock_guard lock(mutex_);
  const uint64_t ticket = ++group->started;
  inbox_.push_back([group, queued = Group::Queued{call, ticket, deadline_s_}] { group->queue.push_back(queued); });
  inbox_filled_ = true;
  work_.notify_one();
  return ticket;
}

void MpiEngine::wait(Group& group, uint64_t ticket) {
  std::unique_lock lock(mutex_);
  OCTET_CHECK(ticket >= 1 && ticket <= group.started, "group {}: waits for operation {} of {}", group.name, ticket, group.started);
  done_.wait(lock, [&] { return group.finished >= ticket; });
}

TrafficTable MpiEngine::traffic(const Group& group) {
  const std::lock_guard lock(mutex_);
  return group.traffic.table();
}

void MpiEngine::drop(const std::shared_ptr<Group>& group, bool abandoned) {
  if (!abandoned) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return group->finished == group->started; });
  }
  post([this, group, abandoned] {
    std::erase(groups_, group);   // its communicator stays until MPI_Finalize: freeing one may wait for the other members
    if (!abandoned) return;
    if (group->active) group->active->cancel();
    abandoned_.push_back(group);   // what has been matched still arrives
  });
}

void MpiEngine::poison(ExitCode code, const std::string& what) {
  bool sent = false;
  post([&, code] {
    send_poison(code, what, 2);
    const std::lock_guard lock(mutex_);
    sent = true;
    done_.notify_all();
  });
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return sent; });
}

void MpiEngine::stop() {
  post([this] { stopped_ = true; });
}

// ---- MPI's thread

void MpiEngine::loop() {
  guard_.watch_loop(true, deadline_s_ + kLoopGrace_s, fmt::format("{}: MPI's progress stopped within a call of the library", place(rank_)));
  still_since_ = Clock::now();
  try {
    while (!stopped_) {
      guard_.beat();
      const bool asked = run_inbox();
      const bool moved = poll_groups();
      idle(poll_making() || moved || asked);
      poll_poison();
    }
  } catch (const Error& e) {
    fault(e.code, fmt::format("{}: {}", place(rank_), e.what()));
  }
  guard_.watch_loop(false, 0, {});
}

bool MpiEngine::run_inbox() {
  if (!inbox_filled_.exchange(false)) return false;
  std::deque<std::function<void()>> inbox;
  {
    const std::lock_guard lock(mutex_);
    inbox.swap(inbox_);
  }
  for (const auto& work : inbox) work();
  return !inbox.empty();
}

bool MpiEngine::poll_groups() {
  bool moved = false;
  for (size_t i = 0; i < groups_.size(); ++i) moved |= advance(*groups_[i]);
  return moved;
}

bool MpiEngine::advance(Group& group) {
  bool moved = false;
  if (!group.active) {
    if (group.queue.empty()) return false;
    group.begin = Clock::now();
    group.active = std::make_unique<MpiTransfer>(group.link, group.queue.front().call, group.queue.front().ticket);
    moved = true;
  } else {
    moved = group.active->poll();
  }
  if (group.active->done()) {
    const int64_t sent = group.active->sent();
    group.active.reset();
    const std::lock_guard lock(mutex_);
    group.traffic.add(group.queue.front().call, sent);
    group.finished = group.queue.front().ticket;
    group.queue.pop_front();
    done_.notify_all();
  } else if (!moved && seconds_since(group.begin) > group.queue.front().deadline_s) {
    late(group);
  }
  return moved;
}

void MpiEngine::late(const Group& group) {
  const Group::Queued& op = group.queue.front();
  std::vector<int> ranks;
  for (int member : group.active->waiting_for()) ranks.push_back(group.ranks[static_cast<size_t>(member)]);
  fault(ExitCode::deadline, fmt::format("{}, group {}: {}, operation {}, has taken {:.1f} s of the {} s that it may take (guard.deadline_s); it waits for {}", place(rank_), group.name,
                                        describe(op.call), op.ticket, seconds_since(group.begin), op.deadline_s, places(ranks)));
}

void MpiEngine::begin_making(const std::shared_ptr<Making>& making) {
  OCTET_CHECK(!making_, "two groups are being made at once: {} and {}", making_->group->name, making->group->name);
  making_ = making;
  Making& m = *making;
  m.begin = Clock::now();
  const size_t n = m.group->ranks.size();
  m.hello.resize(n);
  m.hello[static_cast<size_t>(m.member)] = hello_of(m.group->name, m.group->ranks);
  for (size_t k = 0; k < n; ++k) {
    if (static_cast<int>(k) == m.member) continue;
    m.requests.resize(m.requests.size() + 2, MPI_REQUEST_NULL);
    const int peer = m.group->ranks[k];
    mpi_must(MPI_Irecv(m.hello[k].data(), kHelloBytes, MPI_BYTE, peer, kHelloTag, control_, &m.requests[m.requests.size() - 2]), "MPI_Irecv");
    mpi_must(MPI_Isend(m.hello[static_cast<size_t>(m.member)].data(), kHelloBytes, MPI_BYTE, peer, kHelloTag, control_, &m.requests.back()), "MPI_Isend");
  }
}

bool MpiEngine::poll_making() {
  if (!making_) return false;
  Making& m = *making_;
  int all = 0;
  mpi_must(MPI_Testall(static_cast<int>(m.requests.size()), m.requests.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
  if (!all) {
    if (seconds_since(m.begin) > m.deadline_s) {
      fault(ExitCode::deadline, fmt::format("{}: the group {} of the ranks {} was not made within {} s: not all of them make it", place(rank_), m.group->name,
                                            fmt::join(m.group->ranks, ", "), m.deadline_s));
    }
    return false;
  }
  complete_making();
  return true;
}

void MpiEngine::complete_making() {
  const std::shared_ptr<Making> making = std::move(making_);
  Making& m = *making;
  Group& group = *m.group;
  try {
    for (size_t k = 0; k < m.hello.size(); ++k) {
      OCTET_CHECK(m.hello[k] == m.hello[static_cast<size_t>(m.member)], "rank {} makes the group {} of the ranks {} while rank {} makes the group {}, or of other ranks", rank_, group.name,
                  fmt::join(group.ranks, ", "), group.ranks[k], m.hello[k].data() + sizeof(uint64_t));
    }
    guard_.arm(m.deadline_s, ExitCode::deadline, fmt::format("{}: making the group {} has taken {} s", place(rank_), group.name, m.deadline_s));
    MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    mpi_must(MPI_Comm_group(control_, &world), "MPI_Comm_group");
    mpi_must(MPI_Group_incl(world, static_cast<int>(group.ranks.size()), group.ranks.data(), &members), "MPI_Group_incl");
    mpi_must(MPI_Comm_create_group(control_, members, 0, &group.link.comm), "MPI_Comm_create_group");
    mpi_must(MPI_Group_free(&members), "MPI_Group_free");
    mpi_must(MPI_Group_free(&world), "MPI_Group_free");
    mpi_must(MPI_Comm_set_errhandler(group.link.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    guard_.disarm();
    // Not touched until a reduction needs it, and then only as far as it does.
    const int64_t bytes = 2 * (group.link.size - 1) * mpi_chunk_bytes(group.link.size);
    group.scratch.reset(new std::byte[static_cast<size_t>(bytes)]);
    group.link.scratch = group.scratch.get();
    groups_.push_back(m.group);
  } catch (const Error&) {
    guard_.disarm();
    m.error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  m.over = true;
  done_.notify_all();
}

void MpiEngine::idle(bool moved) {
  using namespace std::chrono_literals;
  const Time now = Clock::now();
  if (moved) {
    still_since_ = now;
    return;
  }
  const bool outstanding = making_ || std::any_of(groups_.begin(), groups_.end(), [](const auto& g) { return g->active || !g->queue.empty(); });
  const auto still = now - still_since_;
  if (outstanding && still < 20us) return;
  if (outstanding && still < 500us) {
    ::sched_yield();
    return;
  }
  // Nothing outstanding: still some turns a second, for another rank's fault.
  const auto pause = !outstanding ? 20ms : still < 2ms ? 20us : still < 200ms ? 50us : 500us;
  std::unique_lock lock(mutex_);
  work_.wait_for(lock, pause, [&] { return !inbox_.empty(); });
}

// ---- faults

void MpiEngine::receive_poison() {
  mpi_must(MPI_Irecv(poison_in_.data(), static_cast<int>(kPoisonBytes), MPI_BYTE, MPI_ANY_SOURCE, kPoisonTag, control_, &poison_request_), "MPI_Irecv");
}

void MpiEngine::poll_poison() {
  int arrived = 0;
  MPI_Status status;
  mpi_must(MPI_Test(&poison_request_, &arrived, &status), "MPI_Test");
  if (!arrived) return;
  if (poisoned_) return receive_poison();   // this rank has a fault of its own to tell
  int32_t code = 0;
  std::memcpy(&code, poison_in_.data(), sizeof code);
  const char* text = poison_in_.data() + sizeof code;
  print_error_line(fmt::format("{} ended: {}", place(status.MPI_SOURCE), std::string(text, ::strnlen(text, kPoisonBytes - sizeof code))));
  // The rank with the fault goes first: launchers blame the first one, and kill the others at once, perhaps before it has printed its own line.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ::_exit(code);
}

void MpiEngine::send_poison(ExitCode code, const std::string& what, double limit_s) {
  if (poisoned_ || size_ == 1) return;
  poisoned_ = true;
  guard_.arm(limit_s + 2, code, what);   // a send may not come back
  const int32_t number = static_cast<int32_t>(code);
  std::memcpy(poison_out_.data(), &number, sizeof number);
  what.copy(poison_out_.data() + sizeof number, kPoisonBytes - sizeof number - 1);
  std::vector<MPI_Request> requests;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    requests.push_back(MPI_REQUEST_NULL);
    // A rank that is gone can not be told: its failure is no news.
    if (MPI_Isend(poison_out_.data(), static_cast<int>(sizeof number + std::min(what.size() + 1, kPoisonBytes - sizeof number)), MPI_BYTE, r, kPoisonTag, control_, &requests.back()) != MPI_SUCCESS) {
      requests.back() = MPI_REQUEST_NULL;
    }
  }
  const Time begin = Clock::now();
  Time sent{};
  // Sent is what has left this process's buffers; some turns more let the transport empty its own.
  while (seconds_since(begin) < limit_s && (sent == Time{} || seconds_since(sent) < 0.05)) {
    int all = 0, arrived = 0;
    if (sent == Time{} && (MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS || all)) sent = Clock::now();
    MPI_Iprobe(MPI_ANY_SOURCE, kPoisonTag, control_, &arrived, MPI_STATUS_IGNORE);
    guard_.beat();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  guard_.disarm();
}

void MpiEngine::fault(ExitCode code, const std::string& text) {
  print_error_line(text);
  send_poison(code, text, 0.5);   // some are gone or stand still
  ::_exit(static_cast<int>(code));
}

void MpiEngine::finish() {
  MPI_Request request = MPI_REQUEST_NULL;
  const Time begin = Clock::now();
  still_since_ = begin;
  try {
    guard_.watch_loop(true, deadline_s_ + kLoopGrace_s, fmt::format("{}: MPI's progress stopped within a call of the library", place(rank_)));
    mpi_must(MPI_Ibarrier(control_, &request), "MPI_Ibarrier");
    for (int all = 0; !all;) {
      guard_.beat();
      mpi_must(MPI_Test(&request, &all, MPI_STATUS_IGNORE), "MPI_Test");
      if (all) break;
      poll_poison();
      if (seconds_since(begin) > deadline_s_) fault(ExitCode::deadline, fmt::format("{}: at the end of the run, not all ranks have come back within {} s", place(rank_), deadline_s_.load()));
      std::this_thread::sleep_for(std::chrono::microseconds(seconds_since(begin) < 0.1 ? 50 : 1000));
    }
    guard_.watch_loop(false, 0, {});
    guard_.arm(deadline_s_, ExitCode::deadline, fmt::format("{}: MPI_Finalize has taken {} s", place(rank_), deadline_s_.load()));
    mpi_must(MPI_Cancel(&poison_request_), "MPI_Cancel");
    mpi_must(MPI_Wait(&poison_request_, MPI_STATUS_IGNORE), "MPI_Wait");
    mpi_must(MPI_Finalize(), "MPI_Finalize");
    guard_.disarm();
  } catch (const Error& e) {
    fault(e.code, fmt::format("{}: {}", place(rank_), e.what()));
  }
}

}  // namespace octet
