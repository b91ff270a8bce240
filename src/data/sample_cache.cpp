#include "data/sample_cache.h"

#include <fmt/format.h>

#include "core/check.h"

namespace octet::data {
namespace {
const char* const other_run = "it belongs to other token files, another split or sequence length; give the right cache or leave it out";

NpyHeader array_of(const ByteReader& reader, size_t dimensions, std::initializer_list<std::string_view> types) {
  NpyHeader header = parse_npy_header(reader);
  if (header.shape.size() != dimensions || (dimensions == 2 && header.shape[1] != 2)) {
    refuse_file(reader.name, fmt::format("has the shape ({})", fmt::join(header.shape, ", ")), "give the files of one Megatron cache");
  }
  if (std::find(types.begin(), types.end(), header.descr) == types.end()) {
    refuse_file(reader.name, fmt::format("has the type {}", header.descr), "give the files of one Megatron cache");
  }
  return header;
}

std::vector<int32_t> read_documents(const ByteReader& reader, int64_t begin, int64_t end) {
  const NpyHeader header = array_of(reader, 1, {"<i4"});
  if (header.elements == 0 || header.elements % (end - begin) != 0) {
    refuse_file(reader.name, fmt::format("has {} documents, no multiple of the {} in the split", header.elements, end - begin), other_run);
  }
  const int64_t epochs = header.elements / (end - begin);
  std::vector<int32_t> documents;
  std::vector<int64_t> seen(static_cast<size_t>(end - begin));
  documents.reserve(static_cast<size_t>(header.elements));
  each_npy_value(reader, header, [&](int64_t i, int64_t d) {
    if (d < begin || d >= end || ++seen[static_cast<size_t>(d - begin)] > epochs) {
      refuse_file(reader.name, fmt::format("entry {} is document {}, which is outside the split [{}, {}) or there more often than others", i, d, begin, end),
          other_run);
    }
    documents.push_back(static_cast<int32_t>(d));
  });
  return documents;
}

std::vector<uint32_t> read_shuffle(const ByteReader& reader, int64_t windows) {
  const NpyHeader header = array_of(reader, 1, {"<u4", "<i8"});
  if (header.elements != windows) refuse_file(reader.name, fmt::format("has {} samples, but the stream of tokens has {}", header.elements, windows), other_run);
  std::vector<uint32_t> shuffle;
  std::vector<bool> seen(static_cast<size_t>(windows));
  shuffle.reserve(static_cast<size_t>(windows));
  each_npy_value(reader, header, [&](int64_t i, int64_t w) {
    if (w < 0 || w >= windows || seen[static_cast<size_t>(w)]) {
      refuse_file(reader.name, fmt::format("entry {} is sample {}, which is outside [0, {}) or there twice", i, w, windows), other_run);
    }
    seen[static_cast<size_t>(w)] = true;
    shuffle.push_back(static_cast<uint32_t>(w));
  });
  return shuffle;
}

File open_part(const std::string& prefix, const char* part) {
  return File::open_for_read(prefix + part, ExitCode::data, "give the cache's path up to and without '-document_index.npy' or '-dataset_index.npy'");
}
}  // namespace

SampleIndices parse_sample_cache(const ByteReader& documents, const ByteReader& starts, const ByteReader& shuffle, const TokenSource& set,
    int64_t begin_sequence, int64_t end_sequence, int64_t seq_len, bool partial) {
  OCTET_CHECK(begin_sequence < end_sequence && seq_len >= 1, "sequences [{}, {}), seq_len {}", begin_sequence, end_sequence, seq_len);
  SampleIndices out;
  out.documents = read_documents(documents, begin_sequence, end_sequence);
  const int64_t epochs = static_cast<int64_t>(out.documents.size()) / (end_sequence - begin_sequence);
  const int64_t epoch_tokens = set.start(end_sequence) - set.start(begin_sequence);
  int64_t stream = 0;
  if (__builtin_mul_overflow(epochs, epoch_tokens, &stream) || stream < 2) {
    refuse_file(documents.name, fmt::format("makes a stream of {} epochs of {} tokens", epochs, epoch_tokens), other_run);
  }
  const int64_t windows = (stream - 1) / seq_len + (partial && (stream - 1) % seq_len != 0);
  const NpyHeader header = array_of(starts, 2, {"<i4", "<i8"});
  if (header.shape[0] != windows + 1 || windows > (int64_t{1} << 32) - 3) {
    refuse_file(starts.name, fmt::format("has {} entries, but the stream of tokens has {} samples of {} tokens", header.shape[0], windows, seq_len), other_run);
  }
  out.starts = window_starts(set, out.documents, seq_len, windows);
  each_npy_value(starts, header, [&](int64_t i, int64_t value) {
    const auto& expected = out.starts[static_cast<size_t>(i / 2)];
    if (value == (i % 2 == 0 ? static_cast<int64_t>(expected.document) : expected.offset)) return;
    refuse_file(starts.name, fmt::format("sample {} begins elsewhere than {} tokens behind the one before it", i / 2, seq_len), other_run);
  });
  out.shuffle = read_shuffle(shuffle, windows);
  return out;
}

SampleIndices read_sample_cache(const std::string& prefix, const TokenSource& set, int64_t begin_sequence, int64_t end_sequence, int64_t seq_len,
    bool partial) {
  const File documents = open_part(prefix, "-document_index.npy"), starts = open_part(prefix, "-sample_index.npy");
  const File shuffle = open_part(prefix, "-shuffle_index.npy");
  return parse_sample_cache(ByteReader::of(documents), ByteReader::of(starts), ByteReader::of(shuffle), set, begin_sequence, end_sequence, seq_len,
      partial);
}

std::vector<int16_t> parse_blend_cache(const ByteReader& sources_of, const ByteReader& samples_of, int64_t sources) {
  const NpyHeader header = array_of(sources_of, 1, {"<i2"}), samples = array_of(samples_of, 1, {"<i8"});
  if (header.elements != samples.elements || header.elements == 0) {
    refuse_file(samples_of.name, fmt::format("has {} samples, the dataset index has {}", samples.elements, header.elements),
        "give the files of one Megatron cache");
  }
  std::vector<int16_t> out;
  out.reserve(static_cast<size_t>(header.elements));
  each_npy_value(sources_of, header, [&](int64_t i, int64_t source) {
    if (source < 0 || source >= sources) {
      refuse_file(sources_of.name, fmt::format("sample {} is of source {}, but data.train has {}", i, source, sources),
          "list the sources of the cached blend, in its order");
    }
    out.push_back(static_cast<int16_t>(source));
  });
  std::vector<int64_t> taken(static_cast<size_t>(sources));
  each_npy_value(samples_of, samples, [&](int64_t i, int64_t sample) {
    if (sample == taken[static_cast<size_t>(out[static_cast<size_t>(i)])]++) return;
    refuse_file(samples_of.name, fmt::format("sample {} of the blend is not the next of its source", i), "give the files of one Megatron cache");
  });
  return out;
}

std::vector<int16_t> read_blend_cache(const std::string& prefix, int64_t sources) {
  const File sources_of = open_part(prefix, "-dataset_index.npy"), samples_of = open_part(prefix, "-dataset_sample_index.npy");
  return parse_blend_cache(ByteReader::of(sources_of), ByteReader::of(samples_of), sources);
}

}  // namespace octet::data
