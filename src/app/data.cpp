#include "app/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cxxopts.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/data_build.h"
#include "app/data_words.h"
#include "config/nearest.h"
#include "core/error.h"
#include "data/gpt_dataset.h"
#include "data/statistics.h"
#include "data/token_source.h"
#include "data/tokenizer.h"

namespace octet {
namespace {
using data::TokenSource;
using namespace data_words;

// Options of the commands that read token files.
void add_source_options(cxxopts::Options& options) {
  options.add_options()("format", "auto, megatron, llmc, datatrove, raw_u16 or raw_u32", cxxopts::value<std::string>()->default_value("auto"), "FORMAT")(
      "eod-id", "id that ends documents, for formats that do not say where they end", cxxopts::value<std::string>()->default_value("256"), "N")(
      "prefix", "path without .idx/.bin, a file of another format, or a quoted pattern with * and ?", cxxopts::value<std::string>(), "PREFIX");
  options.parse_positional({"prefix"});
  options.positional_help("PREFIX");
}

TokenSource open_source(const cxxopts::ParseResult& words, const std::string& command) {
  const std::string path = required(words, command, "prefix", "PREFIX");
  return TokenSource::open(path, data::token_format(words["format"].as<std::string>()), integer(words, "eod-id", 0, int64_t{1} << 31));
}

nlohmann::ordered_json describe(const TokenSource& set) {
  const data::TokenHistogram histogram = data::token_histogram(set);
  int64_t shortest = set.sequences() > 0 ? set.length(0) : 0, longest = shortest;
  for (int64_t i = 0; i < set.sequences(); ++i) {
    shortest = std::min(shortest, set.length(i));
    longest = std::max(longest, set.length(i));
  }
  auto frequent = histogram.counts;
  const size_t top = std::min<size_t>(10, frequent.size());
  std::partial_sort(frequent.begin(), frequent.begin() + static_cast<std::ptrdiff_t>(top), frequent.end(),
                    [](const auto& a, const auto& b) { return a.second != b.second ? a.second > b.second : a.first < b.first; });
  nlohmann::ordered_json info;
  info["prefix"] = set.prefix();
  info["format"] = data::name(set.format());
  info["files"] = set.files();
  info["dtype"] = data::name(set.type());
  info["documents"] = set.documents();
  info["sequences"] = set.sequences();
  info["tokens"] = set.tokens();
  info["bin_bytes"] = set.token_bytes();
  info["shortest_sequence"] = shortest;
  info["longest_sequence"] = longest;
  info["distinct_ids"] = histogram.counts.size();
  info["min_id"] = histogram.counts.empty() ? -1 : histogram.counts.front().first;
  info["max_id"] = histogram.counts.empty() ? -1 : histogram.counts.back().first;
  info["unigram_entropy"] = data::unigram_entropy(histogram);
  info["most_frequent"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < top; ++i) info["most_frequent"].push_back({{"id", frequent[i].first}, {"count", frequent[i].second}});
  return info;
}

int run_info(int argc, char** argv) {
  cxxopts::Options options("octet data info", "Prints counts, token histogram and unigram entropy (nats/token) of token files.\n");
  options.add_options()("json", "print one JSON object instead");
  add_source_options(options);
  const auto words = parse(options, "info", argc, argv);
  if (!words) return 0;
  const TokenSource set = open_source(*words, "info");
  const nlohmann::ordered_json info = describe(set);
  if (words->count("json")) {
    fmt::print("{}\n", info.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return 0;
  }
  const double tokens = std::max(1.0, static_cast<double>(set.tokens()));
  fmt::print("documents        {}\nsequences        {} of {} to {} tokens, mean {:.1f}\n", set.documents(), set.sequences(),
      info["shortest_sequence"].get<int64_t>(),
             info["longest_sequence"].get<int64_t>(), static_cast<double>(set.tokens()) / std::max(1.0, static_cast<double>(set.sequences())));
  fmt::print("tokens           {} of {}, {} bytes\n", set.tokens(), data::name(set.type()), info["bin_bytes"].get<int64_t>());
  fmt::print("ids              {} distinct, {} to {}\n", info["distinct_ids"].get<int64_t>(), info["min_id"].get<int64_t>(),
      info["max_id"].get<int64_t>());
  fmt::print("unigram entropy  {:.6f} nats/token\nmost frequent   ", info["unigram_entropy"].get<double>());
  for (const auto& entry : info["most_frequent"]) {
    fmt::print(" {} ({:.2f} %)", entry["id"].get<int64_t>(), 100.0 * static_cast<double>(entry["count"].get<int64_t>()) / tokens);
  }
  fmt::print("\n");
  return 0;
}

int run_verify(int argc, char** argv) {
  cxxopts::Options options("octet data verify",
                           "Checks token files: header, lengths, pointers, documents, sizes, and with --vocab-size every token.\n"
                           "Exit code 0 when all is well, 11 with one line that says what is not.\n");
  options.add_options()("vocab-size", "ids must be below N", cxxopts::value<std::string>(), "N");
  add_source_options(options);
  const auto words = parse(options, "verify", argc, argv);
  if (!words) return 0;
  const std::string prefix = required(*words, "verify", "prefix", "PREFIX");
  const int64_t vocab_size = words->count("vocab-size") ? integer(*words, "vocab-size", 1, int64_t{1} << 31) : 0;
  const TokenSource set = open_source(*words, "verify");
  // Without a vocabulary the ids must still be ids: not negative, and int32 as the trainer holds them.
  set.check_tokens(vocab_size > 0 ? vocab_size : int64_t{1} << 31);
  fmt::print("{}: good; {} documents, {} tokens of {}, largest id {}{}\n", prefix, set.documents(), set.tokens(), data::name(set.type()),
      set.max_token(),
             vocab_size > 0 ? fmt::format(", all below {}", vocab_size) : "");
  return 0;
}

void print_tokens(const TokenSource& set, const std::vector<int32_t>& tokens, const std::string& as) {
  if (as == "tokens") {
    for (size_t i = 0; i < tokens.size(); ++i) fmt::print("{}{}", i ? " " : "", tokens[i]);
    fmt::print("\n");
    return;
  }
  for (int32_t id : tokens) {
    if (id < 0 || id > data::ByteTokenizer::eod) {
      throw Error(ExitCode::data, fmt::format("token id {} is no id of the byte tokenizer", id), set.bin_path(), "use --as tokens");
    }
  }
  fmt::print("{}\n", data::ByteTokenizer::decode(tokens));
}

void dump_document(const TokenSource& set, const cxxopts::ParseResult& words, const std::string& as) {
  if (set.documents() == 0) throw Error(ExitCode::data, "has no documents", set.prefix(), "give another file");
  const int64_t document = integer(words, "document", 0, set.documents() - 1);
  const int64_t begin = set.start(set.document_begin(document)), end = set.start(set.document_end(document));
  std::vector<int32_t> tokens(static_cast<size_t>(end - begin));
  set.read_flat(begin, end - begin, tokens.data());
  print_tokens(set, tokens, as);
}

void dump_sample(const TokenSource& set, const cxxopts::ParseResult& words, const std::string& as) {
  constexpr int64_t most = int64_t{1} << 62;
  if (!words.count("seq-len")) usage_error("dump", "--sample needs --seq-len S");
  const int64_t sample = integer(words, "sample", 0, most), seq_len = integer(words, "seq-len", 1, (int64_t{1} << 31) - 2);
  const int64_t seed = integer(words, "seed", 0, (int64_t{1} << 32) - 1);
  const std::string part = words["part"].as<std::string>();
  const std::vector<std::string> parts = {"train", "valid", "test"};
  const auto which = static_cast<size_t>(std::find(parts.begin(), parts.end(), part) - parts.begin());
  if (which == parts.size()) value_error("--part", part, "give train, valid or test");
  std::optional<int64_t> samples;
  if (words.count("num-samples")) samples = integer(words, "num-samples", 1, most);
  const auto bounds = data::split_bounds(words["split"].as<std::string>(), set.sequences());
  data::GptDataset dataset(set, bounds[which], bounds[which + 1], seq_len, samples, static_cast<uint64_t>(seed), std::nullopt, part);
  std::vector<int32_t> tokens(static_cast<size_t>(seq_len) + 1);
  dataset.sample(sample, tokens.data());
  fmt::print("sample {} of {}, id {}, {} epoch(s)\n", sample, dataset.size(), dataset.sample_id(sample), dataset.epochs());
  for (const auto& segment : dataset.segments(sample)) fmt::print("sequence {} tokens {} to {}\n", segment.sequence, segment.offset,
      segment.offset + segment.count - 1);
  print_tokens(set, tokens, as);
}

int run_dump(int argc, char** argv) {
  cxxopts::Options options("octet data dump",
                           "Prints a document of PREFIX, or a training sample with where its tokens come from.\n\n"
                           "  octet data dump data/book --document 0\n"
                           "  octet data dump data/book --sample 7 --seq-len 256 --seed 1234 --as tokens\n");
  options.add_options()  //
      ("document", "print document N", cxxopts::value<std::string>(), "N")  //
      ("sample", "print the S+1 tokens of sample N of the shuffled order", cxxopts::value<std::string>(), "N")  //
      ("seq-len", "sequence length of the run", cxxopts::value<std::string>(), "S")  //
      ("seed", "seed of the sample order", cxxopts::value<std::string>()->default_value("1234"), "K")  //
      ("split", "train, valid and test shares", cxxopts::value<std::string>()->default_value("99,1,0"), "A,B,C")  //
      ("part", "train, valid or test", cxxopts::value<std::string>()->default_value("train"), "PART")  //
      ("num-samples", "samples of the run (steps x global batch), which fixes the number of epochs; absent: one epoch",
          cxxopts::value<std::string>(), "M")  //
      ("as", "text (byte tokenizer) or tokens", cxxopts::value<std::string>()->default_value("text"), "KIND");
  add_source_options(options);
  const auto words = parse(options, "dump", argc, argv);
  if (!words) return 0;
  const std::string as = (*words)["as"].as<std::string>();
  if (as != "text" && as != "tokens") value_error("--as", as, "give text or tokens");
  if (words->count("document") + words->count("sample") != 1) usage_error("dump", "give one of --document N and --sample N");
  const TokenSource set = open_source(*words, "dump");
  if (words->count("document")) dump_document(set, *words, as);
  else dump_sample(set, *words, as);
  return 0;
}
}  // namespace

int run_data(int argc, char** argv) {
  static constexpr std::string_view help =
      "Makes token files (Megatron .idx/.bin) and tokenizers; inspects token files, also llm.c's, datatrove's and raw ones.\n"
      "Usage:\n  octet data COMMAND [options]     octet data COMMAND --help\n\n"
      "  build            text or JSONL to PREFIX.idx and PREFIX.bin\n"
      "  train-tokenizer  a SentencePiece model from text\n"
      "  info             counts, token histogram, unigram entropy\n"
      "  verify           checks every field and token\n"
      "  dump             prints a document or a training sample\n";
  const std::vector<std::string> commands = {"build", "train-tokenizer", "info", "verify", "dump"};
  if (argc < 2) usage_error("", "a command is missing: build, train-tokenizer, info, verify or dump");
  const std::string command = argv[1];
  if (command == "--help" || command == "-h") {
    fmt::print("{}", help);
    return 0;
  }
  if (command == "build") return run_build(argc - 1, argv + 1);
  if (command == "train-tokenizer") return run_train_tokenizer(argc - 1, argv + 1);
  if (command == "info") return run_info(argc - 1, argv + 1);
  if (command == "verify") return run_verify(argc - 1, argv + 1);
  if (command == "dump") return run_dump(argc - 1, argv + 1);
  const std::string close = nearest(command, commands);
  usage_error("", fmt::format("unknown command '{}'{}", command,
      close.empty() ? "; give build, train-tokenizer, info, verify or dump" : fmt::format("; did you mean '{}'?", close)));
}

}  // namespace octet
