// ThreadPool: runs numbered tasks. Callers cut work into tiles whose number and content do not depend on the number of
// threads, and no two tasks write the same memory: so results are the same bits for any thread count.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace octet {

class ThreadPool {
 public:
  // threads = 0 takes the cores this process may use (sched_getaffinity, then the cgroup CPU quota).
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i, worker) once for each i in [0, count); worker is in [0, threads()) and distinguishes per-thread scratch.
  // Returns when all are done. The calling thread works too. Not reentrant. The first exception of a task is rethrown.
  void run(int64_t count, const std::function<void(int64_t task, int worker)>& task);

 private:
  void work(int worker);
  void drain(int worker);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t, int)>* task_ = nullptr;
  std::atomic<int64_t> next_{0};
  int64_t count_ = 0;
  uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
};

int usable_cores();

// Splits [0, n) into tiles of `tile` elements and calls body(begin, end, worker) for each.
template <class Body>
void parallel_tiles(ThreadPool& pool, int64_t n, int64_t tile, Body&& body) {
  const int64_t tiles = (n + tile - 1) / tile;
  pool.run(tiles, [&](int64_t i, int worker) { body(i * tile, std::min(n, (i + 1) * tile), worker); });
}

}  // namespace octet
