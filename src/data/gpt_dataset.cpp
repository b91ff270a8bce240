#include "data/gpt_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/philox.h"
#include "data/mt19937_numpy.h"

namespace octet::data {
namespace {
constexpr int64_t most_entries = (int64_t{1} << 32) - 3;  // of an index; NumPy's uint32 rule, and no shuffle draw needs two words

[[noreturn]] void bad_split(const std::string& split, const std::string& what) {
  throw Error(ExitCode::config, fmt::format("'{}' {}", split, what), "data.split",
      "give up to three shares for train, valid and test, e.g. \"99,1,0\"");
}

std::vector<double> parse_shares(const std::string& split) {
  std::vector<double> shares;
  const auto is_number = [](char c) { return (c >= '0' && c <= '9') || c == '.'; };
  for (size_t i = 0; i < split.size();) {
    if (!is_number(split[i])) {
      if (std::string_view(", :/\t").find(split[i]) == std::string_view::npos) bad_split(split, fmt::format("has the character '{}'", split[i]));
      ++i;
      continue;
    }
    size_t end = i;
    while (end < split.size() && is_number(split[end])) ++end;
    double share = 0;
    const auto [stop, error] = std::from_chars(split.data() + i, split.data() + end, share, std::chars_format::fixed);
    if (error != std::errc() || stop != split.data() + end) bad_split(split, fmt::format("has the malformed number '{}'", split.substr(i, end - i)));
    shares.push_back(share);
    i = end;
  }
  return shares;
}

// Fills `documents` with the split's sequences, `epochs` times over, and shuffles them as one.
void append_shuffled_epochs(std::vector<int32_t>& documents, int64_t begin, int64_t end, int64_t epochs, NumpyRandomState& random) {
  const size_t first = documents.size();
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (int64_t sequence = begin; sequence < end; ++sequence) documents.push_back(static_cast<int32_t>(sequence));
  }
  random.shuffle(std::span<int32_t>(documents).subspan(first));
}
}  // namespace

std::array<int64_t, 4> split_bounds(const std::string& split, int64_t n) {
  std::vector<double> shares = parse_shares(split);
  if (shares.empty()) bad_split(split, "has no number");
  if (shares.size() > 3) bad_split(split, fmt::format("has {} numbers", shares.size()));
  shares.resize(3, 0.0);
  const double sum = shares[0] + shares[1] + shares[2];
  if (!(sum > 0) || !std::isfinite(sum)) bad_split(split, fmt::format("has shares that sum to {}", sum));
  std::array<int64_t, 4> bounds{};
  double cumulated = 0;
  for (size_t part = 0; part < 3; ++part) {
    cumulated += shares[part] / sum;
    bounds[part + 1] = std::min(n, static_cast<int64_t>(std::nearbyint(cumulated * static_cast<double>(n))));
  }
  return bounds;
}

SamplerPin sampler_pin(int64_t tokens_per_epoch, int64_t seq_len, std::optional<int64_t> samples) {
  SamplerPin pin;
  if (!samples) return pin;
  int64_t wanted = 0;
  if (__builtin_mul_overflow(*samples, seq_len, &wanted) || wanted == std::numeric_limits<int64_t>::max()) {
    throw Error(ExitCode::data, fmt::format("{} samples of {} tokens exceed 2^63 tokens", *samples, seq_len), "", "ask for fewer steps");
  }
  ++wanted;
  pin.epochs = std::max<int64_t>(1, wanted / tokens_per_epoch + (wanted % tokens_per_epoch != 0));
  if (pin.epochs > 1) {
    const int64_t sans_last = ((pin.epochs - 1) * tokens_per_epoch - 1) / seq_len;  // (epochs - 1) * tokens < wanted: no overflow
    const int64_t from_last = *samples - sans_last, per_epoch = (tokens_per_epoch - 1) / seq_len;
    pin.separate_last_epoch = from_last < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
  }
  return pin;
}

