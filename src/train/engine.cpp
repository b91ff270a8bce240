#include "train/engine.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "core/trace.h"
#include "optim/adamw.h"
#include "ops/reduce.h"
#include "optim/schedule.h"
#include "recipe/hardware.h"

namespace octet {
namespace {

GemmMath gemm_math(const std::string& s) { return s == "fixed" ? GemmMath::fixed : s == "exact" ? GemmMath::exact : GemmMath::blas; }

Tensor vector_view(const std::vector<int32_t>& v) {
  // Tensors are mutable views; operators only read their integer inputs.
  return {const_cast<int32_t*>(v.data()), Dtype::i32, {static_cast<int64_t>(v.size())}};
}

Machine::Options machine_options(const RunConfig& c, bool plan_only) {
  return {device_kind(c.run.device), static_cast<int>(c.run.threads), gemm_math(c.run.cpu_gemm), plan_only};
}

Tensor bytes_of(void* data, size_t bytes) { return {data, Dtype::u8, {static_cast<int64_t>(bytes)}}; }

}  // namespace

Engine::Engine(const RunConfig& config, Memory memory, const std::string& dump_modules) : config_(config), machine_(machine_options(config, memory == Memory::plan_only)) {
  if (config_.run.shadow && machine_.kind() == DeviceKind::cpu) {
    throw Error(ExitCode::config, "true, but this run computes on a CPU, which is what a GPU is compared with", "run.shadow", "set it to false, or run.device to \"cuda\"");
  }
  if (config_.run.shadow) shadow_ = std::make_unique<Shadow>();
  quant_.set_history(config_.precision.amax_history_len.value_or(1024), config_.precision.amax_compute_algo == "most_recent");
  quant_.set_calibration(config_.precision.calibration_steps);
  quant_.set_health({config_.log.stats_interval, config_.log.stats_modules});
  model_ = std::make_unique<Model>(config_, quant_, machine_.image_layout());
  if (machine_.kind() == DeviceKind::cuda) check_recipes(model_->precision(), model_->module_paths(), machine_.capability(), config_.precision.emulate);
  plan(dump_modules);
  if (memory != Memory::plan_only) allocate(memory == Memory::poisoned);
}

void Engine::plan(const std::string& dump_modules) {
  Arena parameters, offloaded, images, activations, scratch, state;
  model_->allocate_parameters(parameters, offloads() ? offloaded : parameters);
  model_->allocate_images(images);
  allocate_state(state);
  Ctx ctx = context(scratch);
  model_->refresh_weights(ctx, quant_);
  const int64_t tokens = config_.batch.micro * config_.data.seq_len;
  const auto ids = [&] { return Tensor{nullptr, Dtype::i32, {tokens}}; };
  const TokenBatch batch{config_.data.seq_len, ids(), ids(), ids(), config_.data.document_mask ? ids() : Tensor{}};
  Pass pass{ctx, quant_, activations};
  model_->train_micro_batch(pass, batch, nullptr);
  if (!dump_modules.empty()) {
    Dump dump(dump_modules, machine_);
    pass.dump = &dump;
    model_->train_micro_batch(pass, batch, nullptr);
    pass.dump = nullptr;
  }
  if (config_.eval.interval > 0) model_->evaluate(pass, batch);
  update(ctx, 0, 0);
  for (const auto& p : model_->params()) {
    plan_.master += p->master.shape.rank() != 0 ? p->master.bytes() : p->remainder.bytes();
    plan_.gradients += p->grad.bytes();
    plan_.moments += p->exp_avg.bytes() + p->exp_avg_sq.bytes();
    if (p->working.dtype == Dtype::bf16) plan_.working += p->working.bytes();
  }
  plan_.device = machine_.kind();
  plan_.parameter_arena = parameters.high_water_bytes();
  plan_.offloaded = offloaded.high_water_bytes();
  plan_.images = images.high_water_bytes();
  plan_.activations = activations.high_water_bytes();
  plan_.scratch = scratch.high_water_bytes();
  plan_.state = state.high_water_bytes();
  plan_.overhead = machine_.overhead_bytes();
  // Four 32-bit numbers a token (data/loader.h), for each step read ahead, the one in use and the one being filled.
  const int64_t per_step = config_.batch.global / config_.batch.micro, ahead = (config_.data.prefetch + per_step - 1) / per_step + 1;
  const int64_t sets = std::max<int64_t>(1, static_cast<int64_t>(config_.data.valid.size()));
  const int64_t validation = config_.eval.interval > 0 ? sets * config_.eval.samples : 0;
  plan_.batches = static_cast<size_t>((ahead * config_.batch.global + validation) * config_.data.seq_len) * 4 * sizeof(int32_t);
}

void Engine::allocate_state(Arena& arena) {
  const auto parameters = static_cast<int64_t>(model_->params().size());
  // One block, so that one copy brings it all to the host.
  double* block = arena.alloc_array<double>(2 + parameters + static_cast<int64_t>(sizeof(StepOutcome) + sizeof(double) - 1) / static_cast<int64_t>(sizeof(double)));
  work_ = arena.alloc_array<Work>(1);
  if (block) scalars_ = {block, block + 2, reinterpret_cast<StepOutcome*>(block + 2 + parameters)};
  if (machine_.kind() == DeviceKind::cpu) return;
  quant_.place(arena);
  for (Tensor& t : ids_) t = arena.alloc(Dtype::i32, {config_.batch.micro * config_.data.seq_len});
}

void Engine::allocate(bool poison) {
  parameters_ = machine_.arena(plan_.parameter_arena);
  if (offloads()) offloaded_ = machine_.host_arena(plan_.offloaded);
  images_ = machine_.arena(plan_.images);
  activations_ = machine_.arena(plan_.activations, poison);
  scratch_ = machine_.arena(plan_.scratch, poison);
  state_ = machine_.arena(plan_.state);
  model_->allocate_parameters(parameters_, offloads() ? offloaded_ : parameters_);
  model_->allocate_images(images_);
  allocate_state(state_);
  Ctx ctx = context(scratch_);
  model_->clear_states(ctx);
  model_->initialize(machine_, config_.run.seed, config_.run.init_perturbation);
  weights_loaded();
}

Ctx Engine::context(Arena& scratch) {
  Ctx ctx = machine_.context(scratch);
  ctx.seed = config_.run.seed;
  ctx.key = work_ ? &work_->key : nullptr;
  ctx.tracer = tracer_;
  return ctx;
}

Ctx Engine::shadowed_context(int64_t step) {
  Ctx ctx = context(scratch_);
  if (!shadow_) return ctx;
  shadow_->begin(step > 0 ? fmt::format("step {}", step) : "validation", step);
  ctx.shadow = shadow_.get();
  if (!ctx.tracer) ctx.tracer = &shadow_->spans();
  return ctx;
}

void Engine::set_work(StepKey key, float grad_scale) {
  const Work work{key, grad_scale};
  machine_.copy_in(work_, &work, sizeof work);
}

void Engine::push_quant_state() {
  for (const QuantRegistry::Mirror& m : quant_.to_device()) machine_.copy_in(m.device, m.host, m.bytes);
}

void Engine::weights_loaded(int64_t next_step) {
  Ctx ctx = context(scratch_);
  quant_.begin_step(next_step);
  push_quant_state();
  set_work({static_cast<uint64_t>(next_step), 0});
  model_->refresh_weights(ctx, quant_);
}

TokenBatch Engine::upload(const data::MicroBatch& given) {
  // A GPU takes whole micro-batches only: the last one of a validation set may be shorter, and would make products that nothing has planned. Rows without loss
  // fill it up.
  data::MicroBatch filled;
  const auto whole = static_cast<size_t>(config_.batch.micro * config_.data.seq_len);
  const bool is_short = machine_.kind() == DeviceKind::cuda && given.tokens.size() < whole;
  if (is_short) {
    filled = given;
    filled.tokens.resize(whole, 0);
    filled.labels.resize(whole, -1);
    filled.document_start.resize(whole, 0);
    for (size_t i = filled.positions.size(); i < whole; ++i) filled.positions.push_back(static_cast<int32_t>(i % static_cast<size_t>(given.seq_len)));
  }
  const data::MicroBatch& b = is_short ? filled : given;
  const std::vector<int32_t>* host[4] = {&b.tokens, &b.labels, &b.positions, &b.document_start};
  Tensor t[4];
  for (size_t i = 0; i < 4; ++i) {
    t[i] = vector_view(*host[i]);
    if (machine_.kind() == DeviceKind::cpu) continue;
    machine_.copy_in(ids_[i].data, t[i].data, t[i].bytes());
    t[i].data = ids_[i].data;
  }
  return {b.seq_len, t[0], t[1], t[2], config_.data.document_mask ? t[3] : Tensor{}};
}

ProductTiming Engine::prepare_products(const ProductChoices& choices) {
  if (machine_.kind() == DeviceKind::cpu) return {};
  machine_.choose_products(choices);
  data::MicroBatch batch;
  batch.seq_len = config_.data.seq_len;
  for (std::vector<int32_t>* v : {&batch.tokens, &batch.labels, &batch.positions, &batch.document_start}) v->assign(static_cast<size_t>(config_.batch.micro * config_.data.seq_len), 0);
  Ctx ctx = context(scratch_);
  Pass pass = pass_over(ctx);
  pass.statistics = false;
  const TokenBatch tokens = upload(batch);
  set_work({}, 1.0f);
  // What they compute goes nowhere: every step begins by clearing gradients and sums.
  model_->train_micro_batch(pass, tokens, &work_->grad_scale);
  if (config_.batch.global > config_.batch.micro) {   // later micro-batches add to the weight gradients: other products
    pass.micro_batch = 1;
    model_->train_micro_batch(pass, tokens, &work_->grad_scale);
  }
  if (config_.eval.interval > 0) model_->evaluate(pass, tokens);
  if (config_.run.gemm_choice != "timed") return {};
  Arena& larger = activations_.capacity_bytes() > scratch_.capacity_bytes() ? activations_ : scratch_;
  Arena::Scope scope(larger);
  const size_t bytes = larger.capacity_bytes();
  return machine_.tune_products(larger.alloc(Dtype::u8, {static_cast<int64_t>(bytes)}).data, bytes);
}

void Engine::update(Ctx& ctx, double lr, int64_t step) {
  {
    Span span(ctx.tracer, "gradient norm", "");
    gradient_squares(ctx, model_->params(), scalars_.squares);
    const QuantTarget first = quant_.sites() > 0 ? quant_.target(0) : QuantTarget{};
    ops::decide_step(ctx, {scalars_.loss_sums, scalars_.squares, static_cast<int64_t>(model_->params().size()), first.nonfinite, quant_.sites(), config_.optim.clip_norm}, scalars_.outcome);
  }
  Span span(ctx.tracer, "optimizer", "");
  adamw_update(ctx, model_->params(), config_.optim, lr, updates_ + 1, scalars_.outcome ? &scalars_.outcome->control : nullptr,
               config_.optim.fused_images ? model_->early_images(quant_, step + 1) : WeightImages());
}

Engine::StepScalars Engine::read_scalars() {
  StepScalars s{{0, 0}, std::vector<double>(model_->params().size()), {}};
  const size_t doubles = 2 + s.squares.size();
  std::vector<std::byte> block(doubles * sizeof(double) + sizeof(StepOutcome));
  machine_.copy_out(block.data(), scalars_.loss_sums, block.size());
  std::memcpy(s.loss_sums, block.data(), sizeof s.loss_sums);
  std::memcpy(s.squares.data(), block.data() + sizeof s.loss_sums, s.squares.size() * sizeof(double));
  std::memcpy(&s.outcome, block.data() + doubles * sizeof(double), sizeof s.outcome);
  return s;
}

std::string Engine::offender(const StepScalars& s) const {
  if (std::string site = quant_.first_nonfinite_site(); !site.empty()) return site;
  // Gradients flow from the last parameter to the first: the last one listed was hit first.
  for (size_t i = s.squares.size(); i-- > 0;) {
    if (!std::isfinite(s.squares[i])) return model_->params()[i]->name + ".grad";
  }
  return "loss";
}

void Engine::train_micro_batch(Pass& pass, const TokenBatch& tokens) {
  const auto work = [&] { model_->train_micro_batch(pass, tokens, &work_->grad_scale); };
  // Spans, dumps and shadows are the host's, between operators.
  if (machine_.kind() == DeviceKind::cpu || !config_.run.cuda_graphs || tracer_ || pass.dump || shadow_) return work();
  const auto [at, is_new] = recorded_.try_emplace({quant_.work(), pass.micro_batch == 0, tokens.seq_len});
  RecordedBatch& batch = at->second;
  if (is_new) return work();
  if (batch.recording) {
    quant_.add(batch.counts);
  } else {
    const QuantRegistry::Counts before = quant_.counts();
    batch.recording = machine_.record(work);
    ++recordings_;
    batch.counts = quant_.counted_since(before);
  }
  machine_.run(batch.recording);
}

StepResult Engine::step(const data::StepBatch& batch, int64_t step, Dump* dump) {
  Ctx ctx = shadowed_context(step + 1);
  StepResult r;
  r.lr = learning_rate(config_.sched, config_.optim.lr, step, config_.run.steps);
  {
    Span span(tracer_, "zero gradients", "");
    model_->zero_gradients(ctx);
    ops::zero(ctx, bytes_of(scalars_.loss_sums, (2 + model_->params().size()) * sizeof(double)));
    model_->count_images(quant_);
  }
  const auto valid = static_cast<double>(batch.valid_tokens);
  const float grad_scale = valid > 0 ? static_cast<float>(1.0 / valid) : 0.0f;
  StepKey key{static_cast<uint64_t>(step), 0};
  Pass pass = pass_over(ctx);
  pass.dump = dump;
  for (const data::MicroBatch& micro : batch.micro) {
    Span span(tracer_, "micro-batch", "");
    set_work(key, grad_scale);
    train_micro_batch(pass, upload(micro));
    key.first_row += static_cast<int64_t>(micro.tokens.size());
    ++pass.micro_batch;
  }
  if (dump) model_->dump_weights(*dump, quant_);
  update(ctx, r.lr, step);

  const StepScalars s = [&] {
    Span span(machine_.kind() == DeviceKind::cuda ? tracer_ : nullptr, "wait for the device", "");
    return read_scalars();
  }();
  for (const QuantRegistry::Mirror& m : quant_.from_device()) machine_.copy_out(m.host, m.device, m.bytes);
  r.loss = valid > 0 ? s.loss_sums[0] / valid : 0.0;
  r.z_loss = valid > 0 ? s.loss_sums[1] / valid : 0.0;
  r.grad_norm = s.outcome.grad_norm;
  r.nonfinite = s.outcome.nonfinite;
  r.skipped = s.outcome.control.skip != 0;
  if (r.skipped) {
    r.offender = offender(s);
  } else {
    quant_.update_scales();
    ++updates_;
  }
  Span span(tracer_, "quantize weights", "");
  if (quant_.health_due()) r.health = quant_.health();
  quant_.begin_step(step + 1);
  push_quant_state();
  set_work({static_cast<uint64_t>(step) + 1, 0});
  model_->refresh_images(ctx, quant_, config_.optim.fused_images);
  return r;
}

double Engine::evaluate(const std::vector<data::MicroBatch>& batches) {
  Ctx ctx = shadowed_context(0);
  Pass pass = pass_over(ctx);
  pass.statistics = false;
  set_work({});
  ops::zero(ctx, bytes_of(scalars_.loss_sums, 2 * sizeof(double)));
  int64_t valid = 0;
  for (const data::MicroBatch& b : batches) {
    Span span(tracer_, "micro-batch", "");
    model_->evaluate(pass, upload(b));
    valid += b.valid_tokens;
  }
  double loss = 0;
  machine_.copy_out(&loss, scalars_.loss_sums, sizeof loss);
  return valid ? loss / static_cast<double>(valid) : 0.0;
}

}  // namespace octet
