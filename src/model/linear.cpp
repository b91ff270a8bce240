#include "model/linear.h"

#include <algorithm>

#include "core/trace.h"
#include "ops/gemm.h"
#include "ops/reduce.h"

namespace octet {
namespace {

// Whether one stored image serves as row and as column image: where the layout of the device lets products read it both ways.
bool one_image(ImageLayout layout, const QuantSpec& row, const QuantSpec& col) { return layout == ImageLayout::source && images_share_bytes(row, col); }

// Images of a [rows, cols] matrix: quantized ones from the arenas, unquantized ones views of `value`.
void allocate_pair(ImageLayout layout, const QuantSpec& row_spec, const QuantSpec& col_spec, const MatrixView& value, int64_t rows, int64_t cols, Arena& row_arena,
                   Arena& col_arena, QuantizedOut& images, Operand& row, Operand& col) {
  images.row_spec = row_spec;
  images.col_spec = col_spec;
  const bool shared = one_image(layout, row_spec, col_spec);
  if (row_spec.quantized()) {
    row = images.row = alloc_image(shared ? col_arena : row_arena, row_spec, rows, cols, false, layout);
  } else {
    row = Operand::plain(value);
  }
  if (shared) {
    col = row.flipped();
  } else if (col_spec.quantized()) {
    col = images.col = alloc_image(col_arena, col_spec, rows, cols, true, layout);
  } else {
    col = Operand::plain(value, true);
  }
}

// Elements quantized; two images of the same bytes count once, whether the device stores them once or twice.
void count_pair(const Pass& pass, int site, const QuantSpec& row, const QuantSpec& col, int64_t elements) {
  pass.count(site, row, elements);
  if (!images_share_bytes(row, col)) pass.count(site, col, elements);
}

// What quantizing moves: the values once, and a code for each element of each image.
double quantize_bytes(const MatrixView& value, const QuantizedOut& images) {
  const double codes = (images.row.data.rows ? 1.0 : 0.0) + (images.col.data.rows ? 1.0 : 0.0);
  return static_cast<double>(value.elements()) * (static_cast<double>(size_bytes(value.dtype)) + codes);
}

}  // namespace

Linear::Linear(std::string module, std::vector<Part> parts, const Recipe& recipe, QuantRegistry& quant, ImageLayout layout)
    : module_(std::move(module)), parts_(std::move(parts)), recipe_(recipe), layout_(layout) {
  in_ = parts_.front().weight->shape[1];
  site_x_ = quant.add(module_ + "/x", Role::x, recipe_.x_row, recipe_.x_col);
  for (Part& p : parts_) {
    OCTET_CHECK(p.weight->shape[1] == in_, "{}: {} has {} inputs, {} expected", module_, p.name, p.weight->shape[1], in_);
    out_ += p.weight->shape[0];
    p.site_w = quant.add(module_ + "/" + p.name + "/w", Role::w, recipe_.w_row, recipe_.w_col);
    p.site_dy = quant.add(module_ + "/" + p.name + "/dy", Role::dy, recipe_.dy_row, recipe_.dy_col);
  }
}

void Linear::allocate_images(Arena& arena) {
  for (Part& p : parts_) {
    QuantizedOut unused;
    allocate_pair(layout_, recipe_.w_row, recipe_.w_col, p.weight->working, p.weight->shape[0], in_, arena, arena, unused, p.w_row, p.w_col);
  }
}

QuantizedOut Linear::weight_images(const Part& p, const QuantTarget& target) const {
  QuantizedOut out{recipe_.w_row, recipe_.w_col, {}, {}, target};
  if (recipe_.w_row.quantized()) out.row = p.w_row;
  if (recipe_.w_col.quantized() && !one_image(layout_, recipe_.w_row, recipe_.w_col)) out.col = p.w_col;
  return out;
}

void Linear::early_images(QuantRegistry& quant, int64_t step, WeightImages& images) const {
  for (const Part& p : parts_) {
    if (quant.made_early(p.site_w, step)) images[p.weight] = weight_images(p, quant.early_target(p.site_w));
  }
}

void Linear::refresh_images(Ctx& ctx, QuantRegistry& quant, bool without_early, bool again) {
  for (Part& p : parts_) {
    const QuantizedOut out = weight_images(p, again ? quant.silent_target(p.site_w) : quant.target(p.site_w));
    if (!out.wanted() || (without_early && quant.made_early(p.site_w, quant.step()))) continue;
    Span span(ctx.tracer, module_, "quantize w", {.bytes = quantize_bytes(p.weight->working, out)});
    ops::quantize(ctx, p.weight->working, out);
  }
}

void Linear::count_images(QuantRegistry& quant) const {
  for (const Part& p : parts_) {
    const int64_t n = p.weight->shape.elements();
    if (recipe_.w_row.quantized()) quant.count(p.site_w, recipe_.w_row.format, n);
    if (recipe_.w_col.quantized() && !images_share_bytes(recipe_.w_row, recipe_.w_col)) quant.count(p.site_w, recipe_.w_col.format, n);
  }
}

LinearInput Linear::allocate_input(const Pass& pass, Arena& temporary, int64_t tokens) const {
  const bool kept = !recipe_.x_col.quantized();
  Tensor value;
  if (kept || !recipe_.x_row.quantized() || pass.dumps(module_)) value = (kept ? pass.saved : temporary).alloc(recipe_.compute, {tokens, in_});
  return make_input(pass, temporary, value, tokens);
}

LinearInput Linear::input_of(const Pass& pass, Arena& temporary, const Tensor& value) const { return make_input(pass, temporary, value, value.rows()); }

LinearInput Linear::make_input(const Pass& pass, Arena& temporary, const Tensor& value, int64_t tokens) const {
  LinearInput x;
  x.value = value;
  allocate_pair(layout_, recipe_.x_row, recipe_.x_col, value, tokens, in_, temporary, pass.saved, x.images, x.row, x.col);
  x.images.target = pass.target(site_x_);
  return x;
}

void Linear::note_input(const Pass& pass, const LinearInput& x) const {
  count_pair(pass, site_x_, recipe_.x_row, recipe_.x_col, x.row.data.rows * in_);
  if (!pass.writes_dump(module_)) return;
  const std::string key = "mb" + std::to_string(pass.micro_batch) + "/" + module_ + "/x";
  pass.dump->add(key, x.value);
  pass.dump->add_image(key + ".row", x.row);
  pass.dump->add_image(key + ".col", x.col);
}

void Linear::forward(const Pass& pass, const LinearInput& x, const Tensor& y) const {
  Span span(pass.ctx.tracer, module_, "fprop", {.flops = gemm_flops(y.rows())});
  int64_t column = 0;
  for (const Part& p : parts_) {
    const MatrixView out = MatrixView(y).columns(column, p.weight->shape[0]);
    const GemmTerm term{x.row, p.w_row};
    ops::gemm(pass.ctx, {&term, 1}, out, 0.0f, recipe_.accumulate[0], p.bias ? p.bias->working : Tensor{});
    if (pass.writes_dump(module_)) pass.dump->add("mb" + std::to_string(pass.micro_batch) + "/" + module_ + "/" + p.name + "/y", out);
    column += p.weight->shape[0];
  }
}

LinearGrad Linear::allocate_grad(const Pass& pass, int64_t tokens) const {
  const bool biased = std::any_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.bias != nullptr; });
  Tensor value;
  if (biased || !recipe_.dy_row.quantized() || !recipe_.dy_col.quantized() || pass.dumps(module_)) value = pass.ctx.scratch().alloc(recipe_.compute, {tokens, out_});
  return make_grad(pass, value, tokens);
}

