#include "app/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cxxopts.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/nearest.h"
#include "core/error.h"
#include "data/build.h"
#include "data/gpt_dataset.h"
#include "data/statistics.h"
#include "data/token_source.h"
#include "data/tokenizer.h"

namespace octet {
namespace {
using data::TokenSource;

[[noreturn]] void usage_error(const std::string& command, const std::string& what) {
  throw Error(ExitCode::usage, what, "octet data" + (command.empty() ? "" : " " + command),
              "see 'octet data" + (command.empty() ? "" : " " + command) + " --help'");
}

// An option's value is wrong: exit code 10, with the values it takes.
[[noreturn]] void value_error(const std::string& option, const std::string& value, const std::string& fix) {
  throw Error(ExitCode::config, fmt::format("'{}' is no value of {}", value, option), "", fix);
}

std::string unknown_option(const std::string& word, const cxxopts::Options& options) {
  std::vector<std::string> names;
  for (const std::string& group : options.groups()) {
    for (const auto& option : options.group_help(group).options) {
      for (const std::string& name : option.l) names.push_back(name);
    }
  }
  const std::string close = nearest(word, names);
  return fmt::format("unknown option --{}{}", word, close.empty() ? "" : fmt::format("; did you mean --{}?", close));
}

// Parses one command's words. Nothing is returned when --help was asked for and printed.
std::optional<cxxopts::ParseResult> parse(cxxopts::Options& options, const std::string& command, int argc, char** argv) {
  options.add_options()("h,help", "print this help");
  options.allow_unrecognised_options();
  std::optional<cxxopts::ParseResult> result;
  try {
    result = options.parse(argc, argv);
  } catch (const cxxopts::exceptions::exception& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    usage_error(command, line);
  }
  if (result->count("help")) {
    fmt::print("{}", options.help());
    return std::nullopt;
  }
  for (const std::string& word : result->unmatched()) {
    if (word.starts_with("--")) usage_error(command, unknown_option(word.substr(2, word.find('=') - 2), options));
    usage_error(command, fmt::format("unexpected word '{}'", word));
  }
  return result;
}

std::string required(const cxxopts::ParseResult& words, const std::string& command, const std::string& option, const std::string& shown) {
  if (!words.count(option)) usage_error(command, fmt::format("{} is missing", shown));
  return words[option].as<std::string>();
}

int64_t integer(const cxxopts::ParseResult& words, const std::string& option, int64_t least, int64_t most) {
  const std::string text = words[option].as<std::string>();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    value_error("--" + option, text, fmt::format("give a whole number from {} to {}", least, most));
  }
  return value;
}

// Takes `--input F...` and `--input=F` out of the words; the others go to `rest`. Done here because cxxopts gives an option one word
// and cuts it at commas, which file names may have.
std::vector<std::string> take_inputs(int argc, char** argv, std::vector<char*>& rest) {
  std::vector<std::string> inputs;
  bool taking = false;
  for (int i = 0; i < argc; ++i) {
    const std::string_view word = argv[i];
    constexpr std::string_view with_value = "--input=";
    if (i > 0 && word == "--input") {
      if (i + 1 == argc || argv[i + 1][0] == '-') usage_error("build", "--input needs a file");
      taking = true;
    } else if (i > 0 && word.starts_with(with_value)) {
      inputs.emplace_back(word.substr(with_value.size()));
      taking = true;
    } else if (taking && !word.starts_with("-")) {
      inputs.emplace_back(word);
    } else {
      taking = false;
      rest.push_back(argv[i]);
    }
  }
  return inputs;
}

void set_choices(const cxxopts::ParseResult& words, data::BuildOptions& build) {
  const std::string tokenizer = words["tokenizer"].as<std::string>(), format = words["format"].as<std::string>(),
      split = words["split-documents"].as<std::string>();
  if (tokenizer != data::ByteTokenizer::name) value_error("--tokenizer", tokenizer, "supported tokenizers: byte");
  if (format == "text") build.format = data::TextFormat::text;
  else if (format == "jsonl") build.format = data::TextFormat::jsonl;
  else if (format != "auto") value_error("--format", format, "give text, jsonl or auto");
  if (split == "blank-lines") build.split = data::DocumentSplit::blank_lines;
  else if (split != "none") value_error("--split-documents", split, "give none or blank-lines");
  if (words.count("append-eod") && words.count("no-append-eod")) usage_error("build", "--append-eod and --no-append-eod contradict each other");
  build.append_eod = !words.count("no-append-eod");
  build.json_key = words["json-key"].as<std::string>();
}

int run_build(int argc, char** argv) {
  cxxopts::Options options("octet data build",
                           "Turns text into token files that 'octet train --data-path PREFIX' reads: PREFIX.idx and PREFIX.bin.\n"
                           "Existing files are never overwritten.\n\n"
                           "  octet data build --input book.txt --split-documents blank-lines --out data/book\n"
                           "  octet data build --input a.jsonl b.jsonl --json-key text --out data/web\n");
  options.custom_help("--input FILE... --out PREFIX [options]");
  options.add_options()  //
      ("input", "text or JSONL files, read in this order", cxxopts::value<std::string>(), "FILE...")  //
      ("out", "writes PREFIX.idx and PREFIX.bin", cxxopts::value<std::string>(), "PREFIX")                         //
      ("tokenizer", "byte: ids 0-255 are bytes, 256 ends a document", cxxopts::value<std::string>()->default_value("byte"), "NAME")  //
      ("format", "text, jsonl, or auto: jsonl for .jsonl and .json files", cxxopts::value<std::string>()->default_value("auto"), "FORMAT")  //
      ("split-documents", "of text files: none (one document a file) or blank-lines (empty lines part documents)",
       cxxopts::value<std::string>()->default_value("none"), "HOW")  //
      ("json-key", "key of the text in a JSONL object", cxxopts::value<std::string>()->default_value("text"), "KEY")  //
      ("append-eod", "end each document with the EOD token (the default)")                                           //
      ("no-append-eod", "do not");
  std::vector<char*> rest;
  data::BuildOptions build;
  build.inputs = take_inputs(argc, argv, rest);
  const auto words = parse(options, "build", static_cast<int>(rest.size()), rest.data());
  if (!words) return 0;
  if (build.inputs.empty()) usage_error("build", "--input FILE... is missing");
  build.prefix = required(*words, "build", "out", "--out PREFIX");
  set_choices(*words, build);

  const data::BuildResult result = data::build_token_files(build);
  fmt::print("wrote {0}.idx and {0}.bin: {1} documents, {2} tokens ({3}) from {4} bytes in {5} file(s)\n", build.prefix, result.documents,
      result.tokens,
             data::name(data::token_type_for(data::ByteTokenizer::vocab_size)), result.bytes_read, build.inputs.size());
  if (result.empty_documents > 0) fmt::print("left out {} documents without text\n", result.empty_documents);
  return 0;
}

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
      "Makes token files (Megatron .idx/.bin) and inspects them, llm.c's, datatrove's and raw ones.\n"
      "Usage:\n  octet data COMMAND [options]     octet data COMMAND --help\n\n"
      "  build    text or JSONL to PREFIX.idx and PREFIX.bin\n"
      "  info     counts, token histogram, unigram entropy\n"
      "  verify   checks every field and token\n"
      "  dump     prints a document or a training sample\n";
  const std::vector<std::string> commands = {"build", "info", "verify", "dump"};
  if (argc < 2) usage_error("", "a command is missing: build, info, verify or dump");
  const std::string command = argv[1];
  if (command == "--help" || command == "-h") {
    fmt::print("{}", help);
    return 0;
  }
  if (command == "build") return run_build(argc - 1, argv + 1);
  if (command == "info") return run_info(argc - 1, argv + 1);
  if (command == "verify") return run_verify(argc - 1, argv + 1);
  if (command == "dump") return run_dump(argc - 1, argv + 1);
  const std::string close = nearest(command, commands);
  usage_error("", fmt::format("unknown command '{}'{}", command,
      close.empty() ? "; give build, info, verify or dump" : fmt::format("; did you mean '{}'?", close)));
}

}  // namespace octet
