#ifdef OCTET_HAVE_CUDA
#include "ops/mirror.h"

#include "cuda/device.h"

namespace octet {
namespace {

// Rows may lie apart; the last one ends with its last element.
size_t extent_bytes(const MatrixView& m) { return m.elements() == 0 ? 0 : static_cast<size_t>((m.rows - 1) * m.ld + m.cols) * size_bytes(m.dtype); }

}  // namespace

Mirror::Mirror(Ctx& ctx, const char* op) : ctx_(ctx), shadow_(*ctx.shadow) { shadow_.call(op); }

void* Mirror::copy(const void* device, size_t bytes) {
  if (!device) return nullptr;
  std::vector<std::byte>& host = memory_.emplace_back(bytes + 1);   // so that nothing is not null
  if (bytes > 0) ctx_.cuda().copy_out(host.data(), device, bytes);
  return host.data();
}

Mirrored<MatrixView> Mirror::in(const MatrixView& m) {
  MatrixView host = m;
  host.data = copy(m.data, extent_bytes(m));
  return {m, host};
}

Mirrored<Tensor> Mirror::in(const Tensor& t) { return {t, {copy(t.data, t.bytes()), t.dtype, t.shape}}; }

Mirrored<Operand> Mirror::in(const Operand& o) {
  Operand host = o;
  host.data = in(o.data).host;
  if (!o.quantized()) return {o, host};
  const auto extent = static_cast<size_t>(scale_extent(o)) * sizeof(float);
  const auto* stored = static_cast<const float*>(copy(o.scale_inv.data, extent));
  host.scale_inv.data = memory_.emplace_back(host.scale_inv.bytes()).data();
  host.scale_row_stride = host.scale_inv.cols();
  host.scale_col_stride = 1;
  for (int64_t r = 0; r < host.scale_inv.rows(); ++r) {
    for (int64_t c = 0; c < host.scale_inv.cols(); ++c) host.scale_inv.as<float>()[r * host.scale_row_stride + c] = stored[r * o.scale_row_stride + c * o.scale_col_stride];
  }
  return {o, host};
}

void Mirror::check(const std::string& name, const Mirrored<MatrixView>& m, const Tolerance& tolerance) {
  if (m.device.elements() == 0 || !m.device) return;
  checks_.emplace_back([this, name, m, tolerance] { compare_matrices(name, in(m.device).host, m.host, tolerance); });
}

Mirrored<MatrixView> Mirror::out(const std::string& name, const MatrixView& m, const Tolerance& tolerance) {
  const Mirrored<MatrixView> both = in(m);
  check(name, both, tolerance);
  return both;
}

Mirrored<Tensor> Mirror::out(const std::string& name, const Tensor& t, const Tolerance& tolerance) {
  const Mirrored<Tensor> both = in(t);
  check(name, {both.device, both.host}, tolerance);
  return both;
}

std::vector<Mirror::Number> Mirror::numbers_of(const ImageHealth& h) {
  const auto count = [](int64_t n) { return static_cast<double>(n); };
  return {{"elements", count(h.elements)},     {"nonfinite", count(h.nonfinite)}, {"underflow", count(h.underflow)}, {"saturated", count(h.saturated)}, {"amax", h.amax},
          {"scale_min", h.scale_min},          {"scale_max", h.scale_max},        {"sum_xx", h.sum_xx, true},        {"sum_qq", h.sum_qq, true},        {"sum_xq", h.sum_xq, true},
          {"sum_ee", h.sum_ee, true}};
}

std::vector<Mirror::Number> Mirror::numbers_of(const StepOutcome& o) {
  // Nobody reads the clip factor of a skipped step.
  return {{"skip", static_cast<double>(o.control.skip)}, {"nonfinite", static_cast<double>(o.nonfinite)}, {"grad_norm", o.grad_norm},
          {"grad_scale", o.control.skip ? 0.0 : o.control.grad_scale}};
}

void Mirror::compare_numbers(const std::string& name, const std::vector<Number>& got, const std::vector<Number>& want, const Tolerance& tolerance) {
  for (size_t i = 0; i < want.size(); ++i) {
    const Tolerance t = want[i].is_sum ? Tolerance{.relative = 1e-12} : tolerance;
    shadow_.compared(want[i].name ? name + "." + want[i].name : name, compare(got[i].value, want[i].value, t.with_nan()));
  }
}

Operand Mirror::image(const std::string& name, const Operand& device, const QuantSpec& spec, bool column) {
  if (device.data.rows == 0) return device;   // not wanted
  const int64_t rows = column ? device.data.cols : device.data.rows, cols = column ? device.data.rows : device.data.cols;
  Arena counted;
  alloc_image(counted, spec, rows, cols, column);
  const Operand host = alloc_image(images_.emplace_back(counted.high_water_bytes(), true), spec, rows, cols, column);
  checks_.emplace_back([this, name, device, host, column] {
    const PlainImage got = plain_image(in(device).host, column), want = plain_image(host, column);
    compare_matrices(name + "'s scale_inv", got.scale_matrix(), want.scale_matrix(), {});
    compare_matrices(name + "'s codes", got.code_matrix(), want.code_matrix(), {});
  });
  return host;
}

Mirrored<QuantizedOut> Mirror::out(const std::string& prefix, const QuantizedOut& q) {
  const QuantTarget& t = q.target;
  QuantizedOut host = q;
  host.row = image(prefix + "row image", q.row, q.row_spec, false);
  host.col = image(prefix + "column image", q.col, q.col_spec, true);
  host.row_amax = in(q.row_amax).host;
  host.col_amax = in(q.col_amax).host;
  host.target.stored_scale = in(t.stored_scale).host;
  host.target.amax = out(prefix + "amax", t.amax).host;
  host.target.nonfinite = out(prefix + "nonfinite", t.nonfinite).host;
  host.target.row_health = out(prefix + "row_health", t.row_health).host;
  host.target.col_health = out(prefix + "col_health", t.col_health).host;
  return {q, host};
}

void Mirror::run_on_host(const std::function<void(Ctx&)>& op) {
  const auto with_scratch = [&](Arena& scratch) {
    Ctx host(ctx_.pool(), scratch, GemmMath::blas);
    host.seed = ctx_.seed;
    host.key = in(ctx_.key).host;
    op(host);
  };
  Arena counted;
  with_scratch(counted);
  Arena scratch(counted.high_water_bytes(), true);
  with_scratch(scratch);
}

}  // namespace octet
#endif
