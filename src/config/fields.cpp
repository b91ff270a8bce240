#include "config/fields.h"

#include "config/field_table.h"

namespace octet {
namespace {

using config_detail::Table;

// What a resumed run may change (fields.h).
constexpr OnResume kFree = OnResume::free, kWarn = OnResume::warn, kForbidden = OnResume::forbidden, kFixed = OnResume::fixed;

const std::vector<std::string>& recipes() {
  static const std::vector<std::string> names = {"fp32",     "bf16",   "delayed", "tensorwise", "static", "rowwise", "rowwise_with_gw_hp",
                                                 "blockwise", "mxfp8", "mxfp6",   "nvfp4",      "custom"};
  return names;
}

const std::vector<std::string>& token_formats() {
  static const std::vector<std::string> names = {"auto", "megatron", "llmc", "datatrove", "raw_u16", "raw_u32"};
  return names;
}

template <class S>
std::vector<FieldInfo> infos(const std::vector<Field<S>>& fields) {
  return {fields.begin(), fields.end()};
}

void add_model(Table<RunConfig>& t) {
  t.add(kFixed, OCTET_FIELD(model.vocab_size), "number of token ids, without padding").at_least(2).at_most(1 << 24).required("257").flag("--vocab-size");
  t.add(kFixed, OCTET_FIELD(model.hidden_size), "width of the residual stream").at_least(1).at_most(1 << 17).required("128").flag("--hidden-size");
  t.add(kFixed, OCTET_FIELD(model.intermediate_size), "width of the SwiGLU layer").at_least(1).at_most(1 << 20).required("384").flag("--ffn-hidden-size");
  t.add(kFixed, OCTET_FIELD(model.num_hidden_layers), "number of transformer layers").at_least(1).at_most(4096).required("4").flag("--num-layers");
  t.add(kFixed, OCTET_FIELD(model.num_attention_heads), "number of query heads").at_least(1).at_most(4096).required("4").flag("--num-attention-heads");
  t.add(kFixed, OCTET_FIELD(model.num_key_value_heads), "number of key and value heads (grouped-query attention)")
      .at_least(0).at_most(4096).derived("as num_attention_heads").flag("--num-query-groups");
  t.add(kFixed, OCTET_FIELD(model.head_dim), "width of one head")
      .at_least(0)
      .at_most(4096)
      .derived("hidden_size / num_attention_heads")
      .flag("--kv-channels");
  t.add(kWarn, OCTET_FIELD(model.max_position_embeddings), "longest sequence the model is meant for; 0: data.seq_len")
      .at_least(0).at_most(1 << 30).flag("--max-position-embeddings").units();
  t.add(kForbidden, OCTET_FIELD(model.rope_theta), "base of the rotary position embedding").at_least(1).flag("--rotary-base");
  t.add(kForbidden, OCTET_FIELD(model.rope_scaling.rope_type), "scaling of the rotary frequencies").one_of({"default", "llama3"});
  t.add(kForbidden, OCTET_FIELD(model.rope_scaling.factor), "llama3: low frequencies are divided by it").at_least(1);
  t.add(kForbidden, OCTET_FIELD(model.rope_scaling.low_freq_factor), "llama3: end of the scaled band").above(0);
  t.add(kForbidden, OCTET_FIELD(model.rope_scaling.high_freq_factor), "llama3: start of the untouched band").above(0);
  t.add(kForbidden, OCTET_FIELD(model.rope_scaling.original_max_position_embeddings), "llama3: context length before scaling").at_least(1).at_most(1 << 30);
  t.add(kForbidden, OCTET_FIELD(model.partial_rotary_factor), "share of head_dim that is rotated, the first dimensions")
      .above(0)
      .at_most(1)
      .flag("--rotary-percent");
  t.add(kForbidden, OCTET_FIELD(model.rms_norm_eps), "epsilon of RMSNorm").above(0).below(1).flag("--norm-epsilon");
  t.add(kFixed, OCTET_FIELD(model.attention_bias), "bias on q, k and v (Qwen2.5)").flag_switch("--add-qkv-bias", true);
  t.add(kFixed, OCTET_FIELD(model.use_qk_norm), "RMSNorm over each head of q and k (Qwen3)").flag_switch("--qk-layernorm", true);
  t.add(kFixed, OCTET_FIELD(model.tie_word_embeddings), "one matrix serves embedding and head").flag_switch("--untie-embeddings-and-output-weights", false);
  t.add(kForbidden, OCTET_FIELD(model.initializer_range), "standard deviation of the initial weights").at_least(0).at_most(10).flag("--init-method-std");
  t.add(kForbidden, OCTET_FIELD(model.init_scale_output), "output projections start 1/sqrt(2 layers) times smaller");
  t.add(kForbidden, OCTET_FIELD(model.vocab_pad_multiple), "embedding and head rows are padded to a multiple of it")
      .at_least(1).at_most(65536).flag("--make-vocab-size-divisible-by");
}

void add_data(Table<RunConfig>& t) {
  t.add(kForbidden, OCTET_FIELD(data.train), "training text: PREFIX of PREFIX.idx and PREFIX.bin, made by `octet data build`")
      .required("[{\"path\": \"data/text\"}]").of(infos(data_source_fields())).flag_values("--data-path");
  t.add(kWarn, OCTET_FIELD(data.valid), "named validation sets; none: the valid share of data.train").of(infos(valid_source_fields()));
  t.add(kForbidden, OCTET_FIELD(data.blend_cache), "DIR/HASH-BlendedDataset-train of a Megatron run, whose blend order is taken over");
  t.add(kForbidden, OCTET_FIELD(data.split), "train,valid,test shares of the text, in file order").flag("--split");
  t.add(kForbidden, OCTET_FIELD(data.seq_len), "tokens in a sample").at_least(1).at_most(1 << 22).required("256").flag("--seq-length").units();
  t.add(kWarn, OCTET_FIELD(data.eod_id), "token id that ends a document").at_least(0).at_most(1 << 24);
  t.add(kWarn, OCTET_FIELD(data.eod_mask_loss), "no loss where the input token ends a document").flag_switch("--eod-mask-loss", true);
  t.add(kWarn, OCTET_FIELD(data.document_mask), "attention stays within a document").flag_switch("--reset-attention-mask", true);
  t.add(kWarn, OCTET_FIELD(data.reset_position_ids), "positions restart after the end of a document").flag_switch("--reset-position-ids", true);
  t.add(kForbidden, OCTET_FIELD(data.seed), "seed of the sample order").at_least(0).at_most(4294967295.0).derived("run.seed");
  t.add(kFree, OCTET_FIELD(data.prefetch), "micro-batches read ahead").at_least(0).at_most(4096);
  t.add(kForbidden, OCTET_FIELD(data.partial_samples), "the last, shorter window of a stream: left out, or padded without loss").one_of({"drop", "pad"});
  t.add(kWarn, OCTET_FIELD(data.pad_id), "tokens of this id get no loss").at_least(0).at_most(1 << 24).derived("no such token");
}

void add_training(Table<RunConfig>& t) {
  t.add(kWarn, OCTET_FIELD(batch.micro), "samples in one forward pass").at_least(1).at_most(1 << 20).required("4").flag("--micro-batch-size");
  t.add(kForbidden, OCTET_FIELD(batch.global), "samples in one optimizer step, a multiple of batch.micro")
      .at_least(1).at_most(1 << 24).required("4").flag("--global-batch-size").units();
  t.add(kForbidden, OCTET_FIELD(optim.name), "optimizer").one_of({"adamw"});
  t.add(kWarn, OCTET_FIELD(optim.lr), "peak learning rate").above(0).at_most(1000).required("0.0005").flag("--lr");
  t.add(kWarn, OCTET_FIELD(optim.beta1), "decay of the first moment").at_least(0).below(1).flag("--adam-beta1");
  t.add(kWarn, OCTET_FIELD(optim.beta2), "decay of the second moment").at_least(0).below(1).flag("--adam-beta2");
  t.add(kWarn, OCTET_FIELD(optim.eps), "added to the root of the second moment").above(0).below(1).flag("--adam-eps");
  t.add(kWarn, OCTET_FIELD(optim.weight_decay), "decoupled decay of the matrices").at_least(0).at_most(100).flag("--weight-decay");
  t.add(kWarn, OCTET_FIELD(optim.clip_norm), "largest gradient norm; 0: no clipping").at_least(0).flag("--clip-grad");
  t.add(kFree, OCTET_FIELD(optim.master_weights), "fp32; bf16_remainder: the BF16 weight and the 16 bits below it, the same values in 2 bytes less").one_of({"fp32", "bf16_remainder"});
  t.add(kWarn, OCTET_FIELD(optim.moments), "fp32; bf16: half the memory, rounded stochastically").one_of({"fp32", "bf16"});
  t.add(kFree, OCTET_FIELD(optim.fused_images), "AdamW's pass also quantizes the new weights, where their scales come from the weights alone: the same bits, one pass less over them, and no faster "
                                                "where it was timed (docs/benchmarks/hopper.md)");
  t.add(kFree, OCTET_FIELD(optim.offload), "on a GPU: keep masters (or their remainders) and moments in the host's pinned memory, where the optimizer's kernel reads and writes "
                                           "them over the bus: slower updates, the same bits");
  t.add(kWarn, OCTET_FIELD(optim.z_loss), "coefficient of the mean squared log-normalizer").at_least(0).at_most(1);
  t.add(kWarn, OCTET_FIELD(sched.type), "learning-rate schedule").one_of({"constant", "linear", "cosine", "wsd"}).flag("--lr-decay-style");
  t.add(kWarn, OCTET_FIELD(sched.warmup_steps), "steps of linear warm-up").at_least(0).at_most(1e9).flag("--lr-warmup-iters").units();
  t.add(kWarn, OCTET_FIELD(sched.decay_steps), "the last so many steps, in which the rate decays")
      .at_least(0).at_most(1e9).derived("all steps after warm-up; wsd: a tenth of the run; constant: 0").units();
  t.add(kWarn, OCTET_FIELD(sched.min_lr_ratio), "final learning rate over the peak").at_least(0).at_most(1);
}

void add_precision(Table<RunConfig>& t) {
  t.add(kWarn, OCTET_FIELD(precision.recipe), "how operands are quantized; docs/numerics.md states each").one_of(recipes()).flag("--fp8-recipe");
  t.add(kWarn, OCTET_FIELD(precision.format), "hybrid: E4M3 forward, E5M2 gradients; e4m3: E4M3 everywhere")
      .one_of({"hybrid", "e4m3"}).derived("the recipe's own").flag("--fp8-format")
      .refuse("e5m2", "Pure E5M2 training is not supported, two mantissa bits are too few for weights and activations; use hybrid or e4m3");
  t.add(kWarn, OCTET_FIELD(precision.margin), "delayed: scales are 2^margin smaller").at_least(-16).at_most(16).flag("--fp8-margin");
  t.add(kWarn, OCTET_FIELD(precision.amax_history_len), "delayed: steps whose largest magnitudes are remembered")
      .at_least(1).at_most(1 << 20).derived("1024, cut to a tenth of run.steps, at least 16").flag("--fp8-amax-history-len");
  t.add(kWarn, OCTET_FIELD(precision.amax_compute_algo), "delayed: which of the history counts")
      .one_of({"max", "most_recent"})
      .flag("--fp8-amax-compute-algo");
  t.add(kWarn, OCTET_FIELD(precision.pow2_scales), "round scales down to powers of two").derived("the recipe's own");
  t.add(kWarn, OCTET_FIELD(precision.amax_epsilon), "lower bound of the largest magnitude").at_least(0).at_most(1).derived("the recipe's own");
  const std::vector<std::string> modes = {"fast", "accurate"};
  t.add(kWarn, OCTET_FIELD(precision.accumulate.fprop), "accumulation of Y = X W^T").one_of(modes).derived("the recipe's own");
  t.add(kWarn, OCTET_FIELD(precision.accumulate.dgrad), "accumulation of dX = dY W").one_of(modes).derived("the recipe's own");
  t.add(kWarn, OCTET_FIELD(precision.accumulate.wgrad), "accumulation of dW = dY^T X").one_of(modes).derived("the recipe's own");
  const std::vector<std::string> on_off = {"fp8", "bf16"};
  t.add(kWarn, OCTET_FIELD(precision.dgrad), "bf16 keeps the input gradient's product out of FP8").one_of(on_off);
  t.add(kWarn, OCTET_FIELD(precision.wgrad), "bf16 keeps the weight gradient's product out of FP8").one_of(on_off).flag_switch("--no-fp8-wgrad", "bf16");
  t.add(kWarn, OCTET_FIELD(precision.head), "precision of the output head").one_of(on_off);
  t.add(kWarn, OCTET_FIELD(precision.first_last_layers_bf16), "so many layers at each end stay in BF16")
      .at_least(0).at_most(4096).flag_optional("--first-last-layers-bf16", 1);
  t.add(kWarn, OCTET_FIELD(precision.calibration_steps), "first steps that scale each tensor by itself and collect magnitudes for static and delayed scales")
      .at_least(0).at_most(1e9).units();
  t.add(kWarn, OCTET_FIELD(precision.static_amax.x), "static: largest magnitude expected of inputs").above(0).derived("collected by calibration_steps");
  t.add(kWarn, OCTET_FIELD(precision.static_amax.w), "static: largest magnitude expected of weights").above(0).derived("collected by calibration_steps");
  t.add(kWarn, OCTET_FIELD(precision.static_amax.dy), "static: largest magnitude expected of output gradients").above(0).derived("collected by calibration_steps");
  t.add(kWarn, OCTET_FIELD(precision.emulate), "let a GPU emulate formats it lacks; the CPU computes every format");
  t.add(kWarn, OCTET_FIELD(precision.custom), "operands of recipe custom; configs/recipes/ has examples");
  t.add(kWarn, OCTET_FIELD(precision.rules), "recipes of single modules, first match wins").of(infos(precision_rule_fields()));
}

void add_layout(Table<RunConfig>& t) {
  const char* later = "not in this version: 1";
  t.add(kFree, OCTET_FIELD(parallel.tp), "ranks that share each matrix, neighbours; a divisor of the attention heads, and a divisor or a multiple of the key/value heads").at_least(1)
      .flag("--tensor-model-parallel-size");
  t.add(kFree, OCTET_FIELD(parallel.pp), later).at_least(1);
  t.add(kFree, OCTET_FIELD(parallel.cp), later).at_least(1);
  t.add(kFree, OCTET_FIELD(parallel.ep), later).at_least(1);
  t.add(kFree, OCTET_FIELD(parallel.etp), later).at_least(1);
  t.add(kFree, OCTET_FIELD(parallel.zero), "what data-parallel ranks keep shards of: 0 nothing, 1 masters and moments, 2 gradients too, 3 weights too").at_least(0).at_most(3);
  t.add(kFree, OCTET_FIELD(parallel.fp8_param_gather), "with parallel.zero 1 to 3: each rank quantizes its rows of a weight, and codes and scales are gathered, half the bytes; the same bits. For recipes whose weights have "
                                                       "one image for both products, as tensorwise, delayed and blockwise").flag_switch("--fp8-param-gather", true);
  t.add(kFree, OCTET_FIELD(parallel.dp_replicate), "data-parallel ranks are so many replicas of the shards").at_least(1);
  t.add(kFree, OCTET_FIELD(parallel.sequence_parallel), "with parallel.tp: what works on the residual stream token by token is cut by tokens over its ranks").flag_switch("--sequence-parallel", true);
  t.add(kFree, OCTET_FIELD(parallel.fp8_activation_gather), "with parallel.sequence_parallel: tokens go to the linears that quantize them as codes and scales, in about half the bytes");
  t.add(kFree, OCTET_FIELD(parallel.share_gpus), "several ranks may compute on one GPU: for tests, it is slower than one");
  t.add(kFree, OCTET_FIELD(parallel.backend), "how ranks exchange what lies in GPUs' memory: nccl; mpi through the host's memory; auto nccl, or mpi where ranks share GPUs or the build has no NCCL. "
                                              "On CPUs all is mpi").one_of({"auto", "nccl", "mpi"}).flag("--distributed-backend");
  t.add(kFree, OCTET_FIELD(parallel.overlap), "gradients and weights move beside computation; false: one after the other, the same bits");
  t.add(kFree, OCTET_FIELD(recompute.modules), "activations computed again in the backward pass instead of kept")
      .one_of({"norm", "swiglu", "attention", "block"});
  t.add(kWarn, OCTET_FIELD(recompute.swiglu_inputs), "how gate and up, the largest activations, are kept for backward: as they are computed, or in half the memory in E4M3 with a scale for each "
                                                     "1x128 block (the forward pass does not change; gradients see their rounding)")
      .one_of({"bf16", "fp8"});
}

void add_running(Table<RunConfig>& t) {
  t.add(kFree, OCTET_FIELD(ckpt.interval), "steps between checkpoints; 0: only at the end or when stopped").at_least(0).at_most(1e9).flag("--save-interval").units();
  t.add(kFree, OCTET_FIELD(ckpt.keep_last), "checkpoints kept; 0: all").at_least(0).at_most(1e9);
  t.add(kFree, OCTET_FIELD(ckpt.resume), "auto: continue when there is a checkpoint; never: the run directory must be empty; must: there has to be one")
      .one_of({"auto", "never", "must"}).flag("--resume");
  t.add(kFree, OCTET_FIELD(eval.interval), "steps between validations; 0: never").at_least(0).at_most(1e9).flag("--eval-interval").units();
  t.add(kWarn, OCTET_FIELD(eval.samples), "size of the fixed validation set").at_least(1).at_most(1e9).units();
  t.add(kFree, OCTET_FIELD(log.interval), "steps between console lines").at_least(1).at_most(1e9).flag("--log-interval").units();
  t.add(kFree, OCTET_FIELD(log.console), "fields of a console line and their order").one_of({"octet", "megatron"});
  t.add(kFree, OCTET_FIELD(log.tensorboard), "TensorBoard event files in RUN/tb");
  t.add(kFree, OCTET_FIELD(log.names), "TensorBoard tags").one_of({"octet", "megatron"});
  t.add(kFree, OCTET_FIELD(log.stats_interval), "steps between FP8 health statistics; 0: never").at_least(0).at_most(1e9).units();
  t.add(kFree, OCTET_FIELD(log.stats_modules), "globs of the module paths that have them");
  t.add(kFree, OCTET_FIELD(log.profile), "Chrome trace of the steps below in RUN/trace.json, NVTX ranges").flag_switch("--profile", true);
  t.add(kFree, OCTET_FIELD(log.profile_start), "first step of the trace").at_least(1).at_most(1e9).flag("--profile-step-start");
  t.add(kFree, OCTET_FIELD(log.profile_end), "step after the last of the trace").at_least(2).at_most(1e9).flag("--profile-step-end");
  t.add(kFree, OCTET_FIELD(guard.deadline_s), "seconds a step may take; 0: max(60, 10 x median step)").at_least(0).at_most(1e9);
  t.add(kFree, OCTET_FIELD(guard.max_skipped), "consecutive skipped steps before giving up").at_least(1).at_most(1e9);
  t.add(kFree, OCTET_FIELD(run.steps), "optimizer steps").at_least(0).at_most(1e9).required("300").unless("run.tokens").flag("--train-iters").units();
  t.add(kFree, OCTET_FIELD(run.tokens), "instead of run.steps: tokens to train on, rounded up to whole steps").at_least(1).at_most(9e18).derived("not given").units();
  t.add(kForbidden, OCTET_FIELD(run.seed), "seed of weights, sample order and stochastic rounding").flag("--seed");
  t.add(kWarn, OCTET_FIELD(run.device), "where to train").one_of({"auto", "cpu", "cuda"});
  t.add(kFree, OCTET_FIELD(run.cuda_graphs), "on a GPU: record a micro-batch's forward and backward once and run the recording, which saves launching each kernel by itself; the same bits");
  t.add(kFree, OCTET_FIELD(run.shadow),
        "debugging, on a GPU: compute every operator on the CPU too, from the same bits, and stop at the first that disagrees; the results stay the same, a step takes "
        "minutes on real models: for few layers and steps");
  t.add(kWarn, OCTET_FIELD(run.attention), "kernels of a GPU's attention: mma, products of a warp; or wgmma, of a warpgroup, for compute capability 9.0 and head_dim 64 and 128: tested on the host alone, no GPU has run them yet").one_of({"mma", "wgmma"});
  t.add(kWarn, OCTET_FIELD(run.gemm_choice), "algorithms of a GPU's matrix products: timed once, at the start; or the library's first suggestion").one_of({"timed", "heuristic"});
  t.add(kFree, OCTET_FIELD(run.threads), "CPU threads; 0: all usable cores").at_least(0).at_most(4096);
  t.add(kForbidden, OCTET_FIELD(run.init_perturbation),
        "every initial weight times (1 + p N(0,1)): twins, whose spread shows how chaotic the comparison's regime is").at_least(0);
  t.add(kWarn, OCTET_FIELD(run.cpu_gemm), "blas; fixed: own summation order; exact: bit model of FP8 tensor cores").one_of({"blas", "fixed", "exact"});
  t.add(kFree, OCTET_FIELD(run.dir), "directory that the run writes").flag("--run-dir");
}

}  // namespace

const std::vector<Field<RunConfig>>& run_fields() {
  static const std::vector<Field<RunConfig>> fields = [] {
    Table<RunConfig> t;
    add_model(t);
    add_data(t);
    add_training(t);
    add_precision(t);
    add_layout(t);
    add_running(t);
    return t.fields;
  }();
  return fields;
}

const std::vector<Field<DataSource>>& data_source_fields() {
  static const std::vector<Field<DataSource>> fields = [] {
    Table<DataSource> t;
    t.add(kWarn, OCTET_FIELD(path), "PREFIX of PREFIX.idx and PREFIX.bin, or a file of another format; * and ? match several files").required("\"data/text\"");
    t.add(kForbidden, OCTET_FIELD(weight), "share of the samples").above(0).derived("in all sources: by their sizes");
    t.add(kWarn, OCTET_FIELD(format), "format of the token files").one_of(token_formats());
    t.add(kForbidden, OCTET_FIELD(index_cache), "DIR/HASH-GPTDataset-train of a Megatron run, whose sample order is taken over");
    return t.fields;
  }();
  return fields;
}

const std::vector<Field<ValidSource>>& valid_source_fields() {
  static const std::vector<Field<ValidSource>> fields = [] {
    Table<ValidSource> t;
    t.add(kWarn, OCTET_FIELD(name), "name in metrics and on the console").required("\"wiki\"");
    t.add(kWarn, OCTET_FIELD(path), "token files, as in data.train").required("\"data/text\"");
    t.add(kWarn, OCTET_FIELD(format), "format of the token files").one_of(token_formats());
    return t.fields;
  }();
  return fields;
}

const std::vector<Field<PrecisionRule>>& precision_rule_fields() {
  static const std::vector<Field<PrecisionRule>> fields = [] {
    Table<PrecisionRule> t;
    t.add(kWarn, OCTET_FIELD(match), "glob over module paths").required("\"layers.0.*\"");
    t.add(kWarn, OCTET_FIELD(recipe), "recipe of the modules that match").one_of(recipes()).required("\"bf16\"");
    return t.fields;
  }();
  return fields;
}

const std::vector<Field<CustomOperand>>& custom_operand_fields() {
  static const std::vector<Field<CustomOperand>> fields = [] {
    Table<CustomOperand> t;
    t.add(kWarn, OCTET_FIELD(format), "element format").one_of({"bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1"}).required("\"e4m3\"");
    t.add(kWarn, OCTET_FIELD(scale), "scale format; ue4m3: E4M3 block scales under one FP32 scale a tensor (NVFP4)").one_of({"fp32", "pow2", "e8m0", "ue4m3"});
    t.add(kWarn, OCTET_FIELD(scaling), "scale from this tensor, from its history, or fixed").one_of({"current", "delayed", "static"});
    t.add(kWarn, OCTET_FIELD(static_amax), "static: magnitude that maps to the format's largest value").above(0).derived("collected by calibration_steps");
    t.add(kWarn, OCTET_FIELD(hadamard), "16 x 16 random Hadamard transform along the contraction first (both operands of wgrad)");
    t.add(kWarn, OCTET_FIELD(rounding), "rounding of elements").one_of({"nearest", "stochastic"});
    t.add(kWarn, OCTET_FIELD(margin), "scales are 2^margin smaller").at_least(-16).at_most(16);
    t.add(kWarn, OCTET_FIELD(amax_epsilon), "lower bound of the largest magnitude").at_least(0).at_most(1);
    Field<CustomOperand>& block = t.fields.emplace_back();
    block.path = "block";
    block.kind = FieldKind::block;
    block.on_resume = kWarn;
    block.doc = "elements that share a scale: tensor, row, or [rows, length along the contraction]";
    block.min = 0;
    block.max = 1 << 20;
    block.read = config_detail::read_block;
    block.write = config_detail::write_block;
    block.fallback = "tensor";
    return t.fields;
  }();
  return fields;
}

const FieldInfo* find_field(const std::string& path) {
  for (const Field<RunConfig>& f : run_fields()) {
    if (f.path == path) return &f;
  }
  return nullptr;
}

}  // namespace octet
