// Operators that move elements of matrices: every byte where the CPU puts it, and none beside it.
#include <fmt/format.h>

#include "both.h"
#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"

using namespace parity;

namespace {

// Any bytes, NaN patterns of floats too.
Host bytes(Dtype dtype, Shape shape) {
  Host h(dtype, shape);
  const Philox rng(3, RngPurpose::init, "bytes");
  for (size_t i = 0; i < h.bytes().size(); ++i) h.bytes()[i] = static_cast<uint8_t>(rng.word(i));
  return h;
}

// Whole tiles, ragged ones in words of 4 and in bytes; matrices that begin and end inside wider ones.
struct Place {
  int64_t rows, cols, before, after;
};
constexpr Place places[] = {{128, 128, 0, 0}, {256, 384, 0, 0}, {132, 260, 0, 4}, {130, 77, 0, 0}, {64, 64, 3, 2}, {1, 1, 0, 0}, {3, 300, 4, 1}, {300, 3, 0, 0}};

TEST(rearrange, transpose) {
  Rig rig;
  for (const Dtype dtype : {Dtype::e4m3, Dtype::e5m2, Dtype::f32}) {
    for (const Place& p : places) {
      Both b(rig);
      const int from = b.input(bytes(dtype, {p.rows, p.before + p.cols + p.after})), to = b.updated(bytes(dtype, {p.cols, p.after + p.rows + p.before}));
      const auto call = [&](auto&& op) {
        return [&, op](Ctx& ctx, const std::vector<Tensor>& t) {
          op(ctx, MatrixView(t[static_cast<size_t>(from)]).columns(p.before, p.cols), MatrixView(t[static_cast<size_t>(to)]).columns(p.after, p.rows));
        };
      };
      b.run(call(cpu::transpose), call(cuda::transpose));
      b.same(to, fmt::format("{} {}x{} from column {} on", name(dtype), p.rows, p.cols, p.before));
    }
  }
}

TEST(rearrange, join_columns) {
  Rig rig;
  for (const Dtype dtype : {Dtype::e4m3, Dtype::e8m0, Dtype::f32}) {
    for (const int64_t parts : {1, 2, 3, 8}) {
      for (const Place& p : places) {
        Both b(rig);
        const int from = b.input(bytes(dtype, {parts * p.rows, p.cols + p.after})), whole = b.updated(bytes(dtype, {p.rows, p.before + parts * p.cols}));
        const auto call = [&](auto&& op) {
          return [&, op](Ctx& ctx, const std::vector<Tensor>& t) {
            op(ctx, MatrixView(t[static_cast<size_t>(from)]).columns(0, p.cols), MatrixView(t[static_cast<size_t>(whole)]).columns(p.before, parts * p.cols));
          };
        };
        b.run(call(cpu::join_columns), call(cuda::join_columns));
        b.same(whole, fmt::format("{} {} parts of {}x{}", name(dtype), parts, p.rows, p.cols));
      }
    }
  }
}

}  // namespace
