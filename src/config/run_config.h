// RunConfig: everything a run is described by, as plain structs. The keys, defaults, ranges and documentation of each field
// stand once in config/fields.cpp; JSON, flags, --help and the resolved config all come from that table.
// JSON keys of `model` are Hugging Face's config.json names.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace octet {

struct RopeScaling {           // rope_scaling; only rope_type "llama3" changes anything
  std::string rope_type = "default";
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;   // 0: as num_attention_heads (resolved by validate())
  int64_t head_dim = 0;              // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 0;  // 0: data.seq_len; else seq_len must not exceed it
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double partial_rotary_factor = 1.0;   // share of head_dim that is rotated, the first dimensions
  double rms_norm_eps = 1e-5;
  bool attention_bias = false;          // bias on q, k, v (Qwen2.5)
  bool use_qk_norm = false;             // RMSNorm over head_dim of q and k before RoPE (Qwen3)
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  bool init_scale_output = true;        // output projections (o_proj, down_proj) times 1/sqrt(2 L), as Megatron
  int64_t vocab_pad_multiple = 128;     // embedding and head rows are padded to it; padded rows never enter the softmax
  bool operator==(const ModelConfig&) const = default;
};

struct DataSource {
  std::string path;                // PREFIX of PREFIX.idx / PREFIX.bin, or a file of another format; * and ? match several files
  std::optional<double> weight;    // share of the samples; absent in all sources: by their sizes
  std::string format = "auto";     // auto | megatron | llmc | datatrove | raw_u16 | raw_u32 (data/token_source.h)
  std::string index_cache;         // DIR/HASH-GPTDataset-train of a Megatron run, whose sample order is taken over
  bool operator==(const DataSource&) const = default;
};

