#include "simt.h"

#include "warpgroup.h"

#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

struct CUstream_st {
  bool recording = false;
  std::vector<std::function<void()>> recorded;
};
struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
};

namespace simt {
namespace {

constexpr int warp_size = 32, most_words = 16, named_barriers = 16;
enum class State : uint8_t { ready, at_warp_barrier, at_block_barrier, waiting, done };

struct Warp {
  uint64_t value[2][warp_size];
  uint32_t words[2][warp_size][most_words];
};

struct Copy {
  void* to;
  const void* from;
  int bytes;
  bool valid;
};

struct Fiber {
  Thread thread;
  State state = State::ready;
  std::function<bool()> awaited;           // waiting: for this
  int index = 0, parity = 0;
  Warp* warp = nullptr;
  std::vector<Copy> open;                  // the group that is being made
  std::vector<std::vector<Copy>> groups;   // oldest first
  Warpgroup* warpgroup = nullptr;
  WarpgroupThread products;
  boost::context::fiber self, scheduler;
};

struct NamedBarrier {
  int arrived = 0, threads = 0;
  int64_t phase = 0;
};

struct Machine {
  Order order = Order::forward;
  Fiber* current = nullptr;
  std::deque<std::function<void()>> later;   // of the copy engine, oldest first
  std::array<NamedBarrier, named_barriers> barriers;
  std::vector<std::byte> shared;
  std::byte* shared_base = nullptr;
  std::exception_ptr failure;
  int64_t launches = 0;
};

Machine& machine() {
  thread_local Machine m;
  return m;
}

void wait(State state) {
  Fiber& f = *machine().current;
  f.state = state;
  f.scheduler = std::move(f.scheduler).resume();
}

class Block {
 public:
  Block(Index3 grid, Index3 at, Index3 dim, const std::function<void()>& body) : fibers_(static_cast<size_t>(dim.x) * dim.y * dim.z), warps_((fibers_.size() + warp_size - 1) / warp_size), warpgroups_((fibers_.size() + warpgroup_size - 1) / warpgroup_size) {
    machine().later.clear();
    machine().barriers = {};
    for (size_t i = 0; i < fibers_.size(); ++i) {
      Fiber& f = fibers_[i];
      const auto n = static_cast<unsigned>(i);
      f.thread = {{n % dim.x, n / dim.x % dim.y, n / dim.x / dim.y}, at, dim, grid};
      f.index = static_cast<int>(i);
      f.warp = &warps_[i / warp_size];
      f.warpgroup = &warpgroups_[i / warpgroup_size];
      f.self = boost::context::fiber(std::allocator_arg, stacks(), [&f, &body](boost::context::fiber&& scheduler) {
        f.scheduler = std::move(scheduler);
        try {
          body();
          if (!f.open.empty() || !f.groups.empty()) throw std::runtime_error("simt: a thread ended before its asynchronous copies");
          if (!f.products.finished()) throw std::runtime_error("simt: a thread ended before its products");
        } catch (const boost::context::detail::forced_unwind&) {   // the block ended for another thread's failure: the library wants it back
          throw;
        } catch (...) {
          machine().failure = std::current_exception();
        }
        f.state = State::done;
        return std::move(f.scheduler);
      });
    }
  }

  void run(unsigned number) {
    while (true) {
      const bool ran = run_ready(number);
      if (machine().failure) std::rethrow_exception(std::exchange(machine().failure, nullptr));
      const bool released = release_warps() || release_block();
      if (ran || released) continue;
      std::deque<std::function<void()>>& later = machine().later;
      if (all(State::done)) {
        if (!later.empty()) throw std::runtime_error("simt: a block ended before its bulk copies");
        for (const NamedBarrier& b : machine().barriers) {
          if (b.arrived != 0) throw std::runtime_error("simt: a block ended with threads at a barrier that is not full");
        }
        return;
      }
      const bool copies_first = machine().order == Order::interleaved;
      if ((copies_first && copy_one()) || multiply_one() || copy_one()) continue;
      throw std::runtime_error("simt: deadlock: the threads of a block wait at different barriers");
    }
  }

