#include "train/engine.h"

#include <cmath>

#include "core/trace.h"
#include "optim/adamw.h"
#include "optim/schedule.h"

namespace octet {
namespace {

GemmMath gemm_math(const std::string& s) { return s == "fixed" ? GemmMath::fixed : s == "exact" ? GemmMath::exact : GemmMath::blas; }

Tensor vector_view(const std::vector<int32_t>& v) {
  // Tensors are mutable views; operators only read their integer inputs.
  return {const_cast<int32_t*>(v.data()), Dtype::i32, {static_cast<int64_t>(v.size())}};
}

TokenBatch token_batch(const data::MicroBatch& b, bool document_mask) {
  return {b.seq_len, vector_view(b.tokens), vector_view(b.labels), vector_view(b.positions), document_mask ? vector_view(b.document_start) : Tensor{}};
}

}  // namespace

Engine::Engine(const RunConfig& config, Memory memory, const std::string& dump_modules) : config_(config), math_(gemm_math(config.run.cpu_gemm)), pool_(static_cast<int>(config.run.threads)) {
  quant_.set_history(config_.precision.amax_history_len.value_or(1024), config_.precision.amax_compute_algo == "most_recent");
  quant_.set_calibration(config_.precision.calibration_steps);
  quant_.set_health({config_.log.stats_interval, config_.log.stats_modules});
  model_ = std::make_unique<Model>(config_, quant_);
  plan(dump_modules);
  if (memory != Memory::plan_only) allocate(memory == Memory::poisoned);
}

void Engine::plan(const std::string& dump_modules) {
  Arena parameters, images, activations, scratch;
  model_->allocate_parameters(parameters);
  model_->allocate_images(images);
  Ctx ctx = context(scratch, 0);
  model_->refresh_weights(ctx, quant_);
  const int64_t tokens = config_.batch.micro * config_.data.seq_len;
  const auto ids = [&] { return Tensor{nullptr, Dtype::i32, {tokens}}; };
  const TokenBatch batch{config_.data.seq_len, ids(), ids(), ids(), config_.data.document_mask ? ids() : Tensor{}};
  Pass pass{ctx, quant_, activations};
  model_->train_micro_batch(pass, batch, 1.0f);
  if (!dump_modules.empty()) {
    Dump dump(dump_modules);
    pass.dump = &dump;
    model_->train_micro_batch(pass, batch, 1.0f);
    pass.dump = nullptr;
  }
  if (config_.eval.interval > 0) model_->evaluate(pass, batch);
  gradient_norm(ctx, model_->params());
  for (const auto& p : model_->params()) {
    plan_.master += p->master.bytes();
    plan_.gradients += p->grad.bytes();
    plan_.moments += p->exp_avg.bytes() + p->exp_avg_sq.bytes();
    if (p->working.dtype == Dtype::bf16) plan_.working += p->working.bytes();
  }
  plan_.parameter_arena = parameters.high_water_bytes();
  plan_.images = images.high_water_bytes();
  plan_.activations = activations.high_water_bytes();
  plan_.scratch = scratch.high_water_bytes();
  // Four 32-bit numbers a token (data/loader.h), for each step read ahead, the one in use and the one being filled.
  const int64_t per_step = config_.batch.global / config_.batch.micro, ahead = (config_.data.prefetch + per_step - 1) / per_step + 1;
  const int64_t sets = std::max<int64_t>(1, static_cast<int64_t>(config_.data.valid.size()));
  const int64_t validation = config_.eval.interval > 0 ? sets * config_.eval.samples : 0;
  plan_.batches = static_cast<size_t>((ahead * config_.batch.global + validation) * config_.data.seq_len) * 4 * sizeof(int32_t);
}

void Engine::allocate(bool poison) {
  parameters_ = Arena(plan_.parameter_arena);
  images_ = Arena(plan_.images);
  activations_ = Arena(plan_.activations, poison);
  scratch_ = Arena(plan_.scratch, poison);
  model_->allocate_parameters(parameters_);
  model_->allocate_images(images_);
  model_->initialize(config_.run.seed, config_.run.init_perturbation);
  weights_loaded();
}

Ctx Engine::context(Arena& scratch, int64_t step) {
  Ctx ctx(pool_, scratch, math_);
  ctx.seed = config_.run.seed;
  ctx.step = static_cast<uint64_t>(step);
  ctx.tracer = tracer_;
  return ctx;
}

void Engine::weights_loaded(int64_t next_step) {
  Ctx ctx = context(scratch_, next_step);
  quant_.begin_step(next_step);
  model_->refresh_weights(ctx, quant_);
}

StepResult Engine::step(const data::StepBatch& batch, int64_t step, Dump* dump) {
  Ctx ctx = context(scratch_, step);
  StepResult r;
  r.lr = learning_rate(config_.sched, config_.optim.lr, step, config_.run.steps);
  {
    Span span(tracer_, "zero gradients", "");
    model_->zero_gradients(ctx);
    model_->count_images(quant_);
  }
  const auto valid = static_cast<double>(batch.valid_tokens);
  Loss loss;
  Pass pass{ctx, quant_, activations_};
  pass.dump = dump;
  for (const data::MicroBatch& micro : batch.micro) {
    Span span(tracer_, "micro-batch", "");
    loss += model_->train_micro_batch(pass, token_batch(micro, config_.data.document_mask), valid > 0 ? static_cast<float>(1.0 / valid) : 0.0f);
    pass.first_row += static_cast<int64_t>(micro.tokens.size());
    ++pass.micro_batch;
  }
  r.loss = valid > 0 ? loss.cross_entropy / valid : 0.0;
  r.z_loss = valid > 0 ? loss.z / valid : 0.0;
  const GradientNorm norm = [&] {
    Span span(tracer_, "gradient norm", "");
    return gradient_norm(ctx, model_->params());
  }();
  r.grad_norm = norm.norm;
  r.nonfinite = quant_.nonfinite();
  if (dump) model_->dump_weights(*dump, quant_);

  r.skipped = !std::isfinite(r.loss) || !std::isfinite(r.grad_norm) || r.nonfinite > 0;
  if (r.skipped) {
    r.offender = quant_.first_nonfinite_site();
    if (r.offender.empty()) r.offender = norm.first_nonfinite.empty() ? "loss" : norm.first_nonfinite + ".grad";
  } else {
    Span span(tracer_, "optimizer", "");
    quant_.update_scales();
    adamw_update(ctx, model_->params(), config_.optim, r.lr, ++updates_, clip_factor(config_.optim.clip_norm, r.grad_norm));
  }
  Span span(tracer_, "quantize weights", "");
  if (quant_.health_due()) r.health = quant_.health();
  quant_.begin_step(step + 1);
  Ctx next = context(scratch_, step + 1);
  model_->refresh_images(next, quant_);
  return r;
}

double Engine::evaluate(const std::vector<data::MicroBatch>& batches) {
  Ctx ctx = context(scratch_, 0);
  Pass pass{ctx, quant_, activations_};
  pass.statistics = false;
  double loss = 0;
  int64_t valid = 0;
  for (const data::MicroBatch& b : batches) {
    Span span(tracer_, "micro-batch", "");
    loss += model_->evaluate(pass, token_batch(b, config_.data.document_mask)).cross_entropy;
    valid += b.valid_tokens;
  }
  return valid ? loss / static_cast<double>(valid) : 0.0;
}

}  // namespace octet
