#include "model/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "core/philox.h"
#include "core/trace.h"
#include "model/rope_table.h"
#include "ops/embedding.h"
#include "ops/optimizer.h"
#include "ops/reduce.h"

namespace octet {
namespace {

void call(const Pass& pass, std::function<void(size_t)> UnitHooks::*hook, size_t unit) {
  if (pass.hooks && pass.hooks->*hook) (pass.hooks->*hook)(unit);
}

void use_weights(const Pass& pass, size_t unit, std::optional<size_t> next) {
  if (pass.hooks && pass.hooks->weights) pass.hooks->weights(unit, next);
}

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

RecomputePolicy recompute_policy(const RecomputeConfig& c) {
  RecomputePolicy p;
  for (const std::string& m : c.modules) {
    p.norm |= m == "norm";
    p.swiglu |= m == "swiglu";
    p.attention |= m == "attention";
    p.block |= m == "block";
  }
  p.swiglu_fp8 = c.swiglu_inputs == "fp8";
  return p;
}

}  // namespace

Model::Model(const RunConfig& c, QuantRegistry& quant, ImageLayout layout, const TensorParallel& tp)
    : config_(c.model),
      layout_(layout),
      policy_(c.precision, c.model.num_hidden_layers),
      tp_(tp),
      heads_{c.model.num_attention_heads / tp.size, std::max<int64_t>(1, c.model.num_key_value_heads / tp.size), c.model.head_dim, rotary_dim(c.model), static_cast<float>(c.model.rms_norm_eps)},
      seq_len_(c.data.seq_len) {
  formats_ = {policy_.base().compute, c.optim.master_weights == "bf16_remainder", c.optim.moments == "bf16" ? Dtype::bf16 : Dtype::f32};
  const ModelConfig& m = config_;
  embedding_ = &add_vocabulary("model.embed_tokens.weight");
  for (int64_t layer = 0; layer < m.num_hidden_layers; ++layer) blocks_.push_back(std::make_unique<Block>(make_block(layer, c, quant)));
  Param& norm = add_vector("model.norm.weight", m.hidden_size, Init::ones, norm_gradient());
  Param& lm_head = m.tie_word_embeddings ? *embedding_ : add_vocabulary("lm_head.weight");
  Linear head("head", {{"lm_head", &lm_head, nullptr, -1, -1, {}, {}}}, policy_.for_module("head", -1), quant, layout_, tp_, Cut::outputs);
  head_ = std::make_unique<Head>(norm, std::move(head), m.vocab_size, heads_.norm_eps, static_cast<float>(c.optim.z_loss), tp_);
  policy_.check_rules(module_paths());
  make_units();
}

void Model::make_units() {
  // Slots: 0 and 1 the layers in turn, 2 embedding and head.
  units_.push_back({{embedding_}, {}, 2});
  for (size_t l = 0; l < blocks_.size(); ++l) units_.push_back({blocks_[l]->params(), blocks_[l]->linears(), static_cast<int>(l % 2)});
  if (!config_.tie_word_embeddings) units_.push_back({{}, {}, 2});
  head_unit_ = config_.tie_word_embeddings ? 0 : units_.size() - 1;
  Unit& last = units_[head_unit_];
  last.params.push_back(&head_->norm());
  if (!config_.tie_word_embeddings) last.params.push_back(head_->linear().parts().front().weight);
  last.linears.push_back(&head_->linear());
  for (const Linear* l : linears()) {
    for (const Linear::Part& part : l->parts()) written_.insert(part.weight);
  }
}

Param& Model::add_param(std::string name, Shape whole, const Part& part, Init init, bool decay) {
  const bool vector = whole.rank() == 1;
  Param p;
  p.name = std::move(name);
  p.shape = vector ? Shape{part.rows.count} : Shape{part.rows.count, part.cols.count};
  p.logical_rows = part.logical_rows;
  p.init = init;
  p.decay = decay;
  p.whole = whole;
  p.first_row = part.rows.first;
  p.first_col = part.cols.first;
  p.own = {0, part.rows.count};
  params_.push_back(std::make_unique<Param>(std::move(p)));
  return *params_.back();
}

// Of all ranks.
Param& Model::add_vector(const std::string& name, int64_t elements, Init init, TpGradient gradient) {
  Param& p = add_param(name, {elements}, {{0, elements}, {0, 1}, elements}, init, false);
  p.copies = tp_.size;
  p.copy = tp_.rank;
  p.tp_gradient = tp_.alone() ? TpGradient::complete : gradient;
  return p;
}

// Padded to the same multiple of rows on each rank, so that the last ranks may have padding only.
Param& Model::add_vocabulary(const std::string& name) {
  const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
  const int64_t rows = round_up(vocab, config_.vocab_pad_multiple * tp_.size) / tp_.size, first = rows * tp_.rank;
  return add_param(name, {vocab, hidden}, {{first, rows}, {0, hidden}, std::clamp<int64_t>(vocab - first, 0, rows)}, Init::normal, true);
}

// With sequence parallelism a norm sees some tokens only.
TpGradient Model::norm_gradient() const { return tp_.sequence ? TpGradient::sum_tp : TpGradient::complete; }

Block Model::make_block(int64_t layer, const RunConfig& c, QuantRegistry& quant) {
  const ModelConfig& m = config_;
  const std::string hf = "model.layers." + std::to_string(layer) + ".", path = "layers." + std::to_string(layer) + ".";
  const int64_t d = m.head_dim, kv_copies = std::max<int64_t>(1, tp_.size / m.num_key_value_heads);
  const RowRange features = feature_range(m.intermediate_size, tp_.size, tp_.rank), q_rows{tp_.rank * heads_.heads * d, heads_.heads * d},
                 kv_rows{tp_.rank / kv_copies * heads_.kv_heads * d, heads_.kv_heads * d};
  const RowRange hidden{0, m.hidden_size};
  const auto matrix = [&](const std::string& name, Shape whole, RowRange rows, RowRange cols, Init init = Init::normal) {
    return &add_param(hf + name + ".weight", whole, {rows, cols, rows.count}, init, true);
  };
  const auto norm = [&](const std::string& name, int64_t n, TpGradient gradient) { return &add_vector(hf + name, n, Init::ones, gradient); };
  const auto part = [](const char* name, Param* weight, Param* bias = nullptr) { return Linear::Part{name, weight, bias, -1, -1, {}, {}}; };
  const auto linear = [&](const std::string& module, std::vector<Linear::Part> parts, Cut cut) {
    return Linear(path + module, std::move(parts), policy_.for_module(path + module, layer), quant, layout_, tp_, cut);
  };

  BlockParams p;
  p.attn_norm = norm("input_layernorm.weight", m.hidden_size, norm_gradient());
  std::vector<Linear::Part> qkv;
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    const bool kv = name[0] != 'q';
    const RowRange rows = kv ? kv_rows : q_rows;
    const int64_t whole = (kv ? m.num_key_value_heads : m.num_attention_heads) * d;
    const std::string tensor = std::string("self_attn.") + name;
    std::vector<Param*> made{matrix(tensor, {whole, m.hidden_size}, rows, hidden)};
    if (m.attention_bias) made.push_back(&add_param(hf + tensor + ".bias", {whole}, {rows, {0, 1}, rows.count}, Init::zeros, false));
    for (Param* of_heads : made) {
      if (!kv || kv_copies == 1) continue;
      of_heads->copies = static_cast<int>(kv_copies);
      of_heads->copy = static_cast<int>(tp_.rank % kv_copies);
    }
    qkv.push_back(part(name, made[0], m.attention_bias ? made[1] : nullptr));
  }
  if (m.use_qk_norm) {
    p.q_norm = norm("self_attn.q_norm.weight", d, TpGradient::sum_tp);   // each rank has the gradient of its heads
    p.k_norm = norm("self_attn.k_norm.weight", d, TpGradient::sum_tp);
  }
  Param* o = matrix("self_attn.o_proj", {m.hidden_size, m.num_attention_heads * d}, hidden, q_rows, Init::normal_output);
  p.mlp_norm = norm("post_attention_layernorm.weight", m.hidden_size, norm_gradient());
  Param* gate = matrix("mlp.gate_proj", {m.intermediate_size, m.hidden_size}, features, hidden);
  Param* up = matrix("mlp.up_proj", {m.intermediate_size, m.hidden_size}, features, hidden);
  Param* down = matrix("mlp.down_proj", {m.hidden_size, m.intermediate_size}, hidden, features, Init::normal_output);
  // One by one: their sites are registered in the order of a step. (A call's arguments are made in any order.)
  Linear qkv_linear = linear("attn.qkv", std::move(qkv), Cut::outputs);
  Linear out_linear = linear("attn.out", {part("o_proj", o)}, Cut::inputs);
  Linear gate_up_linear = linear("mlp.gate_up", {part("gate_proj", gate), part("up_proj", up)}, Cut::outputs);
  Linear down_linear = linear("mlp.down", {part("down_proj", down)}, Cut::inputs);
  return Block(p, std::move(qkv_linear), std::move(out_linear), std::move(gate_up_linear), std::move(down_linear), heads_, recompute_policy(c.recompute));
}

