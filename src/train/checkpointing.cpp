#include "train/checkpointing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "config/nearest.h"
#include "core/version.h"

namespace octet {
namespace {

// This rank's part of a parameter as a box of the whole tensor, without padding.
struct OwnBox {
  Shape offset, shape;
};

OwnBox own_box(const Param& p) {
  const int64_t rows = std::clamp<int64_t>(p.logical_rows - p.own.first, 0, p.own.count), first = rows > 0 ? p.first_row + p.own.first : 0;
  if (p.shape.rank() == 1) return {{first}, {rows}};
  return {{first, p.first_col}, {rows, p.shape[1]}};
}

std::vector<ExpectedTensor> expected_model(Engine& engine) {
  std::vector<ExpectedTensor> out;
  for (const auto& p : engine.model().params()) out.push_back({p->name, Dtype::f32, p->whole});
  return out;
}

std::vector<ExpectedTensor> expected_optimizer(Engine& engine) {
  std::vector<ExpectedTensor> out;
  for (const auto& p : engine.model().params()) {
    out.push_back({"exp_avg/" + p->name, Dtype::f32, p->whole});
    out.push_back({"exp_avg_sq/" + p->name, Dtype::f32, p->whole});
  }
  return out;
}

Shape vector_shape(size_t n) { return {static_cast<int64_t>(n)}; }

// A value of the state; a missing or mistyped one is damage that checksums cannot see (another program wrote the manifest).
template <class T>
T state_value(const nlohmann::json& state, const char* key, const std::filesystem::path& where) {
  try {
    return state.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    throw Error(ExitCode::checkpoint, fmt::format("the state has no usable \"{}\"", key), where.string(), "resume from another checkpoint, or start anew from its weights with --init-from");
  }
}

// 64-bit fingerprints are texts: not every JSON reader keeps 64-bit numbers.
std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

std::optional<uint64_t> optional_hash(const nlohmann::json& state, const char* key, const std::filesystem::path& where) {
  if (!state.contains(key)) return std::nullopt;
  const auto text = state_value<std::string>(state, key, where);
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size()) throw Error(ExitCode::checkpoint, fmt::format("the state has no usable \"{}\"", key), where.string(), "resume from another checkpoint");
  return hash;
}

nlohmann::json sources_json(const std::vector<SourceState>& sources) {
  nlohmann::json list = nlohmann::json::array();
  for (const SourceState& s : sources) {
    nlohmann::json j = {{"path", s.path},
                        {"samples", s.samples},
                        {"tokens", s.tokens},
                        {"sampler", {{"epochs", s.sampler.epochs}, {"separate_last_epoch", s.sampler.separate_last_epoch}}}};
    if (s.epoch_tokens) j["epoch_tokens"] = *s.epoch_tokens;
    if (s.block_samples) j["block_samples"] = *s.block_samples;
    if (s.index_cache) j["index_cache"] = hash_text(*s.index_cache);
    if (s.weight) j["weight"] = *s.weight;
    list.push_back(std::move(j));
  }
  return list;
}

nlohmann::json blend_json(const BlendState& b) {
  nlohmann::json j = {{"samples", b.samples}};
  if (b.begins_at > 0) j["begins_at"] = b.begins_at;
  if (b.cache) j["cache"] = hash_text(*b.cache);
  return j;
}

template <class T>
std::optional<T> optional_value(const nlohmann::json& state, const char* key, const std::filesystem::path& where) {
  return state.contains(key) ? std::optional<T>(state_value<T>(state, key, where)) : std::nullopt;
}

// A checkpoint of before blends has one source, whose sampler stands beside it.
std::vector<SourceState> read_sources(const Checkpoint& c) {
  std::vector<SourceState> sources;
  const auto list = state_value<std::vector<nlohmann::json>>(c.state(), "sources", c.path());
  for (const nlohmann::json& j : list) {
    SourceState s;
    s.path = state_value<std::string>(j, "path", c.path());
    s.samples = state_value<int64_t>(j, "samples", c.path());
    s.tokens = state_value<int64_t>(j, "tokens", c.path());
    const bool old = !j.contains("sampler") && list.size() == 1;
    const auto sampler = state_value<nlohmann::json>(old ? c.state() : j, "sampler", c.path());
    s.sampler.epochs = state_value<int64_t>(sampler, "epochs", c.path());
    s.sampler.separate_last_epoch = state_value<bool>(sampler, "separate_last_epoch", c.path());
    s.epoch_tokens = optional_value<int64_t>(j, "epoch_tokens", c.path());
    s.block_samples = optional_value<int64_t>(j, "block_samples", c.path());
    s.index_cache = optional_hash(j, "index_cache", c.path());
    s.weight = optional_value<double>(j, "weight", c.path());
    sources.push_back(std::move(s));
  }
  return sources;
}

// Where a run computes, as far as that decides its last digits.
std::string device_of(Machine& machine) { return machine.kind() == DeviceKind::cpu ? "CPU" : machine.name(); }

// The algorithms of the products, as texts: 64-bit words in hexadecimal. Null where there is nothing to choose.
nlohmann::json products_json(Machine& machine) {
  const ProductChoices choices = machine.product_choices();
  if (choices.empty()) return nullptr;
  nlohmann::json algorithms = nlohmann::json::object();
  for (const auto& [product, words] : choices) algorithms[product] = fmt::format("{:016x}", fmt::join(words, ""));
  return {{"device", machine.name()}, {"library", machine.product_library()}, {"algorithms", algorithms}};
}

// Length of the amax histories the checkpoint holds, 0 without any.
int64_t saved_history_length(const Checkpoint& c) {
  if (!c.state().contains("fp8")) return 0;
  const auto length = state_value<int64_t>(state_value<nlohmann::json>(c.state(), "fp8", c.path()), "amax_history_len", c.path());
  if (length < 1) throw Error(ExitCode::checkpoint, "the state has an impossible amax history length", c.path().string(), "resume from another checkpoint");
  return length;
}

}  // namespace

