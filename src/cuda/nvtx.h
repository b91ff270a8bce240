// NVTX ranges around the tracer's spans, for Nsight Systems and Nsight Compute. Compiled only with CUDA; the NVTX headers load the
// profiler's library when one is attached and do nothing otherwise.
#pragma once
#include "core/trace.h"

namespace octet::cuda {

// Ranges of the calling thread, in the domain "octet".
TraceHooks nvtx_hooks();

}  // namespace octet::cuda
