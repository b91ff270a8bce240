// Several ranks that save together: threads of this process, or processes that can be killed.
#pragma once
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

#include "unit/checkpoint/support.h"

namespace octet::test {

// The exchange of n threads.
class Meeting {
 public:
  explicit Meeting(int ranks) : texts_(static_cast<size_t>(ranks)) {}

  std::vector<std::string> exchange(int rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    texts_[static_cast<size_t>(rank)] = mine;
    const int round = round_;
    if (++arrived_ == static_cast<int>(texts_.size())) {
      told_ = texts_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return round_ != round; })) {
      throw std::runtime_error("a rank did not come to the exchange");
    }
    return told_;  // the next round is not over before this rank has come to it
  }
  int rounds() const { return round_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, told_;
  int arrived_ = 0, round_ = 0;
};

struct Outcome {
  fs::path path;     // returned
  std::string line;  // of the error; empty: none
  ExitCode code = ExitCode::ok;
};

// Runs save(group) as each of n ranks, "node<rank>" being their hosts; returns what became of each.
inline std::vector<Outcome> save_together(int n, const std::function<fs::path(const SaveGroup&)>& save) {
  Meeting meeting(n);
  std::vector<Outcome> outcomes(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      Outcome& mine = outcomes[static_cast<size_t>(rank)];
      try {
        mine.path = save({rank, n, [&, rank](const std::string& text) { return meeting.exchange(rank, text); }, "node" + std::to_string(rank)});
      } catch (const Error& e) {
        mine.line = e.what();
        mine.code = e.code;
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  }
  for (auto& t : threads) t.join();
  return outcomes;
}

// All ranks failed with the same line of that code, which is returned.
inline std::string common_error(ExitCode code, const std::vector<Outcome>& outcomes) {
  for (const Outcome& o : outcomes) {
    EXPECT_EQ(static_cast<int>(o.code), static_cast<int>(code)) << o.line;
    EXPECT_EQ(o.line, outcomes[0].line);
    EXPECT_EQ(o.line.find('\n'), std::string::npos) << o.line;
  }
  EXPECT_FALSE(outcomes[0].line.empty());
  return outcomes[0].line;
}

// The fill state of support.h, cut over n ranks: rank 0 has the norm, the moment and the state, the weight's 6 rows are cut over all (n <= 6).
inline std::vector<TensorToSave> share_of(const SmallState& state, int rank, int n) {
  std::vector<TensorToSave> all = state.tensors(), mine;
  if (rank == 0) mine.assign(all.begin() + 1, all.end());
  TensorToSave& weight = all.front();
  const int64_t first = rank == 0 ? 0 : 6 - (n - rank), last = 6 - (n - rank - 1);  // rank 0 has what the others, with one row each, leave
  mine.push_back({weight.group, weight.name, Dtype::f32, {last - first, 4}, static_cast<const float*>(weight.data) + first * 4, weight.shape, {first, 0}});
  return mine;
}

inline fs::path save_share(const fs::path& dir, int64_t step, float fill, const SaveGroup& group, int64_t keep_last = 0,
                           std::function<void(SavePhase)> hook = {}) {
  const SmallState state(fill);
  SaveOptions options;
  options.step = step;
  options.keep_last = keep_last;
  options.after_phase = std::move(hook);
  return save_checkpoint(dir, options, share_of(state, group.rank, group.size), {{"step", step}, {"fill", fill}}, group);
}

inline void send_text(int fd, const std::string& text) {
  const uint64_t n = text.size();
  const std::string all = std::string(reinterpret_cast<const char*>(&n), sizeof n) + text;
  for (size_t at = 0; at < all.size();) {
    const ssize_t sent = ::send(fd, all.data() + at, all.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) throw Error(ExitCode::device, "a rank is lost");
    at += static_cast<size_t>(sent);
  }
}

inline std::string receive_text(int fd) {
  const auto receive = [&](char* out, size_t n) {
    for (size_t at = 0; at < n;) {
      const ssize_t got = ::recv(fd, out + at, n - at, 0);
      if (got <= 0) throw Error(ExitCode::device, "a rank is lost");
      at += static_cast<size_t>(got);
    }
  };
  uint64_t n = 0;
  receive(reinterpret_cast<char*>(&n), sizeof n);
  std::string text(n, '\0');
  receive(text.data(), n);
  return text;
}

// Runs body(group) as each of n ranks in a process of its own; this process carries their exchange, and closes it when one is gone. Returns waitpid's
// statuses; an Error ends a process with its code.
inline std::vector<int> save_by_processes(int n, const std::function<void(const SaveGroup&)>& body) {
  std::vector<int> links;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < n; ++rank) {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    links.push_back(pair[0]);
    pids.push_back(::fork());
    if (pids.back() == 0) {
      for (int fd : links) ::close(fd);
      const auto exchange = [&](const std::string& mine) {
        send_text(pair[1], mine);
        std::vector<std::string> texts;
        for (int i = 0; i < n; ++i) texts.push_back(receive_text(pair[1]));
        return texts;
      };
      int code = 0;
      try {
        body({rank, n, exchange, "node" + std::to_string(rank)});
      } catch (const Error& e) {
        code = static_cast<int>(e.code);
      } catch (...) {
        code = 99;
      }
      ::_exit(code);
    }
    ::close(pair[1]);
  }
  try {
    for (;;) {
      std::vector<std::string> texts;
      for (int fd : links) texts.push_back(receive_text(fd));
      for (int fd : links) {
        for (const auto& text : texts) send_text(fd, text);
      }
    }
  } catch (const Error&) {  // a rank has ended, as all do at last
  }
  for (int fd : links) ::close(fd);
  std::vector<int> statuses;
  for (const pid_t pid : pids) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    statuses.push_back(status);
  }
  return statuses;
}

}  // namespace octet::test
