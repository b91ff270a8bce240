// World and Comm over MPI, and run_ranks(): what runs in which thread.
#include <mpi.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <functional>
#include <optional>

#include "comm/launch.h"
#include "comm/local.h"
#include "comm/mpi_engine.h"
#include "comm/world.h"
#include "core/error_text.h"

namespace octet {
namespace {

class MpiComm : public Comm {
 public:
  MpiComm(MpiEngine& engine, std::shared_ptr<MpiEngine::Group> group) : Comm(group->name, group->link.rank, group->link.size), engine_(engine), group_(std::move(group)) {}
  ~MpiComm() override { engine_.drop(group_, std::uncaught_exceptions() > 0); }

  Ticket start(const Collective& call) override {
    check_collective(call, name(), size());
    return engine_.submit(group_, call);
  }
  void wait(Ticket ticket) override { engine_.wait(*group_, ticket); }
  TrafficTable traffic() const override { return engine_.traffic(*group_); }

 private:
  MpiEngine& engine_;
  std::shared_ptr<MpiEngine::Group> group_;
};

class MpiWorld : public World {
 public:
  explicit MpiWorld(MpiEngine& engine) : engine_(engine) {
    rank_ = engine.rank();
    size_ = engine.size();
    local_rank_ = engine.local_rank();
    local_size_ = engine.local_size();
    hosts_ = engine.hosts();
  }
  std::unique_ptr<Comm> group(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_unique<MpiComm>(engine_, engine_.make_group(name, ranks, member_of(name, ranks, rank_, size_)));
  }
  void set_deadline(double seconds) override { engine_.set_deadline(seconds); }
  void poison(ExitCode code, const std::string& what) override { engine_.poison(code, what); }

 private:
  MpiEngine& engine_;
};

// The program proper: a thread with a stack like the first one's.
class ProgramThread {
 public:
  explicit ProgramThread(std::function<void()> body) : body_(std::move(body)) {
    rlimit stack{};
    size_t bytes = size_t{8} << 20;
    if (::getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY) bytes = std::max<size_t>(bytes, std::min<size_t>(stack.rlim_cur, size_t{1} << 30));
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, bytes);
    const int rc = ::pthread_create(&thread_, &attributes, [](void* self) -> void* {
      static_cast<ProgramThread*>(self)->body_();
      return nullptr;
    }, this);
    ::pthread_attr_destroy(&attributes);
    if (rc != 0) throw Error(ExitCode::device, fmt::format("a thread with a stack of {} bytes could not be started (error {})", bytes, rc), "launch");
  }
  ~ProgramThread() { ::pthread_join(thread_, nullptr); }
  ProgramThread(const ProgramThread&) = delete;
  ProgramThread& operator=(const ProgramThread&) = delete;

 private:
  std::function<void()> body_;
  pthread_t thread_{};
};

void start_mpi(MpiGuard& guard, const Launch& launch, double deadline_s) {
  const std::string who = fmt::format("a process started by {}", launch.launcher);
  guard.arm(std::max(deadline_s, 120.0), ExitCode::deadline, fmt::format("{}: MPI_Init_thread does not come back", who));
  guard.own_exit(true, fmt::format("{}: the MPI library ended the process in MPI_Init_thread: was it built for this launcher? See its message above; with srun try --mpi=pmix or --mpi=pmi2", who));
  int provided = MPI_THREAD_SINGLE, size = 0;
  mpi_must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) throw Error(ExitCode::device, "this MPI library does not support MPI_THREAD_FUNNELED", "MPI", "use one built with thread support");
  mpi_must(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  guard.disarm();
  check_launch(launch, size, mpi_library());
}

}  // namespace

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "unknown";
  std::string library(text, static_cast<size_t>(std::max(0, length)));
  std::replace(library.begin(), library.end(), '\t', ' ');   // MPICH's
  return library.substr(0, library.find_first_of(",\n"));   // "Open MPI v4.1.4"
}

size_t World::scratch_bytes(int ranks) { return ranks < 2 ? 0 : 2 * static_cast<size_t>(ranks - 1) * static_cast<size_t>(mpi_chunk_bytes(ranks)); }

int run_ranks(const World::Options& options, const std::function<int(World&)>& program) {
  const Launch launch = options.environment ? find_launch(options.environment) : Launch{};
  if (launch.launcher.empty() || launch.size == 1) {
    LocalJob job;
    LocalWorld world(job, 0, 1, options);
    return program(world);
  }
  // Writing to the connection of a rank that has been killed must be an error of that write, not the end of this process without a word.
  std::signal(SIGPIPE, SIG_IGN);
  MpiGuard guard;
  start_mpi(guard, launch, options.deadline_s);
  guard.arm(std::max(options.deadline_s, 120.0), ExitCode::deadline, "the ranks do not find each other");
  MpiEngine engine(guard, options.deadline_s);
  guard.disarm();
  guard.own_exit(true, fmt::format("rank {} on {}: the MPI library ended the process: another rank or the network is gone", engine.rank(), engine.hosts()[static_cast<size_t>(engine.rank())]));
  int result = 0;
  std::exception_ptr thrown;
  std::optional<Error> error;
  {
    const ProgramThread thread([&] {
      try {
        MpiWorld world(engine);
        result = program(world);
      } catch (...) {
        thrown = std::current_exception();
        error = caught_error();
      }
      engine.stop();
    });
    engine.loop();
  }
  if (thrown) {
    if (!error->shared) engine.send_poison(error->code, error->what(), 2);
    guard.own_exit(false, {});
    std::rethrow_exception(thrown);
  }
  engine.finish();
  guard.own_exit(false, {});
  return result;
}

}  // namespace octet