 private:
  static boost::context::pooled_fixedsize_stack& stacks() {
    thread_local boost::context::pooled_fixedsize_stack pool(64 * 1024);
    return pool;
  }

  // What the machine does beside its threads, when none of them can run.
  static bool copy_one() {
    std::deque<std::function<void()>>& later = machine().later;
    if (later.empty()) return false;
    const bool newest_first = machine().order == Order::interleaved;   // copies overtake each other
    const std::function<void()> work = newest_first ? std::move(later.back()) : std::move(later.front());
    if (newest_first) later.pop_back();
    else later.pop_front();
    work();
    return true;
  }
  bool multiply_one() {
    for (Warpgroup& w : warpgroups_) {
      if (w.execute_wanted()) return true;
    }
    return false;
  }

  static bool can_run(Fiber& f) {
    if (f.state == State::waiting && f.awaited()) f.state = State::ready;
    return f.state == State::ready;
  }
  static void resume(Fiber& f) {
    machine().current = &f;
    f.self = std::move(f.self).resume();
  }

  bool run_ready(unsigned number) {
    bool ran = false;
    const size_t n = fibers_.size();
    for (size_t i = 0; i < n; ++i) {
      size_t at = i;
      if (machine().order == Order::backward) at = n - 1 - i;
      if (machine().order == Order::interleaved) at = (i * 37 + number * 11) % n;   // 37 shares no factor with a power of two; others are caught below
      Fiber& f = fibers_[at];
      if (!can_run(f)) continue;
      resume(f);
      ran = true;
    }
    if (ran) return true;
    for (Fiber& f : fibers_) {   // an order that visits not all
      if (!can_run(f)) continue;
      resume(f);
      return true;
    }
    return false;
  }

  bool release_warps() {
    bool released = false;
    for (size_t w = 0; w < warps_.size(); ++w) {
      const size_t begin = w * warp_size, end = std::min(fibers_.size(), begin + warp_size);
      bool waiting = false, complete = true;
      for (size_t i = begin; i < end; ++i) {
        waiting |= fibers_[i].state == State::at_warp_barrier;
        complete &= fibers_[i].state == State::at_warp_barrier || fibers_[i].state == State::done;
      }
      if (!waiting || !complete) continue;
      for (size_t i = begin; i < end; ++i) {
        if (fibers_[i].state == State::at_warp_barrier) fibers_[i].state = State::ready;
      }
      released = true;
    }
    return released;
  }

  bool release_block() {
    bool waiting = false;
    for (const Fiber& f : fibers_) {
      if (f.state == State::ready || f.state == State::at_warp_barrier || f.state == State::waiting) return false;
      waiting |= f.state == State::at_block_barrier;
    }
    if (!waiting) return false;
    for (Fiber& f : fibers_) {
      if (f.state == State::at_block_barrier) f.state = State::ready;
    }
    return true;
  }

