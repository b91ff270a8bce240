#include "model/linear.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/trace.h"
#include "ops/gemm.h"
#include "ops/reduce.h"

namespace octet {
namespace {

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

// Whether ranks that have parts of a matrix may have parts of one block, whose scale comes from all of it.
bool reaches_over_ranks(const QuantSpec& s, bool contraction_is_cut, const QuantTarget& t) {
  if (!s.quantized() || t.stored_scale) return false;
  return s.per_tensor() || s.scale == ScaleKind::ue4m3 || (contraction_is_cut && s.block_cols == 0);
}
bool reaches_over_ranks(const QuantizedOut& images, bool cut_rows) {
  return (images.row.data.rows && reaches_over_ranks(images.row_spec, !cut_rows, images.target)) || (images.col.data.rows && reaches_over_ranks(images.col_spec, cut_rows, images.target));
}

}  // namespace

Linear::Linear(std::string module, std::vector<Part> parts, const Recipe& recipe, QuantRegistry& quant, ImageLayout layout, const TensorParallel& tp, Cut cut)
    : module_(std::move(module)), parts_(std::move(parts)), recipe_(recipe), layout_(layout), tp_(tp), cut_(tp.alone() ? Cut::none : cut) {
  OCTET_CHECK(tp.alone() || cut_ != Cut::none, "{} is not cut", module_);
  in_ = parts_.front().weight->shape[1];
  whole_in_ = parts_.front().weight->whole[1];
  check_cut();
  const bool copy = tp_.rank != 0;
  site_x_ = quant.add(module_ + "/x", Role::x, recipe_.x_row, recipe_.x_col, copy && cut_ == Cut::outputs && !gathers_codes());
  for (Part& p : parts_) {
    OCTET_CHECK(p.weight->shape[1] == in_, "{}: {} has {} inputs, {} expected", module_, p.name, p.weight->shape[1], in_);
    OCTET_CHECK(!p.bias || cut_ != Cut::inputs, "{}: {} would add its bias on every rank", module_, p.name);
    out_ += p.weight->shape[0];
    p.site_w = quant.add(module_ + "/" + p.name + "/w", Role::w, recipe_.w_row, recipe_.w_col, p.weight->copy != 0);
    p.site_dy = quant.add(module_ + "/" + p.name + "/dy", Role::dy, recipe_.dy_row, recipe_.dy_col, (copy && cut_ == Cut::inputs && !gathers_grad_codes()) || p.weight->copy != 0);
  }
}

bool Linear::gathers_grad_codes() const {
  return cut_ == Cut::inputs && tp_.sequence && tp_.fp8_gather && recipe_.dy_row.quantized() && images_share_bytes(recipe_.dy_row, recipe_.dy_col);
}

// Blocks of fixed extent must end where the parts of the ranks do; the specs name them in contraction-last layout.
void Linear::check_cut() const {
  if (cut_ == Cut::none) return;
  const bool outputs = cut_ == Cut::outputs;
  const QuantSpec *contracted[2] = {outputs ? &recipe_.w_col : &recipe_.w_row, outputs ? &recipe_.dy_row : &recipe_.x_row};
  const QuantSpec *kept[2] = {outputs ? &recipe_.w_row : &recipe_.w_col, outputs ? &recipe_.dy_col : &recipe_.x_col};
  const auto check = [&](const Part& p, const QuantSpec& s, int64_t block, bool spans) {
    if (!s.quantized() || s.per_tensor()) return;
    const int64_t whole = outputs ? p.weight->whole[0] : whole_in_, first = outputs ? p.weight->first_row : p.weight->first_col;
    for (const int64_t edge : {first, first + p.weight->shape[outputs ? 0 : 1]}) {
      if (edge == 0 || edge >= whole || (block == 0 ? spans : edge % block == 0)) continue;
      throw Error(ExitCode::config, fmt::format("{}, which cuts {} of {} at {} {} of {}, inside a block of recipe {}", tp_.size, p.name, module_, outputs ? "output" : "input", edge, whole, recipe_.name),
                  "parallel.tp", "lower it, or choose a recipe without such blocks, as tensorwise, rowwise or bf16");
    }
  };
  for (const Part& p : parts_) {
    for (const QuantSpec* s : contracted) check(p, *s, s->block_cols, true);
    for (const QuantSpec* s : kept) check(p, *s, s->block_rows, false);
  }
}

// The images of matrices whose blocks reach over the ranks: their maxima are exchanged first. cut_rows: the ranks have rows of the whole matrix, else columns.
void Linear::quantize_over_ranks(Ctx& ctx, const std::vector<Unquantized>& all, bool cut_rows) const {
  Arena::Scope scope(ctx.scratch());
  std::vector<Tensor*> places;
  int64_t maxima = 0;
  const auto place = [&](const Unquantized& u, const Operand& image, const QuantSpec& spec, bool column, Tensor& amax) {
    if (!image.data.rows || !reaches_over_ranks(spec, column == cut_rows, u.images->target)) return;
    amax = {nullptr, Dtype::f32, {shared_amax_count(spec, u.x.rows, u.x.cols, column)}};
    maxima += amax.elements();
    places.push_back(&amax);
  };
  for (const Unquantized& u : all) {
    place(u, u.images->row, u.images->row_spec, false, u.images->row_amax);
    place(u, u.images->col, u.images->col_spec, true, u.images->col_amax);
  }
  const Tensor exchanged = ctx.scratch().alloc(Dtype::f32, {maxima});
  char* at = static_cast<char*>(exchanged.data);
  for (Tensor* amax : places) {
    amax->data = at;
    if (at) at += amax->bytes();
  }
  for (const Unquantized& u : all) {
    if (u.images->row_amax.shape.rank()) ops::shared_amaxes(ctx, u.x, u.images->row_spec, false, u.images->row_amax);
    if (u.images->col_amax.shape.rank()) ops::shared_amaxes(ctx, u.x, u.images->col_spec, true, u.images->col_amax);
  }
  if (maxima > 0) tp_.maxima(ctx, exchanged);
  for (const Unquantized& u : all) {
    Span span(ctx.tracer, module_, "quantize", {.bytes = quantize_bytes(u.x, *u.images)});
    ops::quantize(ctx, u.x, *u.images);
    u.images->row_amax = u.images->col_amax = {};
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

bool Linear::images_by_rows() const {
  const QuantSpec& s = recipe_.w_row;
  return images_share_bytes(s, recipe_.w_col) && (s.per_tensor() || (s.block_rows != 0 && 128 % s.block_rows == 0));
}

bool Linear::needs_weight_amax(const Part& part, QuantRegistry& quant) const { return reaches_over_ranks(recipe_.w_row, false, quant.silent_target(part.site_w)); }

void Linear::quantize_own_rows(Ctx& ctx, QuantRegistry& quant, const Part& part, const Tensor& amax, bool again) const {
  const Param& p = *part.weight;
  if (p.own_elements() == 0) return;
  QuantizedOut out{recipe_.w_row, recipe_.w_col, part.w_row.slice_rows(p.own.first, p.own.count), {}, again ? quant.silent_target(part.site_w) : quant.target(part.site_w)};
  out.target.place = p.place(p.own.first);
  out.row_amax = amax;
  Span span(ctx.tracer, module_, "quantize w", {.bytes = quantize_bytes(p.own_working, out)});
  ops::quantize(ctx, p.own_working, out);
}

void Linear::early_images(QuantRegistry& quant, int64_t step, WeightImages& images) const {
  for (const Part& p : parts_) {
    if (quant.made_early(p.site_w, step)) images[p.weight] = weight_images(p, quant.early_target(p.site_w));
  }
}

void Linear::refresh_images(Ctx& ctx, QuantRegistry& quant, bool without_early, bool again) {
  std::vector<QuantizedOut> over_ranks;
  std::vector<Unquantized> unquantized;
  over_ranks.reserve(parts_.size());
  for (Part& p : parts_) {
    QuantizedOut out = weight_images(p, again ? quant.silent_target(p.site_w) : quant.target(p.site_w));
    if (p.weight->by_codes) {   // the row image has come
      if (!one_image(layout_, recipe_.w_row, recipe_.w_col)) transpose_image(ctx, p.w_row, p.w_col);
      continue;
    }
    if (!out.wanted() || (without_early && quant.made_early(p.site_w, quant.step()))) continue;
    out.target.place = p.weight->place();
    if (cut_ != Cut::none && reaches_over_ranks(out, cut_ == Cut::outputs)) {
      over_ranks.push_back(out);
      unquantized.push_back({p.weight->working, &over_ranks.back()});
      continue;
    }
    Span span(ctx.tracer, module_, "quantize w", {.bytes = quantize_bytes(p.weight->working, out)});
    ops::quantize(ctx, p.weight->working, out);
  }
  if (!unquantized.empty()) quantize_over_ranks(ctx, unquantized, cut_ == Cut::outputs);
}

void Linear::count_images(QuantRegistry& quant) const {
  for (const Part& p : parts_) {
    const int64_t n = p.weight->whole.elements();
    if (recipe_.w_row.quantized()) quant.count(p.site_w, recipe_.w_row.format, n);
    if (recipe_.w_col.quantized() && !images_share_bytes(recipe_.w_row, recipe_.w_col)) quant.count(p.site_w, recipe_.w_col.format, n);
  }
}

QuantTarget Linear::input_target(const Pass& pass, int64_t rows) const {
  QuantTarget t = pass.target(site_x_);
  if (cut_ == Cut::inputs) t.place = {0, parts_.front().weight->first_col, whole_in_};
  if (gathers_codes()) t.place = {tp_.rank * rows, 0, whole_in_};
  return t;
}

LinearInput Linear::allocate_input(const Pass& pass, Arena& temporary, int64_t rows) const {
  const bool gathers_values = gathers_input() && !gathers_codes(), kept = !recipe_.x_col.quantized() || gathers_values;
  Tensor value;
  if (kept || !recipe_.x_row.quantized() || quantizes_later(pass, rows) || pass.dumps(module_)) value = (kept ? pass.saved : temporary).alloc(recipe_.compute, {rows, in_});
  return make_input(pass, temporary, value, rows);
}

LinearInput Linear::input_of(const Pass& pass, Arena& temporary, const Tensor& value) const { return make_input(pass, temporary, value, value.rows()); }

// Whether the images of the input wait for maxima of other ranks.
bool Linear::quantizes_later(const Pass& pass, int64_t rows) const {
  if (cut_ == Cut::none || (cut_ == Cut::outputs && !gathers_codes())) return false;
  const bool cut_rows = cut_ == Cut::outputs;
  const QuantTarget t = input_target(pass, rows);
  return reaches_over_ranks(recipe_.x_row, !cut_rows, t) || reaches_over_ranks(recipe_.x_col, cut_rows, t);
}

LinearInput Linear::make_input(const Pass& pass, Arena& temporary, const Tensor& value, int64_t rows) const {
  LinearInput x;
  x.value = value;
  if (gathers_input() && !gathers_codes()) return x;
  QuantizedOut images;
  if (gathers_codes() && images_share_bytes(recipe_.x_row, recipe_.x_col)) {
    images.row_spec = recipe_.x_row;
    images.col_spec = recipe_.x_col;
    x.own = x.row = images.row = alloc_image(pass.saved, recipe_.x_row, rows, in_, false, layout_);
  } else {
    allocate_pair(layout_, recipe_.x_row, recipe_.x_col, value, rows, in_, temporary, pass.saved, images, x.row, gathers_codes() ? x.own : x.col);
  }
  images.target = input_target(pass, rows);
  (quantizes_later(pass, rows) ? x.later : x.images) = images;
  return x;
}

void Linear::finish_input(const Pass& pass, Arena& temporary, LinearInput& x, int64_t tokens, Reader reader) const {
  if (x.later.wanted()) quantize_over_ranks(pass.ctx, {{x.value, &x.later}}, cut_ == Cut::outputs);
  if (gathers_codes()) {
    if (reader != Reader::backward) x.row = gathered(pass.ctx, temporary, recipe_.x_row, x.row, false, tokens, in_);
    if (reader == Reader::all) x.col = images_share_bytes(recipe_.x_row, recipe_.x_col) ? column_image(pass.ctx, temporary, recipe_.x_col, x.row) : column_of(pass, x, tokens);
  } else if (gathers_input() && reader != Reader::backward) {
    const Tensor whole = gathered(pass.ctx, temporary, x.value, tokens);
    QuantizedOut images;
    Operand col;
    allocate_pair(layout_, recipe_.x_row, reader == Reader::all ? recipe_.x_col : QuantSpec{}, whole, tokens, in_, temporary, temporary, images, x.row, col);
    images.target = pass.target(site_x_);
    if (images.wanted()) ops::quantize(pass.ctx, whole, images);
    if (reader == Reader::all) x.col = col;
  }
  count_pair(pass, site_x_, recipe_.x_row, recipe_.x_col, tokens * whole_in_);
  if (!pass.writes_dump(module_)) return;
  const std::string key = "mb" + std::to_string(pass.micro_batch) + "/" + module_ + "/x";
  pass.dump->add(key, x.value);
  pass.dump->add_image(key + ".row", x.row);
  pass.dump->add_image(key + ".col", x.col);
}

void Linear::forward(const Pass& pass, const LinearInput& x, const Tensor& y) const {
  Span span(pass.ctx.tracer, module_, "fprop", {.flops = gemm_flops(x.row.rows())});
  Arena::Scope scope(pass.ctx.scratch());
  const Tensor result = cut_ == Cut::inputs && tp_.sequence ? pass.ctx.scratch().alloc(y.dtype, {x.row.rows(), out_}) : y;
  int64_t column = 0;
  for (const Part& p : parts_) {
    const MatrixView out = MatrixView(result).columns(column, p.weight->shape[0]);
    const GemmTerm term{x.row, p.w_row};
    ops::gemm(pass.ctx, {&term, 1}, out, 0.0f, recipe_.accumulate[0], p.bias ? p.bias->working : Tensor{});
    if (pass.writes_dump(module_)) pass.dump->add("mb" + std::to_string(pass.micro_batch) + "/" + module_ + "/" + p.name + "/y", out);
    column += p.weight->shape[0];
  }
  if (cut_ == Cut::inputs) tp_.sum(pass.ctx, result, y);
}

LinearGrad Linear::allocate_grad(const Pass& pass, int64_t tokens) const {
  const bool biased = std::any_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.bias != nullptr; });
  Tensor value;
  if (biased || !recipe_.dy_row.quantized() || !recipe_.dy_col.quantized() || grad_waits(pass) || pass.dumps(module_)) value = pass.ctx.scratch().alloc(recipe_.compute, {tokens, out_});
  return make_grad(pass, value, tokens);
}

LinearGrad Linear::grad_of(const Pass& pass, const Tensor& dy) const { return make_grad(pass, dy, dy.rows()); }

// Whether the images of an output gradient, whose columns are cut, wait for maxima of other ranks.
bool Linear::grad_waits(const Pass& pass) const {
  if (cut_ != Cut::outputs) return false;
  const QuantTarget t = pass.target(parts_.front().site_dy);
  return reaches_over_ranks(recipe_.dy_row, true, t) || reaches_over_ranks(recipe_.dy_col, false, t);
}

LinearGrad Linear::make_grad(const Pass& pass, const Tensor& value, int64_t tokens) const {
  LinearGrad grad;
  grad.value = value;
  const bool waits = grad_waits(pass);
  int64_t column = 0;
  Arena& scratch = pass.ctx.scratch();
  for (const Part& p : parts_) {
    const int64_t n = p.weight->shape[0];
    const MatrixView part = value.shape.rank() ? MatrixView(value).columns(column, n) : MatrixView();
    QuantizedOut images;
    allocate_pair(layout_, recipe_.dy_row, recipe_.dy_col, part, tokens, n, scratch, scratch, images, grad.row.emplace_back(), grad.col.emplace_back());
    images.target = pass.target(p.site_dy);
    images.target.place = {0, p.weight->first_row, p.weight->whole[0]};
    grad.images.push_back(waits ? QuantizedOut{} : images);
    grad.later.push_back(waits ? images : QuantizedOut{});
    column += n;
  }
  return grad;
}

void Linear::finish_grad(const Pass& pass, LinearGrad& dy) const {
  std::vector<Unquantized> waiting;
  int64_t column = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int64_t n = parts_[i].weight->shape[0];
    if (dy.later[i].wanted()) waiting.push_back({MatrixView(dy.value).columns(column, n), &dy.later[i]});
    column += n;
  }
  if (!waiting.empty()) quantize_over_ranks(pass.ctx, waiting, false);
  column = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& p = parts_[i];
    const int64_t n = p.weight->shape[0];
    count_pair(pass, p.site_dy, recipe_.dy_row, recipe_.dy_col, dy.row[i].data.rows * p.weight->whole[0]);
    if (pass.writes_dump(module_)) {
      const std::string key = "mb" + std::to_string(pass.micro_batch) + "/" + module_ + "/" + p.name + "/dy";
      pass.dump->add(key, MatrixView(dy.value).columns(column, n));
      pass.dump->add_image(key + ".row", dy.row[i]);
      pass.dump->add_image(key + ".col", dy.col[i]);
    }
    column += n;
  }
}