std::vector<Linear*> Model::linears() const {
  std::vector<Linear*> all;
  for (const auto& b : blocks_) {
    for (Linear* l : b->linears()) all.push_back(l);
  }
  all.push_back(&head_->linear());
  return all;
}

std::vector<std::string> Model::module_paths() const {
  std::vector<std::string> paths;
  for (const Linear* l : linears()) paths.push_back(l->module());
  return paths;
}

int64_t Model::parameter_count() const {
  int64_t n = 0;
  for (const auto& p : params_) n += p->whole.elements();
  return n;
}

void Model::allocate(const Memory& m) {
  for (const Unit& u : units_) {
    Arena *grads = m.grads ? &(*m.grads)[static_cast<size_t>(u.slot)] : nullptr, *working = m.working ? &(*m.working)[static_cast<size_t>(u.slot)] : nullptr;
    // The units of a slot begin at its beginning.
    std::optional<Arena::Scope> lent_grads, lent_working;
    if (grads) lent_grads.emplace(*grads);
    if (working) lent_working.emplace(*working);
    for (Param* p : u.params) octet::allocate(*p, {&m.lasting, &m.states, grads, working}, formats_);
    for (Linear* l : u.linears) l->allocate_images(working ? *working : m.images);
  }
  rope_table_ = m.lasting.alloc(Dtype::f32, {seq_len_, heads_.rotary_dim});
}