struct ValidSource {
  std::string name;                // in metrics and on the console
  std::string path;
  std::string format = "auto";
  bool operator==(const ValidSource&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;      // several: a blend
  std::vector<ValidSource> valid;     // named validation sets, the first is the one comparisons use; empty: the valid share of `train`
  std::string blend_cache;            // DIR/HASH-BlendedDataset-train of a Megatron run
  std::string split = "99,1,0";       // train, valid, test shares, in sequences and file order (Megatron)
  int64_t seq_len = 0;
  int64_t eod_id = 256;               // end-of-document token (byte tokenizer: 256): for the options below, and where files do not tell documents
  bool eod_mask_loss = false;         // no loss where the input token is EOD
  bool document_mask = false;         // attention stays within a document
  bool reset_position_ids = false;    // positions restart after EOD
  std::optional<int64_t> seed;        // of the sample order; absent: run.seed
  int64_t prefetch = 4;               // micro-batches read ahead
  std::string partial_samples = "drop";  // drop | pad: the last, shorter window of a stream is left out, or padded without loss
  std::optional<int64_t> pad_id;      // tokens of this id get no loss; also what padding is written as (absent: 0)
  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  int64_t micro = 0;    // samples a forward pass
  int64_t global = 0;   // samples an optimizer step; a multiple of micro
  bool operator==(const BatchConfig&) const = default;
};

struct OptimConfig {
  std::string name = "adamw";
  double lr = 0;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip_norm = 1.0;   // 0: no clipping
  double z_loss = 0.0;      // coefficient of mean(logsumexp^2)
  std::string master_weights = "fp32";  // fp32 | bf16_remainder: the BF16 weight and the 16 bits below it; the same values in 2 bytes less
  std::string moments = "fp32";         // fp32 | bf16, rounded stochastically
  bool fused_images = false;            // AdamW's pass also writes the FP8 images of the weights, where their scales allow it
  bool offload = false;                 // GPU: masters (remainders) and moments live in the host's memory
  bool operator==(const OptimConfig&) const = default;
};

struct SchedConfig {
  std::string type = "cosine";   // constant | linear | cosine | wsd
  int64_t warmup_steps = 0;
  std::optional<int64_t> decay_steps;   // absent: linear, cosine: all after warm-up; wsd: a tenth of the run
  double min_lr_ratio = 0.1;
  bool operator==(const SchedConfig&) const = default;
};

// One operand of one GEMM. `block` is [rows, length along the contraction]; 0 means the whole extent.
struct CustomOperand {
  std::string format = "bf16";        // bf16 | e4m3 | e5m2 | e3m2 | e2m3 | e2m1
  int64_t block_rows = 0, block_cols = 0;
  std::string scale = "fp32";         // fp32 | pow2 | e8m0 | ue4m3 (NVFP4's two levels)
  std::string scaling = "current";    // current | delayed | static
  std::optional<double> static_amax;  // static: the magnitude that maps to the format's largest value; absent: from calibration
  bool hadamard = false;              // 16 x 16 random Hadamard transform along the contraction before quantization (wgrad only)
  std::string rounding = "nearest";   // nearest | stochastic
  int64_t margin = 0;
  double amax_epsilon = 0;
  bool operator==(const CustomOperand&) const = default;
};

struct PrecisionRule {
  std::string match;    // glob over module paths, first match wins
  std::string recipe;
  bool operator==(const PrecisionRule&) const = default;
};

struct AccumulateConfig {   // "" : the recipe's own; else fast | accurate
  std::string fprop, dgrad, wgrad;
  bool operator==(const AccumulateConfig&) const = default;
};

struct StaticAmaxConfig {   // recipe static: magnitudes that map to the format's largest value; absent: from calibration
  std::optional<double> x, w, dy;
  bool operator==(const StaticAmaxConfig&) const = default;
};

struct PrecisionConfig {
  std::string recipe = "bf16";
  std::string format;                      // "": the recipe's own; hybrid | e4m3
  int64_t margin = 0;
  std::optional<int64_t> amax_history_len; // absent: 1024 cut to a tenth of the run's steps, at least 16
  std::string amax_compute_algo = "max";   // max | most_recent
  std::optional<bool> pow2_scales;         // absent: the recipe's own
  std::optional<double> amax_epsilon;      // absent: the recipe's own
  AccumulateConfig accumulate;
  std::string dgrad = "fp8";               // fp8 | bf16
  std::string wgrad = "fp8";               // fp8 | bf16
  std::string head = "bf16";               // bf16 | fp8 (the run's recipe)
  int64_t first_last_layers_bf16 = 0;      // so many layers at each end stay in BF16
  int64_t calibration_steps = 0;           // first steps that scale each tensor by itself and collect amaxes for static and delayed scaling
  StaticAmaxConfig static_amax;
  bool emulate = false;                    // lets a GPU compute formats it lacks by emulation; the CPU computes every format
  std::map<std::string, CustomOperand> custom;  // keys fprop.x fprop.w dgrad.dy dgrad.w wgrad.dy wgrad.x
  std::vector<PrecisionRule> rules;
  bool operator==(const PrecisionConfig&) const = default;
};

struct ParallelConfig {   // pp, cp, ep, etp: 1 until their parts land; other values are refused
  int64_t tp = 1, pp = 1, cp = 1, ep = 1, etp = 1;
  int64_t zero = 1;                // what data-parallel ranks share out: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too
  int64_t dp_replicate = 1;        // data-parallel ranks = dp_replicate x shards
  bool sequence_parallel = false;  // tp: the residual stream and its norms are cut by tokens
  bool fp8_param_gather = false;   // zero 1 to 3: quantized weights are gathered as codes and scales
  bool fp8_activation_gather = false;   // sequence_parallel: inputs of quantized linears are gathered as codes and scales
  bool overlap = true;             // communication beside computation
  bool share_gpus = false;         // several ranks may compute on one GPU
  std::string backend = "auto";    // auto | nccl | mpi: what GPUs' memory is exchanged through
  bool operator==(const ParallelConfig&) const = default;
};

struct RecomputeConfig {
  std::vector<std::string> modules;   // norm | swiglu | attention | block
  std::string swiglu_inputs = "bf16"; // bf16 | fp8: how gate and up wait for backward
  bool operator==(const RecomputeConfig&) const = default;
};

struct CkptConfig {
  int64_t interval = 0;            // steps between checkpoints; 0: only at the end or when stopped
  int64_t keep_last = 2;           // 0 keeps all
  std::string resume = "never";    // auto | never | must
  bool operator==(const CkptConfig&) const = default;
};

struct EvalConfig {
  int64_t interval = 0;            // steps between validations; 0: never
  int64_t samples = 64;            // size of the fixed validation set
  bool operator==(const EvalConfig&) const = default;
};

struct LogConfig {
  int64_t interval = 1;            // steps between console lines (metrics.jsonl gets every step)
  std::string console = "octet";   // octet | megatron: the line's fields and their order
  bool tensorboard = true;         // event files in RUN/tb
  std::string names = "octet";     // octet | megatron: TensorBoard tags
  int64_t stats_interval = 100;    // steps between FP8 health statistics; 0: never
  std::vector<std::string> stats_modules = {"*"};  // globs of module paths that have them
  bool profile = false;            // Chrome trace of the steps below in RUN/trace.json, NVTX ranges
  int64_t profile_start = 10, profile_end = 12;    // steps [start, end)
  bool operator==(const LogConfig&) const = default;
};

struct GuardConfig {
  double deadline_s = 0;           // 0: max(60, 10 x median step)
  int64_t max_skipped = 3;         // consecutive skipped steps before giving up (exit code 30)
  bool operator==(const GuardConfig&) const = default;
};

struct RunSection {
  int64_t steps = 0;               // resolved from `tokens` when that is given
  std::optional<int64_t> tokens;   // instead of steps: the run's length in tokens, rounded up to whole steps
  uint64_t seed = 1234;
  std::string device = "auto";     // auto | cpu | cuda
  int64_t threads = 0;             // 0: all usable cores
  bool cuda_graphs = true;            // a GPU's micro-batches are recorded once and run again
  bool shadow = false;                // a GPU's operators are computed on the CPU too and compared
  std::string attention = "mma";      // mma | wgmma: which kernels compute a GPU's attention
  std::string gemm_choice = "timed";  // timed | heuristic: how a GPU's products find their algorithms; stored in checkpoints
  std::string cpu_gemm = "blas";   // blas | fixed (own summation order, golden curves) | exact (bit model of FP8 tensor cores)
  double init_perturbation = 0;    // initial weights times (1 + p N(0,1)); for twins
  std::string dir;                 // run directory; --run-dir
  bool operator==(const RunSection&) const = default;
};

struct RunConfig {
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  OptimConfig optim;
  SchedConfig sched;
  PrecisionConfig precision;
  ParallelConfig parallel;
  RecomputeConfig recompute;
  CkptConfig ckpt;
  EvalConfig eval;
  LogConfig log;
  GuardConfig guard;
  RunSection run;
  bool operator==(const RunConfig&) const = default;
};

}  // namespace octet
