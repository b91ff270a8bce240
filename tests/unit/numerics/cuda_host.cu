// Our conversions against those of cuda_fp8.h, cuda_fp6.h and cuda_fp4.h on the host: all 65,536 BF16 bit patterns and a
// million random FP32 ones, every code back, E8M0 in both roundings. With --device the same functions run on GPU 0 and must
// give the bits of the host, together with scales and the accumulator model.
#include <cuda_bf16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "numerics/accumulate.h"
#include "numerics/bf16.h"
#include "numerics/formats.h"
#include "numerics/scale.h"

using namespace octet;

namespace {

constexpr Dtype formats[] = {Dtype::e4m3, Dtype::e5m2, Dtype::e3m2, Dtype::e2m3, Dtype::e2m1};

struct Report {
  long checks = 0, failures = 0;
  void expect(uint32_t got, uint32_t want, const char* what, uint32_t input) {
    ++checks;
    if (got == want) return;
    if (++failures <= 20) std::printf("FAILED %s of 0x%08X: 0x%X, expected 0x%X\n", what, input, got, want);
  }
};

uint8_t cuda_encode(Dtype f, float x) {
  switch (f) {
    case Dtype::e4m3: return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    case Dtype::e5m2: return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    case Dtype::e3m2: return __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest);
    case Dtype::e2m3: return __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest);
    default: return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest);
  }
}

float cuda_decode(Dtype f, uint8_t code) {
  switch (f) {
    case Dtype::e4m3: return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
    case Dtype::e5m2: return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E5M2)));
    case Dtype::e3m2: return __half2float(__half(__nv_cvt_fp6_to_halfraw(code, __NV_E3M2)));
    case Dtype::e2m3: return __half2float(__half(__nv_cvt_fp6_to_halfraw(code, __NV_E2M3)));
    default: return __half2float(__half(__nv_cvt_fp4_to_halfraw(code, __NV_E2M1)));
  }
}

std::vector<uint32_t> inputs() {
  std::vector<uint32_t> v;
  for (uint32_t h = 0; h < 65536; ++h) v.push_back(h << 16);
  std::mt19937 rng(1);
  for (int i = 0; i < 1000000; ++i) v.push_back(static_cast<uint32_t>(rng()));
  // Random patterns seldom fall into the range of the formats: a second set with exponents from 2^-20 to 2^20.
  for (int i = 0; i < 1000000; ++i) {
    const uint32_t r = static_cast<uint32_t>(rng());
    v.push_back((r & 0x80000000u) | ((107u + static_cast<uint32_t>(rng()) % 41u) << 23) | (r & 0x7FFFFFu));
  }
  return v;
}

void check_host(Report& report) {
  for (uint32_t u : inputs()) {
    const float x = float_from_bits(u);
    for (Dtype f : formats) report.expect(encode(f, x), cuda_encode(f, x), name(f).data(), u);
    report.expect(e8m0_encode_rz(x), __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero), "e8m0 rz", u);
    report.expect(e8m0_encode_rp(x), __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf), "e8m0 rp", u);
    __nv_bfloat16_raw raw = __float2bfloat16_rn(x);
    report.expect(to_bf16(x).bits, raw.x, "bf16", u);
  }
  for (Dtype f : formats) {
    const unsigned codes = 1u << (1 + format_info(f).exponent_bits + format_info(f).mantissa_bits);
    for (unsigned c = 0; c < codes; ++c) {
      const float got = decode(f, static_cast<uint8_t>(c)), want = cuda_decode(f, static_cast<uint8_t>(c));
      if (std::isnan(got) && std::isnan(want)) continue;
      report.expect(bits_of(got), bits_of(want), "decode", c);
    }
  }
  for (unsigned c = 0; c < 255; ++c) {
    __nv_bfloat16_raw raw = __nv_cvt_e8m0_to_bf16raw(static_cast<__nv_fp8_storage_t>(c));
    report.expect(bits_of(e8m0_decode(static_cast<uint8_t>(c))), static_cast<uint32_t>(raw.x) << 16, "e8m0 decode", c);
  }
}

// What host and device must agree on for one input.
struct Outcome {
  uint32_t words[18];
};