void Model::initialize(Machine& machine, uint64_t seed, double perturbation) {
  machine.write(rope_table_, [&](const Tensor& t) { fill_rope_table(config_, t); });
  const double output_scale = config_.init_scale_output ? 1.0 / std::sqrt(2.0 * static_cast<double>(config_.num_hidden_layers)) : 1.0;
  for (const auto& p : params_) {
    const int64_t n = p->own_elements(), cols = p->row_elements(), logical = std::clamp<int64_t>(p->logical_rows - p->own.first, 0, p->own.count) * cols;
    const int64_t first_row = p->first_row + p->own.first, whole_cols = p->whole.rank() == 1 ? 1 : p->whole[1];
    const Philox rng(seed, RngPurpose::init, p->name), twin(seed, RngPurpose::perturbation, p->name);
    const double std_dev = config_.initializer_range * (p->init == Init::normal_output ? output_scale : 1.0);
    const bool drawn = p->init == Init::normal || p->init == Init::normal_output;
    // Elements are numbered as in the whole tensor. Neighbours share their random words.
    const auto fill = [&](float* w, int64_t begin, int64_t end) {
      std::array<double, 2> draws{};
      int64_t drawn_pair = -1;
      int64_t row = begin / cols, col = begin % cols;   // counted: two divisions an element took a third of the time
      for (int64_t i = begin; i < end; ++i) {
        const int64_t element = (first_row + row) * whole_cols + p->first_col + col;
        if (++col == cols) {
          col = 0;
          ++row;
        }
        if (drawn && element / 2 != drawn_pair) draws = rng.normals(static_cast<uint64_t>(drawn_pair = element / 2));
        w[i] = i >= logical || p->init == Init::zeros ? 0.0f : drawn ? static_cast<float>(std_dev * draws[static_cast<size_t>(element % 2)]) : 1.0f;
        if (perturbation != 0) w[i] = static_cast<float>(w[i] * (1.0 + perturbation * twin.normal(static_cast<uint64_t>(element))));
      }
    };
    write_master(machine, *p, [&](float* w) {
      constexpr int64_t tile = int64_t{1} << 14;
      machine.pool().run((n + tile - 1) / tile, [&](int64_t t, int) { fill(w, t * tile, std::min(n, (t + 1) * tile)); });
    });
  }
}