LinearGrad Linear::grad_of(const Pass& pass, const Tensor& dy) const { return make_grad(pass, dy, dy.rows()); }

LinearGrad Linear::make_grad(const Pass& pass, const Tensor& value, int64_t tokens) const {
  LinearGrad grad;
  grad.value = value;
  int64_t column = 0;
  Arena& scratch = pass.ctx.scratch();
  for (const Part& p : parts_) {
    const int64_t n = p.weight->shape[0];
    const MatrixView part = value.shape.rank() ? MatrixView(value).columns(column, n) : MatrixView();
    QuantizedOut& images = grad.images.emplace_back();
    allocate_pair(layout_, recipe_.dy_row, recipe_.dy_col, part, tokens, n, scratch, scratch, images, grad.row.emplace_back(), grad.col.emplace_back());
    images.target = pass.target(p.site_dy);
    column += n;
  }
  return grad;
}

void Linear::note_grad(const Pass& pass, const LinearGrad& dy) const {
  int64_t column = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& p = parts_[i];
    const int64_t n = p.weight->shape[0];
    count_pair(pass, p.site_dy, recipe_.dy_row, recipe_.dy_col, dy.row[i].data.rows * n);
    if (pass.writes_dump(module_)) {
      const std::string key = "mb" + std::to_string(pass.micro_batch) + "/" + module_ + "/" + p.name + "/dy";
      pass.dump->add(key, MatrixView(dy.value).columns(column, n));
      pass.dump->add_image(key + ".row", dy.row[i]);
      pass.dump->add_image(key + ".col", dy.col[i]);
    }
    column += n;
  }
}

