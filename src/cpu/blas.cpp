#include "cpu/blas.h"

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <vector>

#include "core/check.h"
#include "cpu/cpu_ops.h"
#include "cpu/threaded_sgemm.h"

namespace octet::cpu {

namespace {

void fixed_matmul(int64_t m, int64_t n, int64_t k, Flat a, Flat b, bool accumulate, float* c, int64_t ldc) {
  const int64_t a_row = a.transposed ? 1 : a.ld, a_k = a.transposed ? a.ld : 1;
  for (int64_t i = 0; i < m; ++i) {
    float* row = c + i * ldc;
    if (!accumulate) std::fill(row, row + n, 0.0f);
    const float* a_i = a.data + i * a_row;
    if (!b.transposed) {
      for (int64_t p = 0; p < k; ++p) {
        const float x = a_i[p * a_k];
        const float* b_p = b.data + p * b.ld;
        for (int64_t j = 0; j < n; ++j) row[j] = __builtin_fmaf(x, b_p[j], row[j]);
      }
    } else {
      for (int64_t j = 0; j < n; ++j) {
        const float* b_j = b.data + j * b.ld;
        float sum = row[j];
        for (int64_t p = 0; p < k; ++p) sum = __builtin_fmaf(a_i[p * a_k], b_j[p], sum);
        row[j] = sum;
      }
    }
  }
}

}  // namespace

void matmul(GemmMath math, int64_t m, int64_t n, int64_t k, Flat a, Flat b, bool accumulate, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (math != GemmMath::blas) return fixed_matmul(m, n, k, a, b, accumulate, c, ldc);
  const auto i = [](int64_t v) { return static_cast<int>(v); };
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans, i(m), i(n), i(k), 1.0f, a.data, i(a.ld), b.data, i(b.ld),
              accumulate ? 1.0f : 0.0f, c, i(ldc));
}

double time_threaded_sgemm_ms(int threads, int64_t m, int64_t n, int64_t k) {
  const std::vector<float> a(static_cast<size_t>(m * k), 0.5f), b(static_cast<size_t>(n * k), 0.25f);
  std::vector<float> c(static_cast<size_t>(m * n));
  openblas_set_num_threads(threads);
  double best = std::numeric_limits<double>::max();
  for (int call = 0; call < 3; ++call) {
    const auto begin = std::chrono::steady_clock::now();
    matmul(GemmMath::blas, m, n, k, {a.data(), k}, {b.data(), k, true}, false, c.data(), n);
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    if (call > 0) best = std::min(best, ms);
  }
  openblas_set_num_threads(1);
  return best;
}

namespace {

// Processor time of this thread: a busy machine must not look like a slow library.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double blas_self_test() {
  // One thread a call: the thread pool is ours, and results must not depend on the library's own split.
  openblas_set_num_threads(1);
  const int64_t n = 640;
  std::vector<float> a(static_cast<size_t>(n * n)), b(a.size()), c(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(static_cast<int>(i * 37 % 17) - 8);
    b[i] = static_cast<float>(static_cast<int>(i * 53 % 13) - 6);
  }
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < 7; ++round) {
    const double begin = thread_seconds();
    matmul(GemmMath::blas, n, n, n, {a.data(), n}, {b.data(), n, true}, false, c.data(), n);
    best = std::min(best, thread_seconds() - begin);
  }
  const std::string library = std::string("OpenBLAS (") + openblas_get_config() + ")";
  const std::string fix = "install libopenblas-pthread-dev and rebuild";
  for (int64_t r = 0; r < n; r += 29) {
    for (int64_t col = 0; col < n; col += 31) {
      double want = 0;
      for (int64_t k = 0; k < n; ++k) want += static_cast<double>(a[static_cast<size_t>(r * n + k)]) * b[static_cast<size_t>(col * n + k)];
      if (c[static_cast<size_t>(r * n + col)] != static_cast<float>(want)) throw Error(ExitCode::config, "the BLAS gives wrong products of small integers", library, fix);
    }
  }
  const double gflops = 2e-9 * static_cast<double>(n * n * n) / best;
  // The reference BLAS reaches about 2 GFLOP/s on a core where OpenBLAS reaches 50 and more.
  if (gflops < 4.0) throw Error(ExitCode::config, fmt::format("the BLAS is unusably slow: {:.1f} GFLOP/s on one core", gflops), library, fix);
  return gflops;
}

}  // namespace octet::cpu
