#include "comm/nccl.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "comm/collective.h"
#include "comm/mpi_guard.h"

namespace octet {
namespace {

using NcclClock = std::chrono::steady_clock;

[[noreturn]] void nccl_fail(const std::string& what, const std::string& reason, const std::string& group) {
  throw Error(ExitCode::device, fmt::format("{} failed: {}", what, reason), fmt::format("NCCL, group {}", group), "NCCL_DEBUG=INFO shows more");
}

void cuda_must_for(const std::string& group, cudaError_t error, const char* what) {
  if (error != cudaSuccess) nccl_fail(what, cudaGetErrorString(error), group);
}

ncclDataType_t sum_type(Dtype dtype) {
  return dtype == Dtype::f32 ? ncclFloat32 : dtype == Dtype::bf16 ? ncclBfloat16 : dtype == Dtype::f64 ? ncclFloat64 : ncclInt64;
}

// Without a sign, the order of floats is that of their bits, infinity and NaN last.
ncclDataType_t max_type(Dtype dtype) {
  return dtype == Dtype::f32 ? ncclUint32 : dtype == Dtype::f64 ? ncclUint64 : ncclInt64;
}

bool all_equal(const Pieces& pieces, int size) {
  for (int r = 1; r < size; ++r) {
    if (pieces.count(r) != pieces.count(0)) return false;
  }
  return true;
}

}  // namespace

std::string nccl_version() {
  int v = 0;   // 22809: major * 10000 + minor * 100 + patch
  return ncclGetVersion(&v) == ncclSuccess ? fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100) : "unknown";
}

struct NcclComm::State {
  // An operation on its way. `ready`: the compute stream has come to it; `done`: it is over.
  struct Pending {
    Ticket ticket;
    std::string what;
    double deadline_s;
    cudaEvent_t ready, done;
    bool running = false;
    NcclClock::time_point begin{};   // of its time: from `ready`, and from when the one before it was over
  };

  State(World& world_, std::string name_, int rank_, int size_, cudaStream_t compute_, double deadline)
      : world(world_), name(std::move(name_)), rank(rank_), size(size_), compute(compute_), deadline_s(deadline) {}

  // Of messages that other ranks repeat.
  std::string who() const { return fmt::format("rank {} on {}, group {}", world.rank(), world.hosts()[static_cast<size_t>(world.rank())], name); }
  void cuda(cudaError_t error, const char* what) const { cuda_must_for(name, error, what); }
  void settle(ncclResult_t rc, const char* what);
  void connect(Comm& host);
  cudaEvent_t event();
  Ticket start(const Collective& call);
  void enqueue(const Collective& call);
  ncclResult_t enqueue(const Collective& call, const TensorInPieces& t);
  void watch();
  void check_pending();
  [[noreturn]] void fault(ExitCode code, const std::string& text);

  World& world;
  const std::string name;
  const int rank, size;
  const cudaStream_t compute;
  int device = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::atomic<double> deadline_s;

  std::mutex calls;                          // of calls of NCCL once the watcher is there: asking for a communicator's state also ends what a call left running, in either thread
  std::mutex mutex;                          // of what follows; not held in calls of NCCL
  Ticket started = 0;
  std::deque<Pending> pending;
  std::vector<cudaEvent_t> spare;
  NcclClock::time_point last_end{};
  TrafficCount count;
  bool stop = false;
  std::thread watcher;
};

// A call of a non-blocking communicator may go on in the background; nothing else may be asked of it meanwhile.
void NcclComm::State::settle(ncclResult_t rc, const char* what) {
  const auto begin = NcclClock::now();
  ncclResult_t state = rc;
  while (state == ncclInProgress) {
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) nccl_fail(what, "the communicator's state can not be read", name);
    if (state != ncclInProgress) break;
    if (std::chrono::duration<double>(NcclClock::now() - begin).count() > deadline_s) {
      fault(ExitCode::deadline, fmt::format("{}: {} has taken {} s", who(), what, deadline_s.load()));
    }
    // NCCL's own thread has an operation in its stream within some 70 us (docs/benchmarks/multi_gpu.md). A sleep would double that, and a step of many layers has hundreds of operations.
    if (NcclClock::now() - begin < std::chrono::milliseconds(1)) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (state != ncclSuccess) nccl_fail(what, fmt::format("{}: {}", ncclGetErrorString(state), ncclGetLastError(comm)), name);
}