LinearGrad Linear::quantize_grad(const Pass& pass, const Tensor& dy) const {
  LinearGrad grad = grad_of(pass, dy);
  int64_t column = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const MatrixView part = MatrixView(dy).columns(column, parts_[i].weight->shape[0]);
    column += part.cols;
    if (!grad.images[i].wanted()) continue;
    Span span(pass.ctx.tracer, module_, "quantize dy", {.bytes = quantize_bytes(part, grad.images[i])});
    ops::quantize(pass.ctx, part, grad.images[i]);
  }
  note_grad(pass, grad);
  return grad;
}

void Linear::backward_input(const Pass& pass, const LinearGrad& dy, const Tensor& dx) const {
  Span span(pass.ctx.tracer, module_, "dgrad", {.flops = gemm_flops(dx.rows())});
  std::vector<GemmTerm> terms;
  for (size_t i = 0; i < parts_.size(); ++i) terms.push_back({dy.row[i], parts_[i].w_col});
  ops::gemm(pass.ctx, terms, dx, 0.0f, recipe_.accumulate[1]);
  if (pass.writes_dump(module_)) pass.dump->add("mb" + std::to_string(pass.micro_batch) + "/" + module_ + "/dx", dx);
}

void Linear::backward_weight(const Pass& pass, const LinearGrad& dy, const LinearInput& x, bool first) const {
  Span span(pass.ctx.tracer, module_, "wgrad", {.flops = gemm_flops(dy.row.front().rows())});
  int64_t column = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& p = parts_[i];
    const GemmTerm term{dy.col[i], x.col};
    ops::gemm(pass.ctx, {&term, 1}, p.weight->grad, first ? 0.0f : 1.0f, recipe_.accumulate[2]);
    if (p.bias) ops::column_sums(pass.ctx, MatrixView(dy.value).columns(column, p.weight->shape[0]), p.bias->grad);
    column += p.weight->shape[0];
  }
}

void Linear::dump_weights(Dump& dump, QuantRegistry& quant) const {
  if (!dump.wants(module_)) return;
  // While it calibrates, a tensor is scaled by itself: the dump says what this step did.
  const auto as_used = [&](QuantSpec spec, int site) {
    if (!quant.uses_stored_scale(site)) spec.scaling = Scaling::current;
    return spec;
  };
  const Part& first = parts_.front();
  dump.specs.push_back({module_, as_used(recipe_.x_row, site_x_), as_used(recipe_.x_col, site_x_), as_used(recipe_.w_row, first.site_w), as_used(recipe_.w_col, first.site_w),
                        as_used(recipe_.dy_row, first.site_dy), as_used(recipe_.dy_col, first.site_dy)});
  const auto note_scale = [&](int site, const std::string& site_name) {
    if (quant.uses_stored_scale(site)) dump.stored_scales.push_back({site_name, quant.scales()[static_cast<size_t>(site)]});
  };
  note_scale(site_x_, module_ + "/x");
  for (const Part& p : parts_) {
    const std::string key = module_ + "/" + p.name;
    dump.add(key + "/w", p.weight->working);
    dump.add_image(key + "/w.row", p.w_row);
    dump.add_image(key + "/w.col", p.w_col);
    dump.add(key + "/dw", p.weight->grad);
    if (p.bias) dump.add(key + "/bias", p.bias->working);
    note_scale(p.site_w, key + "/w");
    note_scale(p.site_dy, key + "/dy");
  }
}

}  // namespace octet