void Model::clear_states(Ctx& ctx) {
  for (const auto& p : params_) {
    for (const Tensor* t : {&p->grad, &p->own_grad, &p->exp_avg, &p->exp_avg_sq}) ops::zero(ctx, *t);
  }
}

void Model::refresh_working(Ctx& ctx) {
  for (const auto& p : params_) {
    if (p->master.shape.rank() != 0 && p->working.dtype == Dtype::bf16 && p->own_elements() > 0) ops::cast_weights(ctx, p->master, p->own_working);
  }
}

WeightImages Model::early_images(QuantRegistry& quant, int64_t step) const {
  WeightImages images;
  for (const Linear* l : linears()) l->early_images(quant, step, images);
  return images;
}

void Model::refresh_images(Ctx& ctx, QuantRegistry& quant, bool without_early) {
  for (Linear* l : linears()) l->refresh_images(ctx, quant, without_early);
}

void Model::count_images(QuantRegistry& quant) const {
  for (const Linear* l : linears()) l->count_images(quant);
}

void Model::zero_gradients(Ctx& ctx) {
  for (const Unit& u : units_) zero_gradients(ctx, u);
}

void Model::zero_gradients(Ctx& ctx, const Unit& unit) {
  for (const Param* p : unit.params) {
    if (!written_.contains(p)) ops::zero(ctx, p->grad);
  }
}

TokenGeometry Model::geometry(const TokenBatch& b) const {
  OCTET_CHECK(b.seq_len <= seq_len_, "sequence of {} tokens, the position table has {}", b.seq_len, seq_len_);
  return {b.tokens.elements(), b.seq_len, b.positions, b.document_start, rope_table_};
}

Shape Model::stream(const TokenGeometry& t) const { return {tp_.tokens(t.tokens).count, config_.hidden_size}; }

// Of words that other ranks have, a rank adds zeros.
void Model::embed(const Pass& pass, const TokenBatch& batch, const Tensor& x) const {
  Span span(pass.ctx.tracer, "embed", "forward");
  Arena::Scope scope(pass.ctx.scratch());
  const Tensor rows = tp_.sequence ? pass.ctx.scratch().alloc(x.dtype, {batch.tokens.elements(), x.cols()}) : x;
  ops::embedding(pass.ctx, embedding_->working, batch.tokens, rows, embedding_->first_row);
  if (!tp_.alone()) tp_.sum(pass.ctx, rows, x);
}

void Model::embed_backward(const Pass& pass, const TokenBatch& batch, const Tensor& grad) const {
  Span span(pass.ctx.tracer, "embed", "backward");
  Arena::Scope scope(pass.ctx.scratch());
  const Tensor rows = tp_.sequence ? tp_.gathered(pass.ctx, pass.ctx.scratch(), grad, batch.tokens.elements()) : grad;
  ops::embedding_backward(pass.ctx, rows, batch.tokens, embedding_->grad, embedding_->first_row);
}