std::vector<SampleIndices::Start> window_starts(const TokenSource& set, const std::vector<int32_t>& documents, int64_t seq_len, int64_t windows) {
  std::vector<SampleIndices::Start> starts;
  starts.reserve(static_cast<size_t>(windows) + 1);
  uint32_t document = 0;
  int64_t offset = 0;
  starts.push_back({0, 0});
  for (int64_t window = 0; window < windows; ++window) {
    offset += seq_len;
    for (int64_t length = set.length(documents[document]); offset >= length; length = set.length(documents[document])) {
      if (document + 1 == documents.size()) {  // a partial window: the stream's last token, as in Megatron
        offset = length - 1;
        break;
      }
      offset -= length;
      ++document;
    }
    starts.push_back({document, static_cast<int32_t>(offset)});
  }
  return starts;
}

SampleIndices build_sample_indices(const TokenSource& set, int64_t begin_sequence, int64_t end_sequence, int64_t seq_len, SamplerPin pin,
    uint32_t seed, bool partial) {
  SampleIndices out;
  NumpyRandomState random(seed);
  const int64_t epoch_tokens = set.start(end_sequence) - set.start(begin_sequence), last_token = pin.epochs * epoch_tokens - 1;
  const int64_t windows = last_token / seq_len + (partial && last_token % seq_len != 0);
  out.documents.reserve(static_cast<size_t>(pin.epochs * (end_sequence - begin_sequence)));
  const int64_t last = pin.separate_last_epoch ? 1 : 0;
  append_shuffled_epochs(out.documents, begin_sequence, end_sequence, pin.epochs - last, random);
  if (last == 1) append_shuffled_epochs(out.documents, begin_sequence, end_sequence, 1, random);

  out.starts = window_starts(set, out.documents, seq_len, windows);

  out.shuffle.resize(static_cast<size_t>(windows));
  for (size_t i = 0; i < out.shuffle.size(); ++i) out.shuffle[i] = static_cast<uint32_t>(i);
  const std::span<uint32_t> all(out.shuffle);
  const size_t joint = pin.separate_last_epoch ? static_cast<size_t>(((pin.epochs - 1) * epoch_tokens - 1) / seq_len) : all.size();
  random.shuffle(all.first(joint));
  random.shuffle(all.subspan(joint));
  return out;
}

GptDataset::GptDataset(const TokenSource& set, int64_t begin_sequence, int64_t end_sequence, int64_t seq_len, std::optional<int64_t> samples,
    uint64_t seed, std::optional<SamplerPin> pin, std::string label, bool partial)
    : set_(&set), begin_(begin_sequence), end_(end_sequence), seq_len_(seq_len), seed_(seed), label_(std::move(label)), partial_(partial) {
  OCTET_CHECK(0 <= begin_ && begin_ <= end_ && end_ <= set.sequences(), "sequences [{}, {}) of {}", begin_, end_, set.sequences());
  OCTET_CHECK(seq_len_ >= 1 && seq_len_ < std::numeric_limits<int32_t>::max(), "sequence length {}", seq_len_);
  OCTET_CHECK(!samples || *samples >= 0, "{} samples", *samples);
  if (seed_ > 0xffffffffull) {
    throw Error(ExitCode::config, fmt::format("the seed {} of the sample order is not below 2^32", seed_), "data.seed",
        "set data.seed or run.seed to a smaller number");
  }
  epoch_tokens_ = set.start(end_) - set.start(begin_);
  if (begin_ == end_) {
    throw Error(ExitCode::data, fmt::format("the {} split is empty: it has 0 of the {} sequences", label_, set.sequences()), set.prefix(),
                "change data.split or give a corpus of more documents");
  }
  if (const int64_t least = partial_ ? 2 : seq_len_ + 1; epoch_tokens_ < least) {
    throw Error(ExitCode::data, fmt::format("the {} split has {} tokens, but one sample of seq_len {} needs {}", label_, epoch_tokens_, seq_len_,
        least), set.prefix(),
                "use a larger corpus, another data.split or a smaller data.seq_len");
  }
  pin_ = pin ? *pin : sampler_pin(epoch_tokens_, seq_len_, samples);
  int64_t stream = 0, documents = 0;
  const bool fits = pin_.epochs >= 1 && !__builtin_mul_overflow(pin_.epochs, epoch_tokens_, &stream)
      && !__builtin_mul_overflow(pin_.epochs, end_ - begin_, &documents);
  if (!fits || (stream - 1) / seq_len_ > most_entries || documents > most_entries || end_ > std::numeric_limits<int32_t>::max()) {
    throw Error(ExitCode::data, fmt::format("{} epochs of the {} split's {} tokens in {} sequences are too many for the sample index (2^32 entries)",
        pin_.epochs, label_,
                                            epoch_tokens_, end_ - begin_),
                set.prefix(), "ask for fewer steps, or use a larger data.seq_len");
  }
  if (pin_.separate_last_epoch && pin_.epochs < 2) {
    throw Error(ExitCode::data, "a sampler of one epoch cannot have a separate last epoch", set.prefix(),
        "the saved sampler state is corrupt; use another checkpoint");
  }
  block_samples_ = windows_of(stream);
}

