// Checks that concern more than one field. A field's own type, range and choices stand in its row of fields.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "config/config_io.h"
#include "config/model_size.h"
#include "config/nearest.h"
#include "core/error.h"

namespace octet {
namespace {

constexpr double kMaxParameters = 2e13;
constexpr double kMaxTokens = 9e18;   // counters are 64-bit
constexpr int64_t kMaxMicroTokens = int64_t{1} << 31;

[[noreturn]] void fail(const std::string& where, const std::string& what, const std::string& fix = {}) {
  throw Error(ExitCode::config, what, where, fix);
}

void check_model(ModelConfig& m, int64_t seq_len) {
  if (m.num_key_value_heads == 0) m.num_key_value_heads = m.num_attention_heads;
  if (m.num_attention_heads % m.num_key_value_heads != 0) {
    fail("model.num_key_value_heads",
         fmt::format("{} query heads cannot be shared evenly by {} key-value heads", m.num_attention_heads, m.num_key_value_heads),
         "num_attention_heads must be a multiple of num_key_value_heads");
  }
  if (m.head_dim == 0) {
    if (m.hidden_size % m.num_attention_heads != 0) {
      fail("model.num_attention_heads", fmt::format("hidden_size {} does not divide into {} heads", m.hidden_size, m.num_attention_heads),
           "change one of the two or set model.head_dim");
    }
    m.head_dim = m.hidden_size / m.num_attention_heads;
  }
  if (m.head_dim % 2 != 0) {
    fail("model.head_dim", fmt::format("{} is odd, but rotary embeddings turn pairs of dimensions", m.head_dim), "make it even");
  }
  const auto rotary = static_cast<int64_t>(static_cast<double>(m.head_dim) * m.partial_rotary_factor);
  if (rotary < 2 || rotary % 2 != 0) {
    fail("model.partial_rotary_factor", fmt::format("{} of head_dim {} makes {} rotated dimensions", m.partial_rotary_factor, m.head_dim, rotary),
         "their number must be even and at least 2");
  }
  const RopeScaling& r = m.rope_scaling;
  if (r.rope_type == "llama3" && r.high_freq_factor <= r.low_freq_factor) {
    fail("model.rope_scaling.high_freq_factor", fmt::format("{} must be above low_freq_factor {}", r.high_freq_factor, r.low_freq_factor));
  }
  if (m.max_position_embeddings != 0 && seq_len > m.max_position_embeddings) {
    fail("data.seq_len", fmt::format("{} is longer than model.max_position_embeddings {}", seq_len, m.max_position_embeddings),
         "shorten the samples or raise max_position_embeddings");
  }
  const auto parameters = static_cast<double>(padded_parameter_count(m));
  if (parameters > kMaxParameters) {
    fail("model", fmt::format("these sizes make {:.3g} parameters, more than any machine holds (limit {:.3g})", parameters, kMaxParameters),
         "check hidden_size, intermediate_size, num_hidden_layers and vocab_size");
  }
}

void resolve_length(RunConfig& c) {
  if (c.run.tokens) {
    if (c.run.steps != 0) fail("run.tokens", fmt::format("is given beside run.steps {}", c.run.steps), "give one of the two");
    const int64_t per_step = c.batch.global * c.data.seq_len;
    c.run.steps = *c.run.tokens / per_step + (*c.run.tokens % per_step != 0);
    c.run.tokens.reset();
  }
  if (c.run.steps < 1) fail("run.steps", fmt::format("{} is below 1", c.run.steps), "give the number of optimizer steps");
}

void check_sources(const DataConfig& d) {
  constexpr size_t most_sources = 32766;   // Megatron's blends number them in 16 bits
  if (d.train.empty()) fail("data.train", "the list is empty", "name token files: --data-path PREFIX");
  if (d.train.size() > most_sources) {
    fail("data.train", fmt::format("has {} sources, more than {}", d.train.size(), most_sources), "join some with a pattern such as \"data/*\"");
  }
  for (size_t k = 1; k < d.train.size(); ++k) {
    if (d.train[k].weight.has_value() == d.train[0].weight.has_value()) continue;
    fail(fmt::format("data.train.{}.weight", k), d.train[k].weight ? "is given, but not for the first source" : "is absent, but given for the first source",
         "give a weight for every source, or for none: then their sizes count");
  }
  if (!d.blend_cache.empty() && d.train.size() < 2) {
    fail("data.blend_cache", "is given, but data.train has one source", "list the sources of the cached blend, in its order");
  }
  for (size_t k = 0; k < d.valid.size(); ++k) {
    for (size_t i = 0; i < k; ++i) {
      if (d.valid[i].name != d.valid[k].name) continue;
      fail(fmt::format("data.valid.{}.name", k), fmt::format("\"{}\" is the name of two sets", printable(d.valid[k].name)), "rename one");
    }
  }
}

void check_data(DataConfig& d, const RunConfig& c) {
  check_sources(d);
  const auto shares = parse_split(d.split);
  if (c.eval.interval > 0 && d.valid.empty() && shares[1] == 0) {
    fail("eval.interval",
         fmt::format("validation every {} steps, but data.split \"{}\" leaves no validation text", c.eval.interval, printable(d.split)),
         "use a split such as 99,1,0, name sets in data.valid, or set eval.interval to 0");
  }
  if ((d.eod_mask_loss || d.document_mask || d.reset_position_ids) && d.eod_id >= c.model.vocab_size) {
    fail("data.eod_id", fmt::format("{} is not a token id of a vocabulary of {}", d.eod_id, c.model.vocab_size),
         "set it to the tokenizer's end-of-document id");
  }
  if (d.pad_id && *d.pad_id >= c.model.vocab_size) {
    fail("data.pad_id", fmt::format("{} is not a token id of a vocabulary of {}", *d.pad_id, c.model.vocab_size),
         "set it to the tokenizer's padding id, or leave it out");
  }
  if (!d.seed) {
    if (c.run.seed > UINT32_MAX) {   // NumPy's generator, which the sample order follows, takes 32 bits
      fail("run.seed", fmt::format("{} is too large to serve as data.seed, which is at most {}", c.run.seed, UINT32_MAX), "set data.seed");
    }
    d.seed = static_cast<int64_t>(c.run.seed);
  }
}

void check_batch(const RunConfig& c) {
  const BatchConfig& b = c.batch;
  if (b.global % b.micro != 0) {
    fail("batch.global", fmt::format("{} is not a multiple of batch.micro {}", b.global, b.micro),
         "an optimizer step is a whole number of micro-batches");
  }
  if (b.micro * c.data.seq_len >= kMaxMicroTokens) {
    fail("batch.micro",
         fmt::format("{} samples of {} tokens are {} tokens in one forward pass (limit 2^31)", b.micro, c.data.seq_len, b.micro * c.data.seq_len),
         "lower batch.micro; batch.global may stay");
  }
  const double tokens = static_cast<double>(b.global) * static_cast<double>(c.data.seq_len) * static_cast<double>(c.run.steps);
  if (tokens > kMaxTokens) {
    fail("run.steps", fmt::format("the run would see {:.3g} tokens, more than can be counted", tokens), "check run.steps and batch.global");
  }
}

void check_schedule(SchedConfig& s, int64_t steps) {
  if (s.warmup_steps > steps) {
    fail("sched.warmup_steps", fmt::format("{} steps of warm-up in a run of {} steps", s.warmup_steps, steps), "warm-up must end within run.steps");
  }
  const int64_t rest = steps - s.warmup_steps;
  if (!s.decay_steps) s.decay_steps = s.type == "constant" ? 0 : s.type == "wsd" ? std::min(rest, std::max<int64_t>(1, steps / 10)) : rest;
  if (s.type != "constant" && *s.decay_steps > rest) {
    fail("sched.decay_steps",
         fmt::format("{} steps of decay do not fit between {} of warm-up and the end at {}", *s.decay_steps, s.warmup_steps, steps),
         "shorten one of them or raise run.steps");
  }
}

void check_precision(PrecisionConfig& p, const RunConfig& c) {
  const bool custom_used =
      p.recipe == "custom" || std::any_of(p.rules.begin(), p.rules.end(), [](const PrecisionRule& r) { return r.recipe == "custom"; });
  if (custom_used && p.custom.empty()) {
    fail("precision.custom", "recipe \"custom\" needs its operands here", "configs/recipes/harm_e2m1.json is an example");
  }
  if (!custom_used && !p.custom.empty()) {
    fail("precision.custom", fmt::format("is given, but the recipe is \"{}\" and would ignore it", p.recipe),
         "set precision.recipe to \"custom\", or precision.custom to null");
  }
  const bool quantizes = p.recipe != "bf16" && p.recipe != "fp32";
  if (quantizes && p.first_last_layers_bf16 > 0 && p.first_last_layers_bf16 >= (c.model.num_hidden_layers + 1) / 2) {
    fail("precision.first_last_layers_bf16", fmt::format("{} at each end of {} layers leaves none for recipe \"{}\"", p.first_last_layers_bf16,
         c.model.num_hidden_layers, p.recipe), "lower it, or choose recipe bf16");
  }
  if (p.calibration_steps >= c.run.steps) {
    fail("precision.calibration_steps", fmt::format("{} of a run of {} steps leave none that use the collected scales", p.calibration_steps, c.run.steps),
         "lower it, or use recipe tensorwise, which scales every tensor by itself");
  }
  if (!p.amax_history_len) p.amax_history_len = std::max<int64_t>(16, std::min<int64_t>(1024, c.run.steps / 10));
}

void check_parallel(const RunConfig& c) {
  const ParallelConfig& p = c.parallel;
  const std::pair<const char*, int64_t> sizes[] = {{"pp", p.pp}, {"cp", p.cp}, {"ep", p.ep}, {"etp", p.etp}};
  for (const auto& [name, size] : sizes) {
    if (size != 1) fail(fmt::format("parallel.{}", name), fmt::format("{}, but this version has data and tensor parallelism only", size), "set it to 1");
  }
  if (p.fp8_param_gather && p.zero == 0) fail("parallel.fp8_param_gather", "true, but with parallel.zero 0 no weights are gathered", "set it to false, or parallel.zero to 1, 2 or 3");
  const int64_t heads = c.model.num_attention_heads, kv_heads = c.model.num_key_value_heads;
  if (heads % p.tp != 0) fail("parallel.tp", fmt::format("{}, which does not divide the {} attention heads", p.tp, heads), "set it to a divisor");
  if (kv_heads % p.tp != 0 && p.tp % kv_heads != 0) fail("parallel.tp", fmt::format("{}, which neither divides the {} key/value heads nor is a multiple of them", p.tp, kv_heads), "set it to a divisor or a multiple");
  constexpr int64_t smallest = 16;   // features a rank has at least
  if (p.tp > 1 && c.model.intermediate_size < smallest * p.tp) {
    fail("parallel.tp", fmt::format("{}, which leaves less than {} of the {} features of the MLP to a rank", p.tp, smallest, c.model.intermediate_size), "lower it");
  }
  constexpr int64_t kept_block = 128;   // of gate and up that wait for backward in FP8
  if (p.tp > 1 && c.recompute.swiglu_inputs == "fp8" && (c.model.intermediate_size + kept_block - 1) / kept_block < p.tp) {
    fail("recompute.swiglu_inputs", fmt::format("\"fp8\", but {} ranks cut the {} features of the MLP inside blocks of {}", p.tp, c.model.intermediate_size, kept_block),
         "set it to \"bf16\", or lower parallel.tp");
  }
  if (p.sequence_parallel && p.tp == 1) fail("parallel.sequence_parallel", "true, but parallel.tp is 1", "set it to false, or parallel.tp to more than 1");
  if (p.sequence_parallel && c.batch.micro * c.data.seq_len < p.tp) {
    fail("parallel.sequence_parallel", fmt::format("true, but a micro-batch has {} tokens for {} ranks", c.batch.micro * c.data.seq_len, p.tp), "set it to false");
  }
  const auto plain = [](const std::string& recipe) { return recipe == "bf16" || recipe == "fp32"; };
  const bool quantizes = !plain(c.precision.recipe) || std::any_of(c.precision.rules.begin(), c.precision.rules.end(), [&](const PrecisionRule& r) { return !plain(r.recipe); });
  for (const auto& [key, wanted] : {std::pair{"parallel.fp8_param_gather", p.fp8_param_gather}, {"parallel.fp8_activation_gather", p.fp8_activation_gather}}) {
    if (wanted && !quantizes) fail(key, fmt::format("true, but recipe {} quantizes nothing", c.precision.recipe), "set it to false, or choose an FP8 recipe");
  }
  if (p.fp8_activation_gather && !p.sequence_parallel) fail("parallel.fp8_activation_gather", "true, but without parallel.sequence_parallel nothing is gathered", "set that to true, or this to false");
}

void check_log(const LogConfig& l) {
  if (l.profile && l.profile_end <= l.profile_start) {
    fail("log.profile_end", fmt::format("{}, which is not behind log.profile_start {}", l.profile_end, l.profile_start), "it names the step after the last of the trace");
  }
}

}  // namespace

std::array<double, 3> parse_split(const std::string& split) {
  const std::string fix = "write train,valid,test shares such as 99,1,0";
  std::array<double, 3> shares{};
  size_t count = 0;
  for (size_t begin = 0; begin <= split.size(); ++count) {
    const size_t comma = std::min(split.find(',', begin), split.size());
    const char *first = split.data() + begin, *last = split.data() + comma;
    while (first != last && *first == ' ') ++first;
    while (first != last && last[-1] == ' ') --last;
    double share = 0;
    const auto [end, error] = std::from_chars(first, last, share);
    if (error != std::errc() || end != last || count >= shares.size() || !std::isfinite(share) || share < 0) {
      fail("data.split", fmt::format("\"{}\" is not one to three shares", printable(split)), fix);
    }
    shares[count] = share;
    begin = comma + 1;
  }
  const double sum = shares[0] + shares[1] + shares[2];
  if (shares[0] <= 0 || !std::isfinite(sum)) fail("data.split", fmt::format("\"{}\" leaves no training text", printable(split)), fix);
  for (double& s : shares) s /= sum;
  return shares;
}

void validate(RunConfig& c) {
  c = from_json(to_json(c));   // ranges and choices again: the config may have been assembled in code
  resolve_length(c);
  check_model(c.model, c.data.seq_len);
  check_data(c.data, c);
  check_batch(c);
  check_schedule(c.sched, c.run.steps);
  check_precision(c.precision, c);
  check_parallel(c);
  check_log(c.log);
  const auto& again = c.recompute.modules;
  if (c.recompute.swiglu_inputs == "fp8" && std::find(again.begin(), again.end(), "block") != again.end()) {
    fail("recompute.swiglu_inputs", "\"fp8\", but recompute.modules has \"block\", which keeps none of them", "set it to \"bf16\", or take \"block\" from the list");
  }
  if (c.optim.master_weights == "bf16_remainder" && c.precision.recipe == "fp32") {
    fail("optim.master_weights", "\"bf16_remainder\", but the recipe fp32 has no BF16 weights", "set it to \"fp32\", or choose another recipe");
  }
}

}  // namespace octet
