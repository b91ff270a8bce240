// Operands as FP32 values.
#pragma once
#include "recipe/qtensor.h"

namespace octet::cpu {

// Row r of the stored matrix: decode(q) * scale_inv, or the widened value. out: [data.cols]. Not for f32 operands, which are read where they lie.
void decode_row(const Operand& o, int64_t r, float* out);

}  // namespace octet::cpu