SaveGroup save_group(const Mesh& mesh) {
  if (!mesh.all()) return {};
  return {mesh.rank(), mesh.size(), [&mesh](const std::string& mine) { return exchange(*mesh.all(), mine); }, mesh.host()};
}

std::filesystem::path save_run(const std::filesystem::path& checkpoints_dir, int64_t keep_last, Engine& engine, const RunState& s, const nlohmann::json& resolved) {
  std::vector<TensorToSave> tensors;
  const Layout& layout = engine.mesh().layout();
  int64_t number = 0;
  for (const auto& p : engine.model().params()) {
    // Replicas, and ranks of tp with the same part, take the tensors in turn.
    if (number++ % (layout.replicas * p->copies) != layout.replica * p->copies + p->copy) continue;
    const OwnBox own = own_box(*p);
    if (own.shape.elements() == 0) continue;
    const auto add = [&](const char* group, const std::string& tensor, FetchBytes fetch) {
      TensorToSave t{group, tensor, Dtype::f32, own.shape};
      t.fetch = std::move(fetch);
      if (own.shape != p->whole) {
        t.global_shape = p->whole;
        t.offset = own.offset;
      }
      tensors.push_back(std::move(t));
    };
    Machine& machine = engine.machine();
    add("model", p->name, [&machine, &p](const auto& use) { read_master(machine, *p, use); });
    add("optimizer", "exp_avg/" + p->name, [&machine, &p](const auto& use) { read_moment(machine, p->exp_avg, use); });
    add("optimizer", "exp_avg_sq/" + p->name, [&machine, &p](const auto& use) { read_moment(machine, p->exp_avg_sq, use); });
  }
  QuantRegistry& quant = engine.quant();
  nlohmann::json quantized = nlohmann::json::object();
  for (const auto& t : quant.totals()) quantized[fmt::format("{}/{}", name(t.role), name(t.format))] = t.elements;
  nlohmann::json state = {{"code_version", version},
                          {"step", s.step},
                          {"samples", s.samples},
                          {"tokens", s.tokens},
                          {"sources", sources_json(s.sources)},
                          {"blend", blend_json(s.blend)},
                          {"optimizer_updates", engine.updates()},
                          {"skipped_steps", s.skipped_steps},
                          {"nonfinite_elements", s.nonfinite_elements},
                          {"quantized_elements", quantized},
                          {"device", device_of(engine.machine())},
                          {"config", resolved}};
  if (const nlohmann::json products = products_json(engine.machine()); !products.is_null()) state["products"] = products;
  const Mesh& mesh = engine.mesh();
  if (quant.has_state()) {
    state["fp8"] = {{"sites", quant.site_names()}, {"amax_history_len", quant.history_length()}};
    if (mesh.first()) {   // all ranks have the same
      tensors.push_back({"state", "fp8/scale", Dtype::f32, vector_shape(quant.scales().size()), quant.scales().data()});
      tensors.push_back({"state", "fp8/amax_history", Dtype::f32, {quant.sites(), quant.history_length()}, quant.history().data()});
    }
  }
  SaveOptions options;
  options.step = s.step;
  options.keep_last = keep_last;
  return save_checkpoint(checkpoints_dir, options, tensors, state, save_group(mesh));
}

RunState read_state(const Checkpoint& c) {
  RunState s;
  s.step = c.step();
  s.samples = state_value<int64_t>(c.state(), "samples", c.path());
  s.tokens = state_value<int64_t>(c.state(), "tokens", c.path());
  s.skipped_steps = state_value<int64_t>(c.state(), "skipped_steps", c.path());
  s.nonfinite_elements = state_value<int64_t>(c.state(), "nonfinite_elements", c.path());
  s.sources = read_sources(c);
  if (c.state().contains("blend")) {
    const auto blend = state_value<nlohmann::json>(c.state(), "blend", c.path());
    s.blend.samples = state_value<int64_t>(blend, "samples", c.path());
    s.blend.cache = optional_hash(blend, "cache", c.path());
    s.blend.begins_at = optional_value<int64_t>(blend, "begins_at", c.path()).value_or(0);
  }
  bool possible = s.samples >= 0 && s.tokens >= 0 && s.blend.samples >= 0 && s.blend.begins_at >= 0 && s.blend.begins_at <= s.samples && !s.sources.empty();
  for (const SourceState& source : s.sources) possible = possible && source.samples >= 0 && source.tokens >= 0 && source.sampler.epochs >= 1;
  if (!possible) throw Error(ExitCode::checkpoint, "the state has impossible counters", c.path().string(), "resume from another checkpoint");
  return s;
}

