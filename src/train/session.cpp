#include "train/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/philox.h"
#include "data/sample_cache.h"
#include "data/token_meta.h"

namespace octet {
namespace {
constexpr int64_t full_check_tokens = int64_t{1} << 28;  // about a second of reading

[[noreturn]] void other_data(const std::string& where, const std::string& what) {
  throw Error(ExitCode::config, what, where, "keep the run's data, or start a new run with --init-from");
}

bool weighted(const DataConfig& d) { return d.train.front().weight.has_value(); }

std::vector<double> weights_of(const DataConfig& d) {
  std::vector<double> weights;
  for (const DataSource& s : d.train) weights.push_back(s.weight.value_or(0));
  return weights;
}

uint64_t seed_of(const RunConfig& c) { return static_cast<uint64_t>(c.data.seed.value_or(static_cast<int64_t>(c.run.seed))); }

std::string where_of(size_t source) { return fmt::format("data.train.{}", source); }
}  // namespace

DataSession::DataSession(const RunConfig& c, const std::vector<SourceState>* saved, const BlendState* saved_blend, int64_t consumed) {
  options_.micro = c.batch.micro;
  options_.global = c.batch.global;
  options_.seq_len = c.data.seq_len;
  options_.vocab_size = c.model.vocab_size;
  options_.eod_id = c.data.eod_id;
  options_.eod_mask_loss = c.data.eod_mask_loss;
  options_.document_mask = c.data.document_mask;
  options_.reset_position_ids = c.data.reset_position_ids;
  if (c.data.pad_id) options_.pad_id = static_cast<int32_t>(*c.data.pad_id);
  prefetch_ = c.data.prefetch;
  // As many threads as micro-batches read ahead hide reads that each take several times a step's share of the time.
  constexpr int64_t most_readers = 16;
  options_.readers = std::clamp<int64_t>(c.data.prefetch, 1, most_readers);

  blend_state_.samples = saved_blend && saved_blend->samples > 0 ? saved_blend->samples : c.run.steps * c.batch.global;
  blend_state_.begins_at = saved_blend ? saved_blend->begins_at : 0;
  open_train(c, saved);
  make_order(c);
  if (saved) check_saved(c, *saved, saved_blend ? *saved_blend : BlendState{});
  check_order(std::max(consumed, c.run.steps * c.batch.global) - blend_state_.begins_at);
  if (saved) {
    data::BlendOrder order = *order_;
    order.skip_to(consumed - blend_state_.begins_at);
    for (size_t k = 0; k < states_.size(); ++k) {
      if (order.taken()[k] != (*saved)[k].samples) {
        other_data(where_of(k), fmt::format("the checkpoint has read {} samples of it, but the order of the blend says {}", (*saved)[k].samples, order.taken()[k]));
      }
      states_[k].samples = (*saved)[k].samples;
      states_[k].tokens = (*saved)[k].tokens;
    }
  }
  if (c.eval.interval > 0) make_validation(c);
  else if (!c.data.valid.empty()) notes_.push_back("data.valid is not used: eval.interval is 0");
}

const data::TokenSource& DataSession::open(const std::string& path, const std::string& format, const RunConfig& c) {
  check_meta(path, c);
  files_.push_back(std::make_unique<data::TokenSource>(data::TokenSource::open(path, data::token_format(format), c.data.eod_id)));
  if (files_.back()->tokens() <= full_check_tokens) files_.back()->check_tokens(c.model.vocab_size);
  return *files_.back();
}

// What `octet data build` wrote beside the token files; files from elsewhere, and patterns of several files, have none.
void DataSession::check_meta(const std::string& path, const RunConfig& c) {
  const auto meta = data::read_token_meta(path);
  if (!meta) return;
  if (meta->vocab_size > c.model.vocab_size) {
    throw Error(ExitCode::config, fmt::format("is {}, but {} was made by a tokenizer of {} ids", c.model.vocab_size, path, meta->vocab_size), "model.vocab_size",
                fmt::format("set it to {} or more, or choose other data", meta->vocab_size));
  }
  const bool uses_eod = c.data.eod_mask_loss || c.data.document_mask || c.data.reset_position_ids;
  if (uses_eod && meta->eod_id && *meta->eod_id != c.data.eod_id) {
    throw Error(ExitCode::config, fmt::format("is {}, but documents of {} end with {}", c.data.eod_id, path, *meta->eod_id), "data.eod_id", fmt::format("set it to {}", *meta->eod_id));
  }
  if (!tokenizer_) {
    tokenizer_ = {path, meta->tokenizer_xxh64};
  } else if (tokenizer_->second != meta->tokenizer_xxh64) {
    throw Error(ExitCode::config, fmt::format("{} and {} were made by different tokenizers", tokenizer_->first, path), "data", "build them with the same one");
  }
}

void DataSession::open_train(const RunConfig& c, const std::vector<SourceState>* saved) {
  const DataConfig& d = c.data;
  if (saved && saved->size() != d.train.size()) {
    other_data("data.train", fmt::format("has {} sources, the checkpoint's run {}", d.train.size(), saved->size()));
  }
  const bool blend = d.train.size() > 1, partial = d.partial_samples == "pad";
  std::vector<double> weights;
  if (blend && weighted(d)) weights = data::normalised_weights(weights_of(d));
  for (size_t k = 0; k < d.train.size(); ++k) {
    const DataSource& source = d.train[k];
    const data::TokenSource& set = open(source.path, source.format, c);
    const auto bounds = data::split_bounds(d.split, set.sequences());
    // Megatron: one source for the whole run, a weighted one for its share and a surplus, an unweighted one for one epoch.
    std::optional<int64_t> samples;
    if (!blend) samples = blend_state_.samples;
    else if (!weights.empty()) samples = data::built_samples(weights[k], blend_state_.samples);
    std::optional<data::SamplerPin> pin;
    if (saved) pin = (*saved)[k].sampler;
    train_.push_back(std::make_unique<data::GptDataset>(set, bounds[0], bounds[1], d.seq_len, samples, seed_of(c), pin, "train", partial));
    data::GptDataset& train = *train_.back();
    if (!source.index_cache.empty()) train.take_order(data::read_sample_cache(source.index_cache, set, bounds[0], bounds[1], d.seq_len, partial));
    SourceState state;
    state.path = source.path;
    state.sampler = train.pin();
    state.epoch_tokens = train.tokens_per_epoch();
    state.block_samples = train.size();
    if (!source.index_cache.empty()) state.index_cache = train.order_fingerprint();
    state.weight = source.weight;
    states_.push_back(std::move(state));
  }
}

void DataSession::make_order(const RunConfig& c) {
  const DataConfig& d = c.data;
  const auto n = static_cast<int64_t>(train_.size());
  std::vector<int64_t> sizes;
  int64_t all = 0;
  for (const auto& t : train_) {
    sizes.push_back(t->size());
    all += t->size();
  }
  shares_ = weighted(d) ? data::normalised_weights(weights_of(d)) : std::vector<double>();
  if (!weighted(d)) {
    for (int64_t size : sizes) shares_.push_back(static_cast<double>(size) / static_cast<double>(all));
  }
  if (!d.blend_cache.empty()) {
    std::vector<int16_t> source_of = data::read_blend_cache(d.blend_cache, n);
    blend_state_.cache = fnv1a64({reinterpret_cast<const char*>(source_of.data()), source_of.size() * sizeof(int16_t)});
    order_ = data::BlendOrder::recorded(std::move(source_of), n);
  } else if (n == 1) {
    order_ = data::BlendOrder::weighted({1.0});
  } else {
    order_ = weighted(d) ? data::BlendOrder::weighted(weights_of(d)) : data::BlendOrder::exhaustive(std::move(sizes));
  }
}

void DataSession::check_saved(const RunConfig& c, const std::vector<SourceState>& saved, const BlendState& saved_blend) const {
  const bool blend = saved.size() > 1;
  for (size_t k = 0; k < saved.size(); ++k) {
    const SourceState &was = saved[k], &is = states_[k];
    if (was.epoch_tokens && *was.epoch_tokens != *is.epoch_tokens) {
      other_data(is.path, fmt::format("its training split has {} tokens, it had {} when the checkpoint was made", *is.epoch_tokens, *was.epoch_tokens));
    }
    if (was.block_samples && (was.index_cache != is.index_cache || *was.block_samples != *is.block_samples)) {
      other_data(where_of(k), "its sample order is another than the checkpoint's (partial_samples or index_cache)");
    }
    if (blend && was.weight != is.weight) {
      const auto text = [](const std::optional<double>& w) { return w ? fmt::format("{}", *w) : std::string("absent"); };
      other_data(where_of(k) + ".weight", fmt::format("is {}, but the run was started with {}", text(is.weight), text(was.weight)));
    }
  }
  if (saved_blend.cache != blend_state_.cache) {
    other_data(c.data.blend_cache.empty() ? "data.blend_cache" : c.data.blend_cache, "the blend's order is another than the checkpoint's");
  }
}

// Own orders never end. Those that were taken over must hold the whole run, which is found here and not in its middle.
void DataSession::check_order(int64_t samples) const {
  if (!blend_state_.cache && std::none_of(states_.begin(), states_.end(), [](const SourceState& s) { return s.index_cache.has_value(); })) return;
  data::BlendOrder order = *order_;
  if (order.ends_at() >= 0 && order.ends_at() < samples) {
    throw Error(ExitCode::data, fmt::format("the blend cache has {} samples, the run needs {}: {} are missing", order.ends_at(), samples, samples - order.ends_at()),
                "data.blend_cache", "make the cache for a longer run, lower run.steps, or leave out blend_cache");
  }
  order.skip_to(samples);
  for (size_t k = 0; k < states_.size(); ++k) {
    const int64_t needed = order.taken()[k], size = train_[k]->size();
    if (!states_[k].index_cache || needed <= size) continue;
    throw Error(ExitCode::data, fmt::format("its index cache has {} samples, the run needs {}: {} are missing", size, needed, needed - size), states_[k].path,
                "make the cache for a longer run, lower run.steps, or leave out index_cache");
  }
}

void DataSession::make_validation(const RunConfig& c) {
  const bool partial = c.data.partial_samples == "pad";
  const auto split = [&](const data::TokenSource& set, int64_t begin, int64_t end, const std::string& label) {
    return std::make_unique<data::GptDataset>(set, begin, end, c.data.seq_len, std::nullopt, seed_of(c), std::nullopt, label, partial);
  };
  for (const ValidSource& v : c.data.valid) {
    const data::TokenSource& set = open(v.path, v.format, c);
    const auto all = split(set, 0, set.sequences(), v.name);
    validation_.push_back({v.name, data::fixed_batches(*all, c.eval.samples, options_)});
  }
  if (!c.data.valid.empty()) return;
  std::vector<std::unique_ptr<data::GptDataset>> splits;
  std::vector<const data::GptDataset*> views;
  std::vector<double> weights;
  for (size_t k = 0; k < train_.size(); ++k) {
    const data::TokenSource& set = train_[k]->set();
    const auto bounds = data::split_bounds(c.data.split, set.sequences());
    const int64_t tokens = set.start(bounds[2]) - set.start(bounds[1]), least = partial ? 2 : c.data.seq_len + 1;
    if (train_.size() > 1 && tokens < least) {
      notes_.push_back(fmt::format("{}: its valid split has {} tokens, less than a sample: validation leaves it out", states_[k].path, tokens));
      if (k + 1 < train_.size() || !splits.empty()) continue;  // the last one says so when there is none at all
    }
    splits.push_back(split(set, bounds[1], bounds[2], "valid"));
    views.push_back(splits.back().get());
    if (weighted(c.data)) weights.push_back(*c.data.train[k].weight);
  }
  validation_.push_back({"valid", data::window_batches(data::blended_windows(views, weights, c.eval.samples), options_)});
}

std::unique_ptr<data::StepLoader> DataSession::loader(int64_t first_sample, data::SampleReader reader, int64_t rank, int64_t ranks) const {
  data::LoaderOptions o = options_;
  o.rank = rank;
  o.ranks = ranks;
  // The ring holds whole steps.
  const int64_t micro_batches = o.global / o.micro / ranks;
  o.prefetch_steps = (prefetch_ + micro_batches - 1) / micro_batches;
  o.first_sample = first_sample - blend_state_.begins_at;
  std::vector<const data::GptDataset*> sources;
  for (const auto& t : train_) sources.push_back(t.get());
  return std::make_unique<data::StepLoader>(std::move(sources), *order_, o, std::move(reader));
}

}  // namespace octet
