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

Model::Model(const RunConfig& c, QuantRegistry& quant, ImageLayout layout)
    : config_(c.model),
      layout_(layout),
      policy_(c.precision, c.model.num_hidden_layers),
      heads_{c.model.num_attention_heads, c.model.num_key_value_heads, c.model.head_dim, rotary_dim(c.model), static_cast<float>(c.model.rms_norm_eps)},
      seq_len_(c.data.seq_len) {
  formats_ = {policy_.base().compute, c.optim.master_weights == "bf16_remainder", c.optim.moments == "bf16" ? Dtype::bf16 : Dtype::f32};
  const ModelConfig& m = config_;
  const int64_t padded = round_up(m.vocab_size, m.vocab_pad_multiple);
  embedding_ = &add_param("model.embed_tokens.weight", {padded, m.hidden_size}, m.vocab_size, Init::normal, true);
  for (int64_t layer = 0; layer < m.num_hidden_layers; ++layer) blocks_.push_back(std::make_unique<Block>(make_block(layer, c, quant)));
  Param& norm = add_param("model.norm.weight", {m.hidden_size}, m.hidden_size, Init::ones, false);
  Param& lm_head = m.tie_word_embeddings ? *embedding_ : add_param("lm_head.weight", {padded, m.hidden_size}, m.vocab_size, Init::normal, true);
  Linear head("head", {{"lm_head", &lm_head, nullptr, -1, -1, {}, {}}}, policy_.for_module("head", -1), quant, layout_);
  head_ = std::make_unique<Head>(norm, std::move(head), m.vocab_size, heads_.norm_eps, static_cast<float>(c.optim.z_loss));
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

Param& Model::add_param(std::string name, Shape shape, int64_t logical_rows, Init init, bool decay) {
  params_.push_back(std::make_unique<Param>(Param{std::move(name), shape, logical_rows, init, decay, {0, shape[0]}}));
  return *params_.back();
}

Block Model::make_block(int64_t layer, const RunConfig& c, QuantRegistry& quant) {
  const ModelConfig& m = config_;
  const std::string hf = "model.layers." + std::to_string(layer) + ".", path = "layers." + std::to_string(layer) + ".";
  const int64_t q_rows = m.num_attention_heads * m.head_dim, kv_rows = m.num_key_value_heads * m.head_dim;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, Init init = Init::normal) { return &add_param(hf + name + ".weight", {rows, cols}, rows, init, true); };
  const auto vector = [&](const std::string& name, int64_t n, Init init) { return &add_param(hf + name, {n}, n, init, false); };
  const auto part = [](const char* name, Param* weight, Param* bias = nullptr) { return Linear::Part{name, weight, bias, -1, -1, {}, {}}; };
  const auto linear = [&](const std::string& module, std::vector<Linear::Part> parts) {
    return Linear(path + module, std::move(parts), policy_.for_module(path + module, layer), quant, layout_);
  };

  BlockParams p;
  p.attn_norm = vector("input_layernorm.weight", m.hidden_size, Init::ones);
  const auto bias = [&](const std::string& name, int64_t n) { return m.attention_bias ? vector("self_attn." + name + ".bias", n, Init::zeros) : nullptr; };
  std::vector<Linear::Part> qkv;
  for (const auto& [name, rows] : {std::pair{"q_proj", q_rows}, std::pair{"k_proj", kv_rows}, std::pair{"v_proj", kv_rows}}) {
    Param* weight = matrix(std::string("self_attn.") + name, rows, m.hidden_size);
    qkv.push_back(part(name, weight, bias(name, rows)));
  }
  if (m.use_qk_norm) {
    p.q_norm = vector("self_attn.q_norm.weight", m.head_dim, Init::ones);
    p.k_norm = vector("self_attn.k_norm.weight", m.head_dim, Init::ones);
  }
  Param* o = matrix("self_attn.o_proj", m.hidden_size, q_rows, Init::normal_output);
  p.mlp_norm = vector("post_attention_layernorm.weight", m.hidden_size, Init::ones);
  Param* gate = matrix("mlp.gate_proj", m.intermediate_size, m.hidden_size);
  Param* up = matrix("mlp.up_proj", m.intermediate_size, m.hidden_size);
  Param* down = matrix("mlp.down_proj", m.hidden_size, m.intermediate_size, Init::normal_output);
  return Block(p, linear("attn.qkv", qkv), linear("attn.out", {part("o_proj", o)}), linear("mlp.gate_up", {part("gate_proj", gate), part("up_proj", up)}),
               linear("mlp.down", {part("down_proj", down)}), heads_, recompute_policy(c.recompute));
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
  for (const auto& p : params_) n += p->logical_elements();
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
    const int64_t first = p->own.first * p->row_elements(), n = p->own_elements(), logical = p->logical_elements();
    const Philox rng(seed, RngPurpose::init, p->name), twin(seed, RngPurpose::perturbation, p->name);
    const double std_dev = config_.initializer_range * (p->init == Init::normal_output ? output_scale : 1.0);
    const bool drawn = p->init == Init::normal || p->init == Init::normal_output;
    // w: of the own rows; elements count from the parameter's first. begin is even: neighbours share their random words.
    const auto fill = [&](float* own, int64_t begin, int64_t end) {
      float* w = own - first;
      for (int64_t i = begin; i < end; i += 2) {
        const auto draws = drawn ? rng.normals(static_cast<uint64_t>(i / 2)) : std::array{0.0, 0.0};
        for (int64_t j = i; j < std::min(i + 2, end); ++j) {
          w[j] = j >= logical || p->init == Init::zeros ? 0.0f : drawn ? static_cast<float>(std_dev * draws[static_cast<size_t>(j - i)]) : 1.0f;
          if (perturbation != 0) w[j] = static_cast<float>(w[j] * (1.0 + perturbation * twin.normal(static_cast<uint64_t>(j))));
        }
      }
    };
    write_master(machine, *p, [&](float* w) {
      constexpr int64_t tile = int64_t{1} << 14;
      machine.pool().run((n + tile - 1) / tile, [&](int64_t t, int) { fill(w, first + t * tile, first + std::min(n, (t + 1) * tile)); });
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

// The unit whose weights are used after those of `unit` in a forward pass.
size_t Model::behind(size_t unit) const { return unit < blocks_.size() ? unit + 1 : head_unit_; }

void Model::train_micro_batch(Pass& pass, const TokenBatch& batch, const float* grad_scale) {
  Arena::Scope scope(pass.saved);
  const Dtype dtype = policy_.base().compute;
  const TokenGeometry t = geometry(batch);
  const Shape stream{t.tokens, config_.hidden_size};
  std::vector<BlockSaved> saved(blocks_.size());

  Tensor x = pass.saved.alloc(dtype, stream), delta;
  {
    use_weights(pass, 0, behind(0));
    Span span(pass.ctx.tracer, "embed", "forward");
    ops::embedding(pass.ctx, embedding_->working, batch.tokens, x);
  }
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
  Span span(pass.ctx.tracer, "embed", "backward");
  ops::embedding_backward(pass.ctx, grad, batch.tokens, embedding_->grad);
  call(pass, &UnitHooks::gradients, 0);
}

void Model::evaluate(Pass& pass, const TokenBatch& batch) {
  pass.backward = false;
  Arena::Scope scope(pass.saved);
  const Dtype dtype = policy_.base().compute;
  const TokenGeometry t = geometry(batch);
  const Shape stream{t.tokens, config_.hidden_size};
  Tensor x = pass.saved.alloc(dtype, stream), delta;
  {
    use_weights(pass, 0, behind(0));
    Span span(pass.ctx.tracer, "embed", "forward");
    ops::embedding(pass.ctx, embedding_->working, batch.tokens, x);
  }
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
