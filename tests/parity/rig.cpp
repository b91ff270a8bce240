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
  const int64_t last = (o.scale_inv.rows() - 1) * o.scale_row_stride + (o.scale_inv.cols() - 1) * o.scale_col_stride;
  o.data.data = alloc(Dtype::u8, {codes}).data;
  o.scale_inv.data = alloc(Dtype::f32, {last + 1}).data;
  return o;
}

Host Rig::download(const Tensor& t) {
  Host h(t.dtype, t.shape);
  device_.copy_out(h.bytes().data(), t.data, h.bytes().size());
  return h;
}

Rig::Image Rig::download_image(const Operand& image, bool column) {
  const int64_t last = (image.scale_inv.rows() - 1) * image.scale_row_stride + (image.scale_inv.cols() - 1) * image.scale_col_stride;
  std::vector<uint8_t> stored(static_cast<size_t>(image.data.rows * image.data.cols));
  std::vector<float> scales(static_cast<size_t>(last + 1));
  device_.copy_out(stored.data(), image.data.data, stored.size());
  device_.copy_out(scales.data(), image.scale_inv.data, scales.size() * sizeof(float));
  Operand local = image;
  local.data.data = stored.data();
  local.scale_inv.data = scales.data();
  return host_image(local, column);
}

Rig::Image Rig::host_image(const Operand& image, bool column) {
  // The CPU backend's column image lies as its source; the device's lies transposed.
  const bool turned = column && !image.transposed;
  Image out;
  const int64_t rows = turned ? image.data.cols : image.data.rows, cols = turned ? image.data.rows : image.data.cols;
  const auto* codes = static_cast<const uint8_t*>(image.data.data);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) out.codes.push_back(codes[turned ? c * rows + r : r * cols + c]);
  }
  const int64_t row_stride = image.scale_row_stride ? image.scale_row_stride : image.scale_inv.cols(), col_stride = image.scale_row_stride ? image.scale_col_stride : 1;
  const int64_t grid_rows = turned ? image.scale_inv.cols() : image.scale_inv.rows(), grid_cols = turned ? image.scale_inv.rows() : image.scale_inv.cols();
  for (int64_t r = 0; r < grid_rows; ++r) {
    for (int64_t c = 0; c < grid_cols; ++c) out.scale_inv.push_back(image.scale_inv.as<float>()[(turned ? c : r) * row_stride + (turned ? r : c) * col_stride]);
  }
  return out;
}

void Rig::on_device(const std::function<void(Ctx&)>& op, uint64_t seed, StepKey key) {
  Arena counted;
  Ctx plan(&device_, pool_, counted);
  op(plan);
  Arena scratch(counted.high_water_bytes(), device_.memory(), true);
  Ctx ctx(&device_, pool_, scratch);
  ctx.seed = seed;
  ctx.key = upload_value(key);
#ifdef OCTET_SIMT
  // Another order of threads each time: callers call twice and compare.
  constexpr simt::Order orders[] = {simt::Order::forward, simt::Order::backward, simt::Order::interleaved};
  simt::set_order(orders[calls_++ % 3]);
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

void expect_same(const Host& got, const Host& want, const std::string& what) {
  ASSERT_EQ(got.bytes().size(), want.bytes().size()) << what;
  if (got.bytes() == want.bytes()) return;
  const size_t width = size_bytes(got.dtype());
  int64_t differing = 0, first = -1;
  for (int64_t i = 0; i < got.elements(); ++i) {
    if (std::memcmp(got.bytes().data() + static_cast<size_t>(i) * width, want.bytes().data() + static_cast<size_t>(i) * width, width) == 0) continue;
    if (first < 0) first = i;
    ++differing;
  }
  ADD_FAILURE() << what << ": " << differing << " of " << got.elements() << " elements differ; the first is number " << first << ": " << got.at(first) << ", " << want.at(first)
                << " expected";
}

void expect_same(const Rig::Image& got, const Rig::Image& want, int64_t cols, const std::string& what) {
  ASSERT_EQ(got.codes.size(), want.codes.size()) << what;
  ASSERT_EQ(got.scale_inv.size(), want.scale_inv.size()) << what;
  for (size_t i = 0; i < got.scale_inv.size(); ++i) {
    if (std::memcmp(&got.scale_inv[i], &want.scale_inv[i], 4) != 0) {
      ADD_FAILURE() << what << ": scale_inv " << i << " of " << got.scale_inv.size() << " is " << got.scale_inv[i] << ", " << want.scale_inv[i] << " expected";
      break;
    }
  }
  if (got.codes == want.codes) return;
  size_t differing = 0, first = got.codes.size();
  for (size_t i = 0; i < got.codes.size(); ++i) {
    if (got.codes[i] == want.codes[i]) continue;
    first = std::min(first, i);
    ++differing;
  }
  ADD_FAILURE() << what << ": " << differing << " of " << got.codes.size() << " codes differ; the first at row " << static_cast<int64_t>(first) / cols << ", column "
                << static_cast<int64_t>(first) % cols << ": " << int{got.codes[first]} << ", " << int{want.codes[first]} << " expected";
}

void expect_close(const Host& got, const Host& want, double tolerance, const std::string& what, double ulps, double least) {
  ASSERT_EQ(got.elements(), want.elements()) << what;
  double largest = least;
  for (int64_t i = 0; i < want.elements(); ++i) largest = std::max(largest, std::fabs(static_cast<double>(want.at(i))));
  const double unit = ulps * (got.dtype() == Dtype::bf16 ? 0x1p-7 : 0x1p-23);
  double worst = 0;
  int64_t differing = 0, first = -1;
  for (int64_t i = 0; i < got.elements(); ++i) {
    const double w = want.at(i), error = std::fabs(got.at(i) - w);
    if (error <= unit * std::fabs(w) + tolerance * largest) continue;   // a NaN does not go on
    if (first < 0) first = i;
    worst = std::max(worst, error);
    ++differing;
  }
  if (first >= 0) {
    ADD_FAILURE() << what << ": " << differing << " of " << got.elements() << " elements are too far off (by up to " << worst << ", largest value " << largest
                  << "); the first is number " << first << ": " << got.at(first) << ", " << want.at(first) << " expected";
  }
}

}  // namespace parity