namespace {

// A parameter's own rows as the checkpoint has them, without padded rows, which are zero.
void read_own(const Checkpoint& c, const char* group, const std::string& tensor, const Param& p, float* values) {
  const OwnBox own = own_box(p);
  if (own.shape.elements() > 0) c.read_part(group, tensor, Dtype::f32, p.whole, own.offset, own.shape, values);
  std::fill(values + own.shape.elements(), values + p.own_elements(), 0.0f);
}

void read_masters(const Checkpoint& c, Engine& engine) {
  c.check_names("model", expected_model(engine));
  for (const auto& p : engine.model().params()) write_master(engine.machine(), *p, [&](float* w) { read_own(c, "model", p->name, *p, w); });
}

}  // namespace

ProductChoices saved_products(const Checkpoint& c, Machine& machine, std::vector<std::string>& notes) {
  if (!c.state().contains("products") || machine.kind() == DeviceKind::cpu) return {};
  const auto products = state_value<nlohmann::json>(c.state(), "products", c.path());
  const auto device = state_value<std::string>(products, "device", c.path()), library = state_value<std::string>(products, "library", c.path());
  if (device != machine.name() || library != machine.product_library()) {
    notes.push_back(fmt::format("the run multiplied with algorithms of {} on {}, which are not those of {} on {}: they are chosen anew", printable(library), printable(device),
                                machine.product_library(), machine.name()));
    return {};
  }
  ProductChoices choices;
  for (const auto& [product, text] : state_value<std::map<std::string, std::string>>(products, "algorithms", c.path())) {
    auto& words = choices[product];
    for (size_t i = 0; i < words.size(); ++i) {
      const char *first = text.data() + 16 * i, *last = first + 16;
      if (text.size() != 16 * words.size() || std::from_chars(first, last, words[i], 16).ptr != last) {
        throw Error(ExitCode::checkpoint, "the state has an unusable algorithm of a product", c.path().string(), "resume from another checkpoint");
      }
    }
  }
  return choices;
}

void load_weights(const Checkpoint& c, Engine& engine) {
  read_masters(c, engine);
  engine.weights_loaded();
}

std::vector<std::string> restore_run(const Checkpoint& c, Engine& engine) {
  std::vector<std::string> notes;
  c.check_names("optimizer", expected_optimizer(engine));
  read_masters(c, engine);
  for (const auto& p : engine.model().params()) {
    write_moment(engine.machine(), p->exp_avg, [&](float* m) { read_own(c, "optimizer", "exp_avg/" + p->name, *p, m); });
    write_moment(engine.machine(), p->exp_avg_sq, [&](float* v) { read_own(c, "optimizer", "exp_avg_sq/" + p->name, *p, v); });
  }
  const auto device = optional_value<std::string>(c.state(), "device", c.path());
  if (device && *device != device_of(engine.machine())) {
    notes.push_back(fmt::format("the checkpoint was made on {}, this run goes on on {}: losses may differ in their last digits", printable(*device), device_of(engine.machine())));
  }
  engine.set_updates(state_value<int64_t>(c.state(), "optimizer_updates", c.path()));
  QuantRegistry& quant = engine.quant();
  const auto quantized = state_value<std::map<std::string, int64_t>>(c.state(), "quantized_elements", c.path());
  for (const auto& [key, elements] : quantized) {
    if (!quant.add_total(key, elements)) throw Error(ExitCode::checkpoint, fmt::format("the state counts elements of an unknown kind \"{}\"", key), c.path().string(), "resume from another checkpoint");
  }
  if (quant.has_state()) {
    const bool same = saved_history_length(c) == quant.history_length() && state_value<nlohmann::json>(c.state(), "fp8", c.path()).value("sites", nlohmann::json()) == nlohmann::json(quant.site_names());
    if (same) {
      std::vector<float> scales(quant.scales().size()), history(quant.history().size());
      c.read("state", "fp8/scale", Dtype::f32, vector_shape(scales.size()), scales.data());
      c.read("state", "fp8/amax_history", Dtype::f32, {quant.sites(), quant.history_length()}, history.data());
      quant.restore(scales, history);
    } else {
      notes.push_back("the checkpoint has no amax history of this recipe and length: delayed and static scales start anew");
    }
  } else if (c.state().contains("fp8")) {
    notes.push_back("this recipe keeps no amax history: the checkpoint's is dropped");
  }
  engine.weights_loaded(c.step());
  return notes;
}

}  // namespace octet
