#include "train/engine.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "core/trace.h"
#include "optim/adamw.h"
#include "ops/reduce.h"
#include "optim/schedule.h"
#include "recipe/hardware.h"
#include "train/device_groups.h"
#include "train/product_choices.h"

namespace octet {
namespace {

GemmMath gemm_math(const std::string& s) { return s == "fixed" ? GemmMath::fixed : s == "exact" ? GemmMath::exact : GemmMath::blas; }

Tensor vector_view(const std::vector<int32_t>& v) {
  // Tensors are mutable views; operators only read their integer inputs.
  return {const_cast<int32_t*>(v.data()), Dtype::i32, {static_cast<int64_t>(v.size())}};
}

Machine::Options machine_options(const RunConfig& c, bool plan_only, const Mesh* mesh) {
  return {device_kind(c.run.device), static_cast<int>(c.run.threads), gemm_math(c.run.cpu_gemm), plan_only, mesh ? mesh->local_rank() : 0,
          attention_kernels(c.run.attention)};
}

Tensor bytes_of(void* data, size_t bytes) { return {data, Dtype::u8, {static_cast<int64_t>(bytes)}}; }

}  // namespace

size_t MemoryPlan::lent() const {
  size_t bytes = 0;
  for (const size_t b : lent_grads) bytes += b;
  for (const size_t b : lent_working) bytes += b;
  return bytes;
}

Engine::Engine(const RunConfig& config, Memory memory, const std::string& dump_modules, const Mesh* mesh)
    : config_(config), mesh_(mesh ? mesh : &alone_), machine_(machine_options(config, memory == Memory::plan_only, mesh)) {
  if (config_.run.shadow && machine_.kind() == DeviceKind::cpu) {
    throw Error(ExitCode::config, "true, but this run computes on a CPU, which is what a GPU is compared with", "run.shadow", "set it to false, or run.device to \"cuda\"");
  }
  if (config_.run.shadow) shadow_ = std::make_unique<Shadow>();
  quant_.set_history(config_.precision.amax_history_len.value_or(1024), config_.precision.amax_compute_algo == "most_recent");
  quant_.set_calibration(config_.precision.calibration_steps);
  quant_.set_health({config_.log.stats_interval, config_.log.stats_modules});
  quant_.set_ranks(mesh_->layout().dp(), mesh_->layout().dp_rank() == 0, mesh_->layout().replica == 0);
  model_ = std::make_unique<Model>(config_, quant_, machine_.image_layout(), TensorParallel(*mesh_, config_.parallel));
  if (machine_.kind() == DeviceKind::cuda) check_recipes(model_->precision(), model_->module_paths(), machine_.capability(), config_.precision.emulate);
  machine_.check_attention(config_.model.head_dim, model_->precision().base().compute);
  dp_ = std::make_unique<DataParallel>(*mesh_, config_.parallel, *model_, quant_);
  plan(dump_modules);
  if (memory != Memory::plan_only) allocate(memory == Memory::poisoned);
}

// Operations under way write to the arenas: they end first.
Engine::~Engine() { dp_.reset(); }

void Engine::plan(const std::string& dump_modules) {
  Arena parameters, offloaded, images, activations, scratch, state;
  Model::Slots lent_grads, lent_working;
  allocate_parameters(parameters, offloaded, images, lent_grads, lent_working);
  allocate_state(state);
  Ctx ctx = context(scratch);
  model_->refresh_working(ctx);
  model_->refresh_images(ctx, quant_, false);
  const int64_t tokens = config_.batch.micro * config_.data.seq_len;
  const auto ids = [&] { return Tensor{nullptr, Dtype::i32, {tokens}}; };
  const TokenBatch batch{config_.data.seq_len, ids(), ids(), ids(), config_.data.document_mask ? ids() : Tensor{}};
  Pass pass{ctx, quant_, activations};
  pass.separate_gradients = dp_->lends_gradients();
  model_->train_micro_batch(pass, batch, nullptr);
  if (!dump_modules.empty()) {
    Dump dump(dump_modules, machine_);
    pass.dump = &dump;
    model_->train_micro_batch(pass, batch, nullptr);
    pass.dump = nullptr;
  }
  if (config_.eval.interval > 0) model_->evaluate(pass, batch);
  dp_->plan({ctx, ctx, quant_});
  update(ctx, 0, 0);
  for (const auto& p : model_->params()) {
    plan_.master += p->master.shape.rank() != 0 ? p->master.bytes() : p->remainder.bytes();
    plan_.gradients += (dp_->lends_gradients() ? p->own_grad : p->grad).bytes();
    plan_.moments += p->exp_avg.bytes() + p->exp_avg_sq.bytes();
    plan_.working += (dp_->lends_weights() || p->by_codes ? p->own_working : p->working).bytes() - (p->working.dtype == Dtype::f32 ? p->master.bytes() : 0);
  }
  for (size_t slot = 0; slot < unit_slots; ++slot) {
    plan_.lent_grads[slot] = lent_grads[slot].high_water_bytes();
    plan_.lent_working[slot] = lent_working[slot].high_water_bytes();
  }
  plan_.device = machine_.kind();
  plan_.parameter_arena = parameters.high_water_bytes();
  plan_.offloaded = offloaded.high_water_bytes();
  plan_.images = images.high_water_bytes();
  plan_.activations = activations.high_water_bytes();
  plan_.scratch = scratch.high_water_bytes();
  plan_.state = state.high_water_bytes();
  plan_.overhead = machine_.overhead_bytes();
  if (machine_.kind() == DeviceKind::cpu) plan_.communication = mesh_->scratch_bytes();
  else if (uses_nccl(config_)) plan_.nccl = nccl_bytes(mesh_->device_groups());
  // Four 32-bit numbers a token (data/loader.h), for each step read ahead, the one in use and the one being filled.
  const int64_t own_global = config_.batch.global / mesh_->layout().dp();
  const int64_t per_step = own_global / config_.batch.micro, ahead = (config_.data.prefetch + per_step - 1) / per_step + 1;
  const int64_t sets = std::max<int64_t>(1, static_cast<int64_t>(config_.data.valid.size()));
  const int64_t validation = config_.eval.interval > 0 ? sets * config_.eval.samples : 0;
  plan_.batches = static_cast<size_t>((ahead * own_global + validation) * config_.data.seq_len) * 4 * sizeof(int32_t);
}

void Engine::allocate_parameters(Arena& parameters, Arena& offloaded, Arena& images, Model::Slots& grads, Model::Slots& working) {
  model_->allocate({parameters, offloads() ? offloaded : parameters, images, dp_->lends_gradients() ? &grads : nullptr, dp_->lends_weights() ? &working : nullptr});
  dp_->allocate(parameters);
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
  for (size_t slot = 0; slot < unit_slots; ++slot) {
    if (dp_->lends_gradients()) lent_grads_[slot] = machine_.arena(plan_.lent_grads[slot]);
    if (dp_->lends_weights()) lent_working_[slot] = machine_.arena(plan_.lent_working[slot]);
  }
  allocate_parameters(parameters_, offloaded_, images_, lent_grads_, lent_working_);
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

void Engine::set_work(StepKey key, float grad_scale, int64_t weights_step) {
  const Work work{key, grad_scale, {static_cast<uint64_t>(weights_step), 0}};
  machine_.copy_in(work_, &work, sizeof work);
}

Ctx Engine::weight_context(const Ctx& ctx) const {
  Ctx weights = ctx;
  weights.key = work_ ? &work_->weights : nullptr;
  return weights;
}

void Engine::push_quant_state() {
  for (const QuantRegistry::Mirror& m : quant_.to_device()) machine_.copy_in(m.device, m.host, m.bytes);
}

void Engine::weights_loaded(int64_t next_step) {
  Ctx ctx = context(scratch_);
  quant_.begin_step(next_step);
  push_quant_state();
  set_work({static_cast<uint64_t>(next_step), 0}, 0, next_step);
  model_->refresh_working(ctx);
  if (dp_->alone()) model_->refresh_images(ctx, quant_, false);
  Ctx weights = weight_context(ctx);
  dp_->weights_changed({ctx, weights, quant_}, false);
}

void Engine::join_ranks() {
  Ctx ctx = context(scratch_), weights = weight_context(ctx);
  if (dp_->alone()) return;
  dp_->prove({ctx, weights, quant_}, machine_);
  weights_loaded();   // the proof's images left maxima and counts behind
}

TokenBatch Engine::upload(const data::MicroBatch& given) {
  // A GPU takes whole micro-batches only: the last one of a validation set may be shorter, and would make products that nothing has planned. Rows without loss
  // fill it up.
  const auto whole = static_cast<size_t>(config_.batch.micro * config_.data.seq_len);
  // So do gathered codes, whose blocks of tokens would be cut elsewhere.
  const bool is_short = (machine_.kind() == DeviceKind::cuda || config_.parallel.fp8_activation_gather) && given.tokens.size() < whole;
  if (is_short) {
    // With its own samples again, so that the tensor's largest magnitude is the same.
    filled_ = given;
    const size_t there = given.tokens.size();
    for (std::vector<int32_t>* v : {&filled_.tokens, &filled_.positions, &filled_.document_start}) {
      for (size_t i = there; i < whole; ++i) v->push_back((*v)[i - there]);
    }
    filled_.labels.resize(whole, -1);
  }
  const data::MicroBatch& b = is_short ? filled_ : given;
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
  set_work({}, 1.0f, 0);
  // What they compute goes nowhere: every step begins by clearing gradients and sums.
  model_->train_micro_batch(pass, tokens, &work_->grad_scale);
  pass.separate_gradients = dp_->lends_gradients();
  const int64_t micro_batches = config_.batch.global / config_.batch.micro / mesh_->layout().dp();
  if (micro_batches > 1 && !pass.separate_gradients) {   // later micro-batches add to the weight gradients: other products
    pass.micro_batch = 1;
    model_->train_micro_batch(pass, tokens, &work_->grad_scale);
  }
  if (config_.eval.interval > 0) model_->evaluate(pass, tokens);
  if (config_.run.gemm_choice != "timed") return {};
  Arena& larger = activations_.capacity_bytes() > scratch_.capacity_bytes() ? activations_ : scratch_;
  Arena::Scope scope(larger);
  const size_t bytes = larger.capacity_bytes();
  const ProductTiming timing = machine_.tune_products(larger.alloc(Dtype::u8, {static_cast<int64_t>(bytes)}).data, bytes);
  if (mesh_->all()) machine_.choose_products(agreed_choices(*mesh_->all(), machine_));
  return timing;
}

void Engine::update(Ctx& ctx, double lr, int64_t step) {
  {
    Span span(ctx.tracer, "gradient norm", "");
    gradient_squares(ctx, model_->params(), scalars_.squares);
    if (!ctx.planning() && !dp_->alone()) dp_->sum_scalars(scalars_.loss_sums, scalars_.squares, quant_);
    ops::decide_step(ctx, {scalars_.loss_sums, scalars_.squares, static_cast<int64_t>(model_->params().size()), quant_.sites() > 0 ? static_cast<const int64_t*>(quant_.staged_nonfinite().data) : nullptr, quant_.sites(), config_.optim.clip_norm}, scalars_.outcome);
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
  if (machine_.kind() == DeviceKind::cpu || !config_.run.cuda_graphs || tracer_ || pass.dump || pass.hooks || shadow_) return work();
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
  Ctx weights = weight_context(ctx);
  dp_->begin_step();
  {
    Span span(tracer_, "zero gradients", "");
    if (!dp_->lends_gradients()) model_->zero_gradients(ctx);
    ops::zero(ctx, bytes_of(scalars_.loss_sums, (2 + model_->params().size()) * sizeof(double)));
    model_->count_images(quant_);
  }
  r.valid_tokens = dp_->alone() ? batch.valid_tokens : sum_of(*mesh_->dp_host(), batch.valid_tokens);
  const auto valid = static_cast<double>(r.valid_tokens);
  const float grad_scale = valid > 0 ? static_cast<float>(1.0 / valid) : 0.0f;
  Pass pass = pass_over(ctx);
  pass.dump = dump;
  pass.separate_gradients = dp_->lends_gradients();
  const Layout& layout = mesh_->layout();
  for (const data::MicroBatch& micro : batch.micro) {
    Span span(tracer_, "micro-batch", "");
    // The ranks take the step's micro-batches in turn.
    set_work({static_cast<uint64_t>(step), (pass.micro_batch * layout.dp() + layout.dp_rank()) * static_cast<int64_t>(micro.tokens.size())}, grad_scale, step);
    const UnitHooks hooks = dp_->training_hooks({ctx, weights, quant_}, &micro == &batch.micro.back());
    pass.hooks = dp_->alone() ? nullptr : &hooks;
    train_micro_batch(pass, upload(micro));
    ++pass.micro_batch;
  }
  dp_->finish_gradients(ctx);
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
  if (quant_.health_due()) {
    merge_statistics();
    r.health = quant_.health();
  }
  quant_.begin_step(step + 1);
  push_quant_state();
  set_work({static_cast<uint64_t>(step) + 1, 0}, 0, step + 1);
  if (dp_->alone()) model_->refresh_images(ctx, quant_, config_.optim.fused_images);
  dp_->weights_changed({ctx, weights, quant_}, true);
  return r;
}

// In the order of the ranks, as micro-batches of one rank merge in theirs.
void Engine::merge_statistics() {
  if (dp_->alone()) return;
  std::vector<ImageHealth>& own = quant_.statistics();
  const std::string mine(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(ImageHealth));
  std::fill(own.begin(), own.end(), ImageHealth{});
  for (const std::string& theirs : exchange(*mesh_->all(), mine)) {
    for (size_t i = 0; i < own.size(); ++i) {
      ImageHealth part;
      std::memcpy(&part, theirs.data() + i * sizeof part, sizeof part);
      own[i].merge(part);
    }
  }
}

double Engine::evaluate(const std::vector<data::MicroBatch>& batches) {
  Ctx ctx = shadowed_context(0), weights = weight_context(ctx);
  Pass pass = pass_over(ctx);
  pass.statistics = false;
  set_work({}, 0, quant_.step());
  ops::zero(ctx, bytes_of(scalars_.loss_sums, 2 * sizeof(double)));
  const UnitHooks hooks = dp_->evaluation_hooks({ctx, weights, quant_});
  pass.hooks = dp_->alone() ? nullptr : &hooks;
  // Every rank makes as many passes as the others, for weights come and go with them: a rank whose turn comes behind the last batch repeats one without its loss.
  const auto dp = static_cast<size_t>(mesh_->layout().dp()), own = static_cast<size_t>(mesh_->layout().dp_rank());
  int64_t valid = 0;
  for (const data::MicroBatch& b : batches) valid += b.valid_tokens;
  for (size_t turn = 0; turn < batches.size(); turn += dp) {
    Span span(tracer_, "micro-batch", "");
    if (turn + own < batches.size()) {
      model_->evaluate(pass, upload(batches[turn + own]));
      continue;
    }
    data::MicroBatch silent = batches.front();
    std::fill(silent.labels.begin(), silent.labels.end(), -1);
    model_->evaluate(pass, upload(silent));
  }
  for (Comm* group : {mesh_->shards(), mesh_->replicas()}) {
    if (group) group->wait(group->all_reduce({scalars_.loss_sums, Dtype::f64, {2}}, Reduce::sum));
  }
  double loss = 0;
  machine_.copy_out(&loss, scalars_.loss_sums, sizeof loss);
  return valid ? loss / static_cast<double>(valid) : 0.0;
}

}  // namespace octet
