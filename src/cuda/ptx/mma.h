// Tensor-core instructions of one warp (Ampere and later): 16x8x16 products of BF16 with FP32 accumulation, and the loads that fill their fragments.
// PTX ISA, "Matrix fragments for mma.m16n8k16": lane l is (group l/4, thread-in-group l%4).
#pragma once
#include <cstdint>

namespace octet::ptx {

// d[16 x 8] += a[16 x 16] . b[16 x 8].
// d: rows group, group + 8; columns 2 (l%4), +1.   a[0], a[1]: k 2 (l%4), +1 of rows group, group + 8; a[2], a[3]: the same of k + 8.
// b[0]: k 2 (l%4), +1 of column group; b[1]: the same of k + 8.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8x8 matrices of 16-bit elements from shared memory; lane l gives the address of row l%8 of matrix l/8 (16 bytes, 16-byte aligned).
__device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], const void* row) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// The same, each matrix transposed.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// 2^x, relative error 2^-22.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace octet::ptx
