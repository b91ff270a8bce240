#include "cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <cstring>

#include "core/error.h"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

// Octet links the runtime alone, which knows the driver's functions.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found), "the driver's tensor maps");
  if (found != cudaDriverEntryPointSuccess) throw Error(ExitCode::device, "the driver has no cuTensorMapEncodeTiled", "tensor map", "install a driver of CUDA 12.0 or later");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

TensorMap make_tensor_map(const TiledTensor& t) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = encoder();
  CUtensorMap map{};
  static_assert(sizeof map == sizeof(TensorMap));
  const std::array<cuuint32_t, 3> step{1, 1, 1};
  const CUresult result = encode(&map, t.element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(t.data), t.extent.data(), t.stride_bytes.data(), t.box.data(),
                                 step.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(ExitCode::device, fmt::format("the driver refuses a tensor map (CUresult {}): extent {} x {} x {}, strides {} and {} bytes, box {} x {} x {}", static_cast<int>(result), t.extent[0], t.extent[1],
                                              t.extent[2], t.stride_bytes[0], t.stride_bytes[1], t.box[0], t.box[1], t.box[2]), "tensor map", "this is a bug of octet; please report the line");
  }
  TensorMap out;
  std::memcpy(&out, &map, sizeof out);
  return out;
}

}  // namespace octet::cuda