void NcclComm::State::connect(Comm& host) {
  cuda(cudaGetDevice(&device), "cudaGetDevice");
  std::string id;
  if (rank == 0) {
    ncclUniqueId made{};
    const ncclResult_t rc = ncclGetUniqueId(&made);
    // The others wait for the text, so a failure travels as an empty one.
    if (rc == ncclSuccess) id.assign(made.internal, sizeof made.internal);
  }
  id = octet::exchange(host, id)[0];
  ncclUniqueId shared{};
  if (id.size() != sizeof shared.internal) nccl_fail("ncclGetUniqueId", "rank 0 of the group has none", name);
  std::memcpy(shared.internal, id.data(), id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name.c_str();
  settle(ncclCommInitRankConfig(&comm, size, shared, rank, &config), "ncclCommInitRankConfig");
  int least = 0, greatest = 0;
  cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  // Before compute: a few CTAs whose delay the other ranks share.
  cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  watcher = std::thread([this] { watch(); });
}

cudaEvent_t NcclComm::State::event() {
  cudaEvent_t e = nullptr;
  const std::lock_guard lock(mutex);
  if (spare.empty()) {
    cuda(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return e;
  }
  e = spare.back();
  spare.pop_back();
  return e;
}

Comm::Ticket NcclComm::State::start(const Collective& call) {
  check_collective(call, name, size);
  const cudaEvent_t ready = event(), done = event();
  cuda(cudaEventRecord(ready, compute), "cudaEventRecord");
  cuda(cudaStreamWaitEvent(stream, ready, 0), "cudaStreamWaitEvent");
  if (call.elements() > 0) enqueue(call);
  cuda(cudaEventRecord(done, stream), "cudaEventRecord");
  const int64_t total = call.bytes();
  const int64_t own = even_pieces(call.elements(), size).count(rank) * static_cast<int64_t>(size_bytes(call.dtype()));
  const int64_t sent = call.kind == CollectiveKind::all_reduce ? total - own + own * (size - 1) : sent_bytes(call, rank, size);
  const std::lock_guard lock(mutex);
  const Ticket ticket = ++started;
  count.add(call, sent);
  pending.push_back({ticket, describe(call), deadline_s, ready, done});
  return ticket;
}

// Calls of a group are not looked at one by one: what they return before its end is "in progress", or an error that ends the operation.
void NcclComm::State::enqueue(const Collective& call) {
  const std::lock_guard lock(calls);
  settle(ncclGroupStart(), "ncclGroupStart");
  ncclResult_t first_error = ncclSuccess;
  for (const TensorInPieces& t : call.x) {
    if (first_error == ncclSuccess && t.x.elements() > 0) first_error = enqueue(call, t);
  }
  const ncclResult_t rc = ncclGroupEnd();
  settle(first_error != ncclSuccess ? first_error : rc, describe(call).c_str());
}

ncclResult_t NcclComm::State::enqueue(const Collective& call, const TensorInPieces& t) {
  char* x = static_cast<char*>(t.x.data);
  const size_t element = size_bytes(t.x.dtype);
  const ncclDataType_t type = sum_type(t.x.dtype);
  const auto at = [&](int r) { return x + static_cast<size_t>(t.pieces.first(r)) * element; };
  const auto elements = [&](int r) { return static_cast<size_t>(t.pieces.count(r)); };
  const auto error_of = [](ncclResult_t rc) { return rc == ncclInProgress ? ncclSuccess : rc; };
  const bool sum = call.reduce == Reduce::sum, scatter = call.kind == CollectiveKind::reduce_scatter;
  if (call.kind == CollectiveKind::all_reduce) {
    return error_of(ncclAllReduce(x, x, static_cast<size_t>(t.x.elements()), sum ? type : max_type(t.x.dtype), sum ? ncclSum : ncclMax, comm, stream));
  }
  if (call.kind == CollectiveKind::broadcast) return error_of(ncclBroadcast(x, x, t.x.bytes(), ncclUint8, call.root, comm, stream));
  if (all_equal(t.pieces, size)) {
    return error_of(scatter ? ncclReduceScatter(x, at(rank), elements(rank), type, ncclSum, comm, stream) : ncclAllGather(at(rank), x, elements(rank) * element, ncclUint8, comm, stream));
  }
  ncclResult_t error = ncclSuccess;
  for (int r = 0; r < size && error == ncclSuccess; ++r) {
    if (elements(r) == 0) continue;
    error = error_of(scatter ? ncclReduce(at(r), at(r), elements(r), type, ncclSum, r, comm, stream) : ncclBroadcast(at(r), at(r), elements(r) * element, ncclUint8, r, comm, stream));
  }
  return error;
}

void NcclComm::State::fault(ExitCode code, const std::string& text) {
  print_error_line(text);
  world.poison(code, text);
  ::_exit(static_cast<int>(code));
}

void NcclComm::State::watch() {
  cudaSetDevice(device);
  // Asking for events must not disturb a recording (of a run's own work) in another thread.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  for (;;) {
    {
      const std::lock_guard lock(mutex);
      if (stop) return;
      check_pending();
    }
    ncclResult_t state = ncclSuccess;
    if (const std::unique_lock lock(calls, std::try_to_lock); lock && ncclCommGetAsyncError(comm, &state) == ncclSuccess && state != ncclSuccess && state != ncclInProgress) {
      const std::lock_guard of_pending(mutex);
      const std::string during = pending.empty() ? std::string() : fmt::format("{}, operation {}: ", pending.front().what, pending.front().ticket);
      fault(ExitCode::device, fmt::format("{}: {}NCCL reports {}: {}", who(), during, ncclGetErrorString(state),
                                          ncclGetLastError(comm)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Takes away what is over; the front operation's time runs.
void NcclComm::State::check_pending() {
  const auto now = NcclClock::now();
  const auto reached = [&](cudaEvent_t e) {
    const cudaError_t error = cudaEventQuery(e);
    if (error == cudaSuccess) return true;
    if (error != cudaErrorNotReady) {
      fault(ExitCode::device, fmt::format("{}: {}, operation {}: {}", who(), pending.front().what, pending.front().ticket,
                                          cudaGetErrorString(error)));
    }
    return false;
  };
  while (!pending.empty()) {
    Pending& p = pending.front();
    if (reached(p.done)) {
      spare.insert(spare.end(), {p.ready, p.done});
      last_end = now;
      pending.pop_front();
      continue;
    }
    if (!p.running && reached(p.ready)) {
      p.running = true;
      p.begin = now;
    }
    const double seconds = p.running ? std::chrono::duration<double>(now - std::max(p.begin, last_end)).count() : 0;
    if (seconds > p.deadline_s) {
      fault(ExitCode::deadline, fmt::format("{}: {}, operation {}, has taken {:.1f} s of the {} s that it may take (guard.deadline_s); NCCL does not tell which rank it waits for",
                                            who(), p.what, p.ticket, seconds, p.deadline_s));
    }
    return;
  }
}

NcclComm::NcclComm(World& world, Comm& host, CUstream_st* compute, double deadline_s)
    : Comm(host.name(), host.rank(), host.size()), state_(std::make_unique<State>(world, host.name(), host.rank(), host.size(), compute, deadline_s)) {
  state_->connect(host);
}

NcclComm::~NcclComm() {
  State& s = *state_;
  const bool failing = std::uncaught_exceptions() > 0;
  for (bool over = failing; !over;) {   // the watcher takes them away, or ends the process
    {
      const std::lock_guard lock(s.mutex);
      over = s.pending.empty();
    }
    if (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const std::lock_guard lock(s.mutex);
    s.stop = true;
  }
  s.watcher.join();
  if (failing) return;   // the process is about to end; freeing the communicator could wait for other ranks
  try {
    s.settle(ncclCommFinalize(s.comm), "ncclCommFinalize");
  } catch (const Error& e) {
    s.fault(e.code, fmt::format("{}: {}", s.who(), e.what()));
  }
  ncclCommDestroy(s.comm);
  cudaStreamDestroy(s.stream);
  for (cudaEvent_t e : s.spare) cudaEventDestroy(e);
}

Comm::Ticket NcclComm::start(const Collective& call) { return state_->start(call); }

void NcclComm::wait(Ticket ticket) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);   // the watcher must not give the event to another operation meanwhile
  OCTET_CHECK(ticket >= 1 && ticket <= s.started, "group {}: waits for operation {} of {}", name(), ticket, s.started);
  for (const State::Pending& p : s.pending) {
    if (p.ticket == ticket) s.cuda(cudaStreamWaitEvent(s.compute, p.done, 0), "cudaStreamWaitEvent");
  }
}

TrafficTable NcclComm::traffic() const {
  const std::lock_guard lock(state_->mutex);
  return state_->count.table();
}

void NcclComm::set_deadline(double seconds) { state_->deadline_s = seconds; }

}  // namespace octet