// The unit whose weights are used after those of `unit` in a forward pass.
size_t Model::behind(size_t unit) const { return unit < blocks_.size() ? unit + 1 : head_unit_; }

void Model::train_micro_batch(Pass& pass, const TokenBatch& batch, const float* grad_scale) {
  Arena::Scope scope(pass.saved);
  const Dtype dtype = policy_.base().compute;
  const TokenGeometry t = geometry(batch);
  const Shape stream = this->stream(t);
  std::vector<BlockSaved> saved(blocks_.size());

  Tensor x = pass.saved.alloc(dtype, stream), delta;
  use_weights(pass, 0, behind(0));
  embed(pass, batch, x);
  // A layer's MLP output is read once, by the next norm; two buffers take turns.
  const Tensor mlp_out[2] = {pass.saved.alloc(dtype, stream), pass.saved.alloc(dtype, stream)};
  for (size_t l = 0; l < blocks_.size(); ++l) {
    use_weights(pass, l + 1, behind(l + 1));
    blocks_[l]->forward(pass, t, x, delta, saved[l], mlp_out[l % 2]);
    x = saved[l].s2;
    delta = mlp_out[l % 2];
  }
  const Tensor grad = pass.saved.alloc(dtype, stream);
  use_weights(pass, head_unit_, blocks_.empty() ? std::nullopt : std::optional(blocks_.size()));
  call(pass, &UnitHooks::backward, head_unit_);
  head_->forward_backward(pass, x, delta, batch.labels, grad_scale, grad);
  if (head_unit_ != 0) call(pass, &UnitHooks::gradients, head_unit_);
  for (size_t l = blocks_.size(); l-- > 0;) {
    use_weights(pass, l + 1, l > 0 ? std::optional(l) : std::nullopt);
    call(pass, &UnitHooks::backward, l + 1);
    blocks_[l]->backward(pass, t, saved[l], grad);
    call(pass, &UnitHooks::gradients, l + 1);
  }
  if (head_unit_ != 0) call(pass, &UnitHooks::backward, 0);
  embed_backward(pass, batch, grad);
  call(pass, &UnitHooks::gradients, 0);
}

void Model::evaluate(Pass& pass, const TokenBatch& batch) {
  pass.backward = false;
  Arena::Scope scope(pass.saved);
  const Dtype dtype = policy_.base().compute;
  const TokenGeometry t = geometry(batch);
  const Shape stream = this->stream(t);
  Tensor x = pass.saved.alloc(dtype, stream), delta;
  use_weights(pass, 0, behind(0));
  embed(pass, batch, x);
  // Nothing is kept: three stream buffers take turns, the rest of a layer's activations are released after it.
  const Tensor residual[2] = {pass.saved.alloc(dtype, stream), pass.saved.alloc(dtype, stream)};
  const Tensor mlp_out[2] = {pass.saved.alloc(dtype, stream), pass.saved.alloc(dtype, stream)};
  for (size_t l = 0; l < blocks_.size(); ++l) {
    use_weights(pass, l + 1, behind(l + 1));
    Arena::Scope layer(pass.saved);
    BlockSaved saved;
    blocks_[l]->forward(pass, t, x, delta, saved, mlp_out[l % 2]);
    ops::copy(pass.ctx, saved.s2, residual[l % 2]);
    x = residual[l % 2];
    delta = mlp_out[l % 2];
  }
  use_weights(pass, head_unit_, std::nullopt);
  head_->evaluate(pass, x, delta, batch.labels);
}

void Model::dump_weights(Dump& dump, QuantRegistry& quant) const {
  for (const Linear* l : linears()) l->dump_weights(dump, quant);
}

}  // namespace octet
