// Inside src/cuda: an operator that produces a matrix and its images describes the matrix as a Source and calls quantize_source().
#pragma once
#include <span>

#include "cuda/kernels/quantize.h"
#include "ops/quantize.h"

namespace octet::cuda {

// `column`: the image is stored transposed. stored_scale: the site's, or null.
ImageParams image_params(const Operand& image, const QuantSpec& spec, bool column, const float* stored_scale);
SourceParams plain_source(const MatrixView& x);
// Writes the wanted images of the source's parts, at least one of each, and their values where source.value is set.
void quantize_source(Ctx& ctx, const SourceParams& source, std::span<const QuantizedOut> parts);
inline void quantize_source(Ctx& ctx, const SourceParams& source, const QuantizedOut& out) { quantize_source(ctx, source, {&out, 1}); }

}  // namespace octet::cuda
