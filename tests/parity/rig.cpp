#include "rig.h"

#ifdef OCTET_SIMT
#include "simt.h"
#endif

namespace parity {
namespace {
constexpr int64_t guard_bytes = 256;
}

Rig::Rig(size_t device_bytes) : device_(0), memory_(device_bytes, device_.memory(), true) { scope_ = std::make_unique<Arena::Scope>(memory_); }

Tensor Rig::alloc(Dtype dtype, Shape shape) {
  // Guards of a pattern that is neither NaN nor what kernels write, directly before the tensor and behind its last byte.
  Tensor t{nullptr, dtype, shape};
  const auto bytes = static_cast<int64_t>(t.bytes());
  char* block = static_cast<char*>(memory_.alloc(Dtype::u8, {2 * guard_bytes + bytes}).data);
  const std::vector<uint8_t> pattern(guard_bytes, 0x5A);
  for (char* at : {block, block + guard_bytes + bytes}) {
    device_.copy_in(at, pattern.data(), pattern.size());
    guards_.emplace_back(at, guard_bytes);
  }
  device_.synchronize();
  t.data = block + guard_bytes;
  return t;
}

Tensor Rig::upload(const Host& host, bool blank) {
  const Tensor t = alloc(host.dtype(), host.shape());
  if (!blank) device_.copy_in(t.data, host.bytes().data(), host.bytes().size());
  device_.synchronize();
  return t;
}

Operand Rig::upload_image(const QuantSpec& spec, int64_t rows, int64_t cols, bool column) {
  Arena counting;
  Operand o = alloc_image(counting, spec, rows, cols, column, ImageLayout::gemm);
  const int64_t codes = o.data.rows * o.data.cols;
  o.data.data = alloc(Dtype::u8, {codes}).data;
  o.scale_inv.data = alloc(Dtype::f32, {scale_extent(o)}).data;
  return o;
}

Host Rig::download(const Tensor& t) {
  Host h(t.dtype, t.shape);
  device_.copy_out(h.bytes().data(), t.data, h.bytes().size());
  return h;
}

PlainImage Rig::download_image(const Operand& image, bool column) {
  std::vector<uint8_t> stored(static_cast<size_t>(image.data.rows * image.data.cols));
  std::vector<float> scales(static_cast<size_t>(scale_extent(image)));
  device_.copy_out(stored.data(), image.data.data, stored.size());
  device_.copy_out(scales.data(), image.scale_inv.data, scales.size() * sizeof(float));
  Operand local = image;
  local.data.data = stored.data();
  local.scale_inv.data = scales.data();
  return plain_image(local, column);
}

void Rig::on_device(const std::function<void(Ctx&)>& op, uint64_t seed, StepKey key) {
  Arena counted;
  Ctx plan(&device_, pool_, counted);
  op(plan);
  Arena scratch(counted.high_water_bytes(), device_.memory(), true);
  Ctx ctx(&device_, pool_, scratch);
  ctx.seed = seed;
  ctx.key = upload_value(key);
  ctx.attention = attention;
#ifdef OCTET_SIMT
  // Another order of threads each time: callers call twice and compare.
  constexpr simt::Order orders[] = {simt::Order::forward, simt::Order::backward, simt::Order::interleaved, simt::Order::eager_copies};
  simt::set_order(orders[calls_++ % 4]);
#endif
  op(ctx);
  device_.synchronize();
  EXPECT_EQ(scratch.high_water_bytes(), counted.high_water_bytes()) << "the dry run counted other scratch memory";
}

void Rig::on_host(const std::function<void(Ctx&)>& op, uint64_t seed, StepKey key) {
  Arena counted;
  Ctx plan(pool_, counted, GemmMath::blas);
  op(plan);
  Arena scratch(counted.high_water_bytes(), true);
  Ctx ctx(pool_, scratch, GemmMath::blas);
  ctx.seed = seed;
  ctx.key = &key;
  op(ctx);
}

void Rig::reset() {
  for (const auto& [at, bytes] : guards_) {
    std::vector<uint8_t> now(bytes);
    device_.copy_out(now.data(), at, bytes);
    if (now != std::vector<uint8_t>(bytes, 0x5A)) {
      ADD_FAILURE() << "memory beside an output was overwritten";
      break;
    }
  }
  guards_.clear();
  scope_.reset();
  scope_ = std::make_unique<Arena::Scope>(memory_);
}

namespace {

MatrixView view(const Host& h) { return {Tensor{const_cast<uint8_t*>(h.bytes().data()), h.dtype(), h.shape()}}; }

void expect_agreement(const MatrixView& got, const MatrixView& want, const Tolerance& tolerance, const std::string& what) {
  ASSERT_EQ(got.rows, want.rows) << what;
  ASSERT_EQ(got.cols, want.cols) << what;
  const Agreement a = compare(got, want, tolerance);
  if (a.differing == 0) return;
  ADD_FAILURE() << what << ": " << a.differing << " of " << a.elements << " elements differ" << (tolerance.exact() ? "" : " by more than is allowed") << " (largest value "
                << largest_magnitude(want) << (tolerance.exact() ? "" : fmt::format(", worst {:.3g} times what is allowed", a.worst)) << "); the first at row " << a.row << ", column "
                << a.col << ": " << a.got << ", " << a.want << " expected";
}

}  // namespace

void expect_same(const Host& got, const Host& want, const std::string& what) { expect_agreement(view(got), view(want), {}, what); }

void expect_same(const PlainImage& got, const PlainImage& want, const std::string& what) {
  expect_agreement(got.scale_matrix(), want.scale_matrix(), {}, what + ", scale_inv");
  expect_agreement(got.code_matrix(), want.code_matrix(), {}, what + ", codes");
}

void expect_close(const Host& got, const Host& want, double tolerance, const std::string& what, double ulps, double least) {
  expect_agreement(view(got), view(want), {tolerance, ulps, least}, what);
}

}  // namespace parity