  bool all(State state) const {
    for (const Fiber& f : fibers_) {
      if (f.state != state) return false;
    }
    return true;
  }

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<Warpgroup> warpgroups_;
};

}  // namespace

void set_order(Order order) { machine().order = order; }
const Thread& thread() { return machine().current->thread; }
std::byte* dynamic_shared_memory() { return machine().shared_base; }
void block_barrier() { wait(State::at_block_barrier); }
void warp_barrier() { wait(State::at_warp_barrier); }
int64_t launches() { return machine().launches; }
int lane() { return machine().current->index % warp_size; }

uint64_t exchange(uint64_t value, int source) {
  Fiber& f = *machine().current;
  const int parity = f.parity;
  f.parity ^= 1;
  f.warp->value[parity][lane()] = value;
  warp_barrier();
  return f.warp->value[parity][source >= 0 && source < warp_size ? source : lane()];
}

const uint32_t* publish(const uint32_t* values, int words, int source) {
  Fiber& f = *machine().current;
  if (words > most_words) throw std::runtime_error("simt: too many words for one exchange");
  if (source < 0) {   // gives its own values
    memcpy(f.warp->words[f.parity][lane()], values, static_cast<size_t>(words) * 4);
    warp_barrier();
    f.parity ^= 1;
    return nullptr;
  }
  return f.warp->words[f.parity ^ 1][source];
}

void copy_later(void* to, const void* from, int bytes, bool valid) { machine().current->open.push_back({to, from, bytes, valid}); }

void close_copies() {
  Fiber& f = *machine().current;
  f.groups.push_back(std::move(f.open));
  f.open.clear();
}

void finish_copies(int pending) {
  auto& groups = machine().current->groups;
  while (groups.size() > static_cast<size_t>(pending)) {
    for (const Copy& c : groups.front()) {
      if (c.valid) memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
      else memset(c.to, 0, static_cast<size_t>(c.bytes));
    }
    groups.erase(groups.begin());
  }
}

void wait_until(std::function<bool()> ready) {
  if (ready()) return;
  machine().current->awaited = std::move(ready);
  wait(State::waiting);
}

void do_later(std::function<void()> work) {
  if (machine().order == Order::backward || machine().order == Order::eager_copies) return work();
  machine().later.push_back(std::move(work));
}

void multiply_later(const Product& product) {
  Fiber& f = *machine().current;
  f.warpgroup->issue(f.products, f.index % warpgroup_size, product, machine().order == Order::backward);
}
void close_products() { machine().current->products.close(); }
void finish_products(int pending) {
  Fiber& f = *machine().current;
  const int64_t end = f.products.begin_finish(pending);
  f.warpgroup->want(end);
  wait_until([&f, end] { return f.warpgroup->finished(end); });
}

void named_barrier(int id, int threads, bool waits) {
  NamedBarrier& b = machine().barriers.at(static_cast<size_t>(id));
  const int64_t phase = b.phase;
  if (b.arrived > 0 && b.threads != threads) throw std::runtime_error("simt: threads differ about how many a barrier is of");
  b.threads = threads;
  if (++b.arrived == threads) {
    b.arrived = 0;
    ++b.phase;
  }
  if (waits) wait_until([&b, phase] { return b.phase != phase; });
}

CUstream_st* make_stream() { return new CUstream_st; }
bool recording(const CUstream_st* stream) { return stream && stream->recording; }
void submit(CUstream_st* stream, std::function<void()> work) {
  if (!recording(stream)) return work();
  stream->recorded.push_back(std::move(work));
}
void begin_recording(CUstream_st* stream) {
  stream->recording = true;
  stream->recorded.clear();
}
CUgraph_st* end_recording(CUstream_st* stream) {
  stream->recording = false;
  return new CUgraph_st{std::move(stream->recorded)};
}
CUgraphExec_st* instantiate(const CUgraph_st* graph) { return new CUgraphExec_st{graph->work}; }
void launch(const CUgraphExec_st* executable) {
  for (const auto& work : executable->work) work();
}
void destroy(CUstream_st* stream) { delete stream; }
void destroy(CUgraph_st* graph) { delete graph; }
void destroy(CUgraphExec_st* executable) { delete executable; }

void run(Index3 grid, Index3 block, size_t shared_bytes, const std::function<void()>& body) {
  Machine& m = machine();
  ++m.launches;
  m.shared.resize(shared_bytes + 1024);
  m.shared_base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(m.shared.data()) + 1023) / 1024 * 1024);
  unsigned number = 0;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        memset(m.shared_base, 0xFF, shared_bytes);
        Block(grid, {x, y, z}, block, body).run(number++);
      }
    }
  }
}

}  // namespace simt
