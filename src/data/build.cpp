#include "data/build.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/file_io.h"
#include "data/indexed_dataset.h"
#include "data/tokenizer.h"

namespace octet::data {
namespace {
constexpr size_t piece_bytes = size_t{1} << 18;
constexpr size_t most_line_bytes = size_t{256} << 20;

using nlohmann::json;

// Turns pieces of text into documents of the writer; counts what it leaves out.
class DocumentSink {
 public:
  DocumentSink(IndexedDatasetWriter& writer, bool append_eod) : writer_(writer), append_eod_(append_eod) {}

  void text(std::string_view piece) {
    ByteTokenizer::encode(piece, tokens_);
    writer_.append(tokens_);
  }
  bool open() const { return writer_.document_tokens() > 0; }
  void end_if_open() {
    if (!open()) return;
    if (append_eod_) {
      const int32_t eod = ByteTokenizer::eod;
      writer_.append({&eod, 1});
    }
    writer_.end_document();
  }
  void end_or_count_empty() {
    if (!open()) ++empty_documents_;
    end_if_open();
  }
  int64_t empty_documents() const { return empty_documents_; }

 private:
  IndexedDatasetWriter& writer_;
  bool append_eod_;
  std::vector<int32_t> tokens_;
  int64_t empty_documents_ = 0;
};

// Documents are runs of lines between empty lines; fed in pieces that may end anywhere.
class BlankLineSplitter {
 public:
  explicit BlankLineSplitter(DocumentSink& sink) : sink_(sink) {}

  void feed(std::string_view text) {
    while (!text.empty()) {
      const size_t newline = text.find('\n');
      const bool ends = newline != std::string_view::npos;
      const std::string_view rest_of_line = text.substr(0, ends ? newline + 1 : text.size());
      if (!line_has_text_) start_of_line(rest_of_line);
      else sink_.text(rest_of_line);
      if (ends) {
        line_has_text_ = false;
        held_return_ = false;
      }
      text.remove_prefix(rest_of_line.size());
    }
  }
  void finish() {
    if (held_return_) sink_.text("\r");
    sink_.end_if_open();
  }

 private:
  // A carriage return is held back until the next byte tells an empty line from text.
  void start_of_line(std::string_view line) {
    if (!held_return_ && line == "\r") {
      held_return_ = true;
      return;
    }
    const bool empty = line == "\n" || (!held_return_ && line == "\r\n");
    if (empty) {
      sink_.end_if_open();
      return;
    }
    if (held_return_) sink_.text("\r");
    held_return_ = false;
    line_has_text_ = true;
    sink_.text(line);
  }

  DocumentSink& sink_;
  bool line_has_text_ = false, held_return_ = false;
};

int64_t each_piece(const File& file, const std::function<void(std::string_view)>& visit) {
  std::string buffer(piece_bytes, '\0');
  int64_t total = 0;
  while (const size_t got = file.read_some(buffer.data(), buffer.size())) {
    visit(std::string_view(buffer).substr(0, got));
    total += static_cast<int64_t>(got);
  }
  return total;
}

int64_t read_text(const File& file, DocumentSplit split, DocumentSink& sink) {
  if (split == DocumentSplit::none) {
    const int64_t bytes = each_piece(file, [&](std::string_view piece) { sink.text(piece); });
    sink.end_or_count_empty();
    return bytes;
  }
  BlankLineSplitter splitter(sink);
  const int64_t bytes = each_piece(file, [&](std::string_view piece) { splitter.feed(piece); });
  splitter.finish();
  return bytes;
}

// The value of the top-level string `key` of one JSON line.
std::string line_text(std::string_view line, const std::string& key, const std::string& where) {
  const char* const fix = "give one JSON object a line, with its text under the key named by --json-key";
  int64_t seen = 0;
  json object;
  try {
    object = json::parse(line, [&](int depth, json::parse_event_t event, json& parsed) {
      if (depth == 1 && event == json::parse_event_t::key && parsed == key) ++seen;
      return true;
    });
  } catch (const json::exception& error) {
    throw Error(ExitCode::data, fmt::format("not valid JSON: {}", error.what()), where, fix);
  }
  if (!object.is_object()) throw Error(ExitCode::data, fmt::format("not a JSON object but {}", object.type_name()), where, fix);
  if (seen > 1) throw Error(ExitCode::data, fmt::format("the key '{}' occurs {} times", key, seen), where, "keep one of them");
  const auto found = object.find(key);
  if (found == object.end()) throw Error(ExitCode::data, fmt::format("has no key '{}'", key), where, fix);
  if (!found->is_string()) throw Error(ExitCode::data, fmt::format("the value of '{}' is no string but {}", key, found->type_name()), where, fix);
  return std::move(found->get_ref<std::string&>());
}

int64_t read_jsonl(const File& file, const std::string& key, DocumentSink& sink) {
  std::string line;
  int64_t number = 1;
  const auto where = [&] { return fmt::format("{}:{}", file.path().string(), number); };
  const auto take_line = [&] {
    if (line.empty() || line == "\r") throw Error(ExitCode::data, "an empty line", where(),
        "JSONL has one JSON object on every line; remove the line");
    sink.text(line_text(line, key, where()));
    sink.end_or_count_empty();
    line.clear();
    ++number;
  };
  const int64_t bytes = each_piece(file, [&](std::string_view piece) {
    while (!piece.empty()) {
      const size_t newline = piece.find('\n');
      line.append(piece.substr(0, newline));
      if (line.size() > most_line_bytes) throw Error(ExitCode::data, "a line of more than 256 MiB", where(), "split the document");
      if (newline == std::string_view::npos) return;
      take_line();
      piece.remove_prefix(newline + 1);
    }
  });
  if (!line.empty()) take_line();
  return bytes;
}

bool is_jsonl(const std::string& path, TextFormat format) {
  const std::string extension = std::filesystem::path(path).extension().string();
  return format == TextFormat::jsonl || (format == TextFormat::automatic && (extension == ".jsonl" || extension == ".json"));
}
}  // namespace

BuildResult build_token_files(const BuildOptions& options) {
  // Every input is looked at before anything is written; it is opened again when its turn comes, so that many inputs need few descriptors.
  const char* const fix = "check the path given to --input";
  for (const std::string& path : options.inputs) File::open_for_read(path, ExitCode::data, fix);

  IndexedDatasetWriter writer(options.prefix, token_type_for(ByteTokenizer::vocab_size));
  DocumentSink sink(writer, options.append_eod);
  BuildResult result;
  for (const std::string& path : options.inputs) {
    const File file = File::open_for_read(path, ExitCode::data, fix);
    result.bytes_read += is_jsonl(path, options.format) ? read_jsonl(file, options.json_key, sink) : read_text(file, options.split, sink);
  }
  result.documents = writer.documents();
  result.tokens = writer.tokens();
  result.empty_documents = sink.empty_documents();
  if (result.documents == 0) {
    throw Error(ExitCode::data, fmt::format("the corpus is empty: no text in {} input file(s)", options.inputs.size()),
        options.inputs.empty() ? "" : options.inputs.front(),
                "give files that hold text");
  }
  writer.finish();
  return result;
}

}  // namespace octet::data
