// nccl_check RANKS: NcclComm's operations against plain loops, one thread and one GPU a rank; for a machine with so many GPUs (ctest does not run it). Prints one line, and a time.
// Values are small whole numbers, whose sums are exact in any order.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "../unit/comm/collective_checks.h"
#include "comm/nccl.h"

using namespace octet;

namespace {

void must(cudaError_t error) {
  if (error != cudaSuccess) throw Error(ExitCode::device, cudaGetErrorString(error), "CUDA");
}

template <class T>
T whole_number(int rank, int64_t i) {
  return static_cast<T>(static_cast<int64_t>(comm_checks::scramble(static_cast<uint64_t>(rank * 1000003 + i)) % 201) - (sizeof(T) > 2 ? 100 : 0));
}

// A vector's values on the device while an operation runs.
template <class T>
class OnDevice {
 public:
  OnDevice(int rank, int64_t count, cudaStream_t stream) : host_(static_cast<size_t>(count)), stream_(stream) {
    for (int64_t i = 0; i < count; ++i) host_[static_cast<size_t>(i)] = whole_number<T>(rank, i);
    must(cudaMalloc(&device_, host_.size() * sizeof(T) + 1));
    must(cudaMemcpyAsync(device_, host_.data(), host_.size() * sizeof(T), cudaMemcpyHostToDevice, stream_));
  }
  ~OnDevice() { cudaFree(device_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  Tensor tensor() const { return {device_, comm_checks::dtype_of<T>(), {static_cast<int64_t>(host_.size())}}; }
  const std::vector<T>& fetch() {
    must(cudaMemcpyAsync(host_.data(), device_, host_.size() * sizeof(T), cudaMemcpyDeviceToHost, stream_));
    must(cudaStreamSynchronize(stream_));
    return host_;
  }

 private:
  std::vector<T> host_;
  void* device_ = nullptr;
  cudaStream_t stream_;
};

template <class T>
T sum_over(int ranks, int64_t i) {
  T sum = 0;
  for (int r = 0; r < ranks; ++r) sum = static_cast<T>(sum + whole_number<T>(r, i));
  return sum;
}

template <class T>
void check_sum(NcclComm& comm, int64_t count, cudaStream_t stream) {
  OnDevice<T> x(comm.rank(), count, stream);
  comm.wait(comm.all_reduce(x.tensor(), Reduce::sum));
  comm_checks::expect<T>(comm, "sum", x.fetch(), 0, count, [&](int64_t i) { return sum_over<T>(comm.size(), i); });
}

void check_sizes(NcclComm& comm, int64_t count, cudaStream_t stream) {
  const int n = comm.size(), me = comm.rank();
  check_sum<float>(comm, count, stream);
  check_sum<double>(comm, count, stream);
  check_sum<int64_t>(comm, count, stream);
  for (int kind = 0; kind < 4; ++kind) {
    const Pieces p = comm_checks::pieces(count, n, kind);
    OnDevice<float> x(me, count, stream);
    comm.wait(comm.reduce_scatter(x.tensor(), p));
    comm_checks::expect<float>(comm, "reduce_scatter", x.fetch(), p.first(me), p.count(me), [&](int64_t i) { return sum_over<float>(n, i); });
    OnDevice<uint16_t> y(me, count, stream);
    comm.wait(comm.all_gather(y.tensor(), p));
    const std::vector<uint16_t>& all = y.fetch();
    for (int r = 0; r < n; ++r) comm_checks::expect<uint16_t>(comm, "all_gather", all, p.first(r), p.count(r), [&](int64_t i) { return whole_number<uint16_t>(r, i); });
  }
  OnDevice<uint8_t> z(me, count, stream);
  comm.wait(comm.broadcast(z.tensor(), n - 1));
  comm_checks::expect<uint8_t>(comm, "broadcast", z.fetch(), 0, count, [&](int64_t i) { return whole_number<uint8_t>(n - 1, i); });
}

// Tensors of very different sizes in one operation.
void check_list(NcclComm& comm, cudaStream_t stream) {
  const int n = comm.size(), me = comm.rank();
  const std::vector<int64_t> counts = {1, 0, 70000, 5, 1 << 20};
  std::vector<std::unique_ptr<OnDevice<float>>> sums, scattered;
  std::vector<std::unique_ptr<OnDevice<uint16_t>>> gathered;
  std::vector<Tensor> whole;
  std::vector<TensorInPieces> to_scatter, to_gather;
  const auto cut = [&](size_t i) { return comm_checks::pieces(counts[i], n, static_cast<int>(i) % 4); };
  for (size_t i = 0; i < counts.size(); ++i) {
    whole.push_back(sums.emplace_back(std::make_unique<OnDevice<float>>(me, counts[i], stream))->tensor());
    to_scatter.push_back({scattered.emplace_back(std::make_unique<OnDevice<float>>(me, counts[i], stream))->tensor(), cut(i)});
    to_gather.push_back({gathered.emplace_back(std::make_unique<OnDevice<uint16_t>>(me, counts[i], stream))->tensor(), cut(i)});
  }
  comm.wait(comm.all_reduce(whole, Reduce::sum));
  comm.wait(comm.reduce_scatter(to_scatter));
  comm.wait(comm.all_gather(to_gather));
  for (size_t i = 0; i < counts.size(); ++i) {
    const Pieces p = cut(i);
    comm_checks::expect<float>(comm, "sum of a list", sums[i]->fetch(), 0, counts[i], [&](int64_t e) { return sum_over<float>(n, e); });
    comm_checks::expect<float>(comm, "reduce_scatter of a list", scattered[i]->fetch(), p.first(me), p.count(me), [&](int64_t e) { return sum_over<float>(n, e); });
    const std::vector<uint16_t>& all = gathered[i]->fetch();
    for (int r = 0; r < n; ++r) comm_checks::expect<uint16_t>(comm, "all_gather of a list", all, p.first(r), p.count(r), [&](int64_t e) { return whole_number<uint16_t>(r, e); });
  }
}

// Rank r's only value that is not zero is at r; NaN counts.
void check_max(NcclComm& comm, cudaStream_t stream) {
  std::vector<float> host(static_cast<size_t>(comm.size() + 1));
  host[static_cast<size_t>(comm.rank())] = comm.rank() == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(comm.rank());
  void* device = nullptr;
  must(cudaMalloc(&device, host.size() * sizeof(float)));
  must(cudaMemcpyAsync(device, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
  comm.wait(comm.all_reduce({device, Dtype::f32, {comm.size() + 1}}, Reduce::max));
  must(cudaMemcpyAsync(host.data(), device, host.size() * sizeof(float), cudaMemcpyDeviceToHost, stream));
  must(cudaStreamSynchronize(stream));
  must(cudaFree(device));
  comm_checks::expect<float>(comm, "max", host, 0, comm.size() + 1, [&](int64_t i) {
    return i == 0 ? std::numeric_limits<float>::quiet_NaN() : i < comm.size() ? static_cast<float>(i) : 0.0f;
  });
}

void check_rank(World& world) {
  must(cudaSetDevice(world.rank()));
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto host = world.group("dp", comm_checks::everyone(world)), second = world.group("tp", comm_checks::everyone(world));
  const auto free_mib = [&] {
    size_t free = 0, total = 0;
    must(cudaMemGetInfo(&free, &total));
    return free >> 20;
  };
  const size_t before = free_mib();
  {
    NcclComm comm(world, *host, stream, 30);
    const size_t with_one = free_mib();
    for (int64_t count : {0, 1, 5, 1000, 1 << 20, 3000001}) check_sizes(comm, count, stream);
    check_max(comm, stream);
    check_list(comm, stream);
    OnDevice<float> large(comm.rank(), 64 << 20, stream);
    double best = 1e9;
    for (int k = 0; k < 5; ++k) {
      barrier(*host);
      const auto begin = std::chrono::steady_clock::now();
      comm.wait(comm.all_reduce(large.tensor(), Reduce::sum));
      must(cudaStreamSynchronize(stream));
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    const size_t after_use = free_mib() + (large.tensor().bytes() >> 20);
    NcclComm other(world, *second, stream, 30);
    OnDevice<float> small(comm.rank(), 1000, stream);
    other.wait(other.all_reduce(small.tensor(), Reduce::sum));
    must(cudaStreamSynchronize(stream));
    const size_t with_two = free_mib() + (large.tensor().bytes() >> 20);
    if (world.rank() == 0) {
      fmt::print("nccl_check: {} ranks agree; all_reduce of 256 MiB: {:.2f} ms, best of 5; device memory: {} MiB, used {} MiB, a second group {} MiB\n", world.size(), best * 1e3, before - with_one,
                 before - after_use, after_use - with_two);
    }
  }
  must(cudaStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run_local_ranks(argc > 1 ? std::atoi(argv[1]) : 2, check_rank);
  } catch (const std::exception& e) {
    fmt::print(stderr, "nccl_check: {}\n", e.what());
    return 1;
  }
  return 0;
}