LinearGrad Linear::quantize_grad(const Pass& pass, const Tensor& dy, int64_t tokens) const {
  if (gathers_grad_codes()) return gathered_grad_codes(pass, dy, tokens);
  const Tensor whole = cut_ == Cut::inputs && tp_.sequence ? gathered(pass.ctx, pass.ctx.scratch(), dy, tokens) : dy;
  LinearGrad grad = grad_of(pass, whole);
  int64_t column = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const MatrixView part = MatrixView(whole).columns(column, parts_[i].weight->shape[0]);
    column += part.cols;
    if (!grad.images[i].wanted()) continue;
    Span span(pass.ctx.tracer, module_, "quantize dy", {.bytes = quantize_bytes(part, grad.images[i])});
    ops::quantize(pass.ctx, part, grad.images[i]);
  }
  finish_grad(pass, grad);
  return grad;
}

void Linear::partial_input_grad(const Pass& pass, const LinearGrad& dy, const Tensor& dx) const {
  Span span(pass.ctx.tracer, module_, "dgrad", {.flops = gemm_flops(dx.rows())});
  std::vector<GemmTerm> terms;
  for (size_t i = 0; i < parts_.size(); ++i) terms.push_back({dy.row[i], parts_[i].w_col});
  ops::gemm(pass.ctx, terms, dx, 0.0f, recipe_.accumulate[1]);
  if (pass.writes_dump(module_)) pass.dump->add("mb" + std::to_string(pass.micro_batch) + "/" + module_ + "/dx", dx);
}

RowSum Linear::backward_input(const Pass& pass, const LinearGrad& dy, const Tensor& dx) const {
  const Tensor partial = gathers_input() ? pass.ctx.scratch().alloc(dx.dtype, {dy.row.front().rows(), in_}) : dx;
  partial_input_grad(pass, dy, partial);
  return cut_ == Cut::outputs ? tp_.start_sum(pass.ctx, partial, dx) : RowSum();
}

LinearInput Linear::input_again(const Pass& pass, const LinearInput& x, int64_t tokens) const {
  LinearInput again = x;
  if (gathers_input()) again.col = column_of(pass, x, tokens);
  return again;
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