void GptDataset::take_order(SampleIndices indices) {
  OCTET_CHECK(static_cast<int64_t>(indices.documents.size()) % (end_ - begin_) == 0, "{} documents of a split of {}", indices.documents.size(), end_ - begin_);
  pin_ = {static_cast<int64_t>(indices.documents.size()) / (end_ - begin_), false};
  block_samples_ = static_cast<int64_t>(indices.shuffle.size());
  const auto view = [](const auto& v) { return std::string_view(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(v[0])); };
  fingerprint_ = fnv1a64(view(indices.documents)) ^ (fnv1a64(view(indices.shuffle)) * 3);
  taken_ = std::make_shared<const SampleIndices>(std::move(indices));
}

GptDataset::Block GptDataset::block(int64_t number) const {
  if (taken_) {
    if (number == 0) return taken_;
    throw Error(ExitCode::data, fmt::format("the sample order taken over from an index cache has {} samples; the run wants more", block_samples_),
        set_->prefix(), "make the cache for a longer run, or leave out index_cache");
  }
  const std::lock_guard lock(mutex_);
  if (held_[0].number == number) return held_[0].indices;
  std::swap(held_[0], held_[1]);
  if (held_[0].number == number) return held_[0].indices;
  held_[0] = {};  // released before the next one is built
  held_[0].indices = std::make_shared<const SampleIndices>(build_sample_indices(*set_, begin_, end_, seq_len_, pin_,
      static_cast<uint32_t>(seed_ + static_cast<uint64_t>(number)), partial_));
  held_[0].number = number;
  return held_[0].indices;
}

template <class Visit>
void GptDataset::each_segment(const SampleIndices& indices, int64_t i, Visit&& visit) const {
  const auto start = indices.starts[indices.shuffle[static_cast<size_t>(i % block_samples_)]];
  size_t place = start.document;
  int64_t offset = start.offset;
  for (int64_t left = seq_len_ + 1; left > 0 && place < indices.documents.size(); ++place) {
    const int64_t sequence = indices.documents[place];
    const int64_t count = std::min(left, set_->length(sequence) - offset);
    if (count > 0) visit(Segment{sequence, offset, count});
    left -= count;
    offset = 0;
  }
}

int64_t GptDataset::sample(int64_t i, int32_t* tokens) const {
  OCTET_CHECK(i >= 0, "sample {}", i);
  const Block indices = block(i / block_samples_);
  int64_t count = 0;
  each_segment(*indices, i, [&](const Segment& segment) {
    set_->read(segment.sequence, segment.offset, segment.count, tokens + count);
    count += segment.count;
  });
  return count;
}

int64_t GptDataset::sample_id(int64_t i) const {
  OCTET_CHECK(i >= 0, "sample {}", i);
  const int64_t number = i / block_samples_;
  return number * block_samples_ + block(number)->shuffle[static_cast<size_t>(i % block_samples_)];
}

std::vector<GptDataset::Segment> GptDataset::segments(int64_t i) const {
  OCTET_CHECK(i >= 0, "sample {}", i);
  const Block indices = block(i / block_samples_);
  std::vector<Segment> all;
  each_segment(*indices, i, [&](const Segment& segment) { all.push_back(segment); });
  return all;
}

int64_t GptDataset::file_order_sample(int64_t w, int32_t* tokens) const {
  OCTET_CHECK(w >= 0 && w < file_order_size(), "window {} of {}", w, file_order_size());
  const int64_t count = std::min(seq_len_ + 1, epoch_tokens_ - w * seq_len_);
  set_->read_flat(file_order_position(w), count, tokens);
  return count;
}

}  // namespace octet::data
