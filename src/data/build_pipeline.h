// Ordered parallel work: chunks are read in order, encoded by several threads, and written in the order they were read. So the output and
// the first error do not depend on the number of threads. At most 2 x threads chunks are in memory.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace octet::data {

// read(in) fills the next item or says false; encode(in, out, worker) is called by worker 0 ... threads - 1, one at a time each; write(in, out) and
// read run on the calling thread, which encodes too when it has nothing else to do. An exception of any of them is rethrown at its place in
// the order; the items before it are written.
template <class In, class Out>
class OrderedPipeline {
 public:
  struct Item {
    In in;
    Out out;
    std::exception_ptr failure;
    bool taken = false, done = false;
  };

  OrderedPipeline(int threads, std::function<bool(In&)> read, std::function<void(In&, Out&, int)> encode, std::function<void(In&, Out&)> write)
      : threads_(threads), read_(std::move(read)), encode_(std::move(encode)), write_(std::move(write)) {}

  void run() {
    for (int worker = 1; worker < threads_; ++worker) workers_.emplace_back([this, worker] { work(worker); });
    const Stopper stop{*this};
    bool more = true;
    std::unique_lock lock(mutex_);
    while (true) {
      if (!window_.empty() && window_.front()->done) {
        const std::unique_ptr<Item> item = std::move(window_.front());
        window_.pop_front();
        lock.unlock();
        if (item->failure) std::rethrow_exception(item->failure);
        write_(item->in, item->out);
        lock.lock();
        recycle(std::move(*item));
      } else if (more && window_.size() < 2 * static_cast<size_t>(threads_)) {
        auto item = std::make_unique<Item>(std::move(spare_));
        lock.unlock();
        more = read(*item);
        lock.lock();
        if (more || item->failure) window_.push_back(std::move(item));
        wake_.notify_one();
      } else if (Item* item = take()) {
        encode(*item, 0, lock);
      } else if (window_.empty()) {
        return;
      } else {
        done_.wait(lock, [&] { return window_.front()->done; });
      }
    }
  }

 private:
  struct Stopper {
    OrderedPipeline& of;
    ~Stopper() {
      {
        const std::lock_guard lock(of.mutex_);
        of.stop_ = true;
      }
      of.wake_.notify_all();
      for (std::thread& worker : of.workers_) worker.join();
    }
  };

  bool read(Item& item) {
    try {
      return read_(item.in);
    } catch (...) {
      item.failure = std::current_exception();
      item.taken = item.done = true;
      return false;
    }
  }
  // Buffers of a written item are used again.
  void recycle(Item item) {
    spare_ = std::move(item);
    spare_.taken = spare_.done = false;
  }
  Item* take() {
    for (const auto& item : window_) {
      if (item->taken) continue;
      item->taken = true;
      return item.get();
    }
    return nullptr;
  }
  void encode(Item& item, int worker, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::exception_ptr failure;
    try {
      encode_(item.in, item.out, worker);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    item.failure = failure;
    item.done = true;
    done_.notify_one();
  }
  void work(int worker) {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (Item* item = take()) encode(*item, worker, lock);
      else wake_.wait(lock);
    }
  }

  int threads_;
  std::function<bool(In&)> read_;
  std::function<void(In&, Out&, int)> encode_;
  std::function<void(In&, Out&)> write_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::unique_ptr<Item>> window_;   // in order; an item stays here until it is written
  Item spare_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace octet::data