OCTET_HD inline Outcome outcome_of(uint32_t u) {
  const float x = float_from_bits(u);
  const uint32_t random = u * 2654435761u;
  const Dtype all[] = {Dtype::e4m3, Dtype::e5m2, Dtype::e3m2, Dtype::e2m3, Dtype::e2m1};
  Outcome o;
  int n = 0;
  for (Dtype f : all) {
    const uint32_t nearest = encode(f, x * 1.3f), stochastic = encode_stochastic(f, x, random), mx = mx_scale_code(x, f);
    o.words[n++] = nearest | stochastic << 8 | mx << 16;
    const float back = decode(f, static_cast<uint8_t>(u >> 13));
    o.words[n++] = back == back ? bits_of(back) : 0x7FC00000u;  // NaN payloads are outside the contract
  }
  o.words[n++] = e8m0_encode_rz(x) | static_cast<uint32_t>(e8m0_encode_rp(x)) << 8 | static_cast<uint32_t>(to_bf16(x).bits) << 16;
  o.words[n++] = bits_of(e8m0_decode(static_cast<uint8_t>(u % 255u))) ^ bits_of(e8m0_reciprocal(static_cast<uint8_t>(u % 255u)));
  o.words[n++] = bits_of(scale_from_amax(x, 448.0f, false, 0.0f, 0x1.fffffep127f, false));
  o.words[n++] = bits_of(scale_from_amax(x, 448.0f, true, 1e-12f, 0x1.fffffep127f, true));
  o.words[n++] = bits_of(delayed_scale(x, 57344.0f, static_cast<int>(u % 5u), 1.0f));
  o.words[n++] = bits_of(inverse_scale(scale_from_amax(x, 6.0f, true, 0.0f, 0x1.fffffep127f, false)));
  float a[32], b[32];
  for (uint32_t i = 0; i < 32; ++i) {
    a[i] = decode<Dtype::e4m3>(static_cast<uint8_t>((random >> (i % 20u)) % 0x7Fu));
    b[i] = decode<Dtype::e4m3>(static_cast<uint8_t>((u >> (i % 23u)) % 0x7Fu | (random >> i & 1u) << 7));
  }
  o.words[n++] = bits_of(tensor_core_step(a, Dtype::e4m3, b, Dtype::e4m3, 32, 12.5f));
  o.words[n++] = to_bf16_stochastic(x, random).bits;
  return o;
}

__global__ void outcomes(const uint32_t* in, Outcome* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = outcome_of(in[i]);
}

bool check_device(Report& report) {
  const auto in = inputs();
  const int n = static_cast<int>(in.size());
  uint32_t* d_in = nullptr;
  Outcome* d_out = nullptr;
  std::vector<Outcome> out(in.size());
  cudaError_t error = cudaMalloc(&d_in, in.size() * sizeof(uint32_t));
  if (error == cudaSuccess) error = cudaMalloc(&d_out, in.size() * sizeof(Outcome));
  if (error == cudaSuccess) error = cudaMemcpy(d_in, in.data(), in.size() * sizeof(uint32_t), cudaMemcpyHostToDevice);
  if (error == cudaSuccess) {
    outcomes<<<(n + 127) / 128, 128>>>(d_in, d_out, n);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaMemcpy(out.data(), d_out, in.size() * sizeof(Outcome), cudaMemcpyDeviceToHost);
  cudaFree(d_in);
  cudaFree(d_out);
  if (error != cudaSuccess) {
    std::printf("FAILED on the device: %s\n", cudaGetErrorString(error));
    return false;
  }
  for (size_t i = 0; i < in.size(); ++i) {
    const Outcome host = outcome_of(in[i]);
    for (int w = 0; w < 18; ++w) report.expect(out[i].words[w], host.words[w], "device outcome", in[i]);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Report report;
  bool ran = true;
  if (argc == 2 && std::strcmp(argv[1], "--device") == 0) {
    ran = check_device(report);
  } else if (argc == 1) {
    check_host(report);
  } else {
    std::fprintf(stderr, "usage: %s [--device]\n", argv[0]);
    return 2;
  }
  std::printf("%ld comparisons, %ld failures\n", report.checks, report.failures);
  return ran && report.failures == 0 && report.checks > 0 ? 0 : 1;
}
