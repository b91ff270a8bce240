#include "data/build_reader.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace octet::data {

DocumentReader::DocumentReader(ReaderOptions options, ReadPosition from) : options_(std::move(options)), position_(from) {}

void DocumentReader::too_long(const char* what, const std::string& where) const {
  throw Error(ExitCode::data, fmt::format("{} of more than {} MiB", what, most_document_bytes >> 20), where, "split the document");
}

// Opens the input of position_, or returns false when all are read.
bool DocumentReader::open() {
  if (input_) return true;
  if (position_.input >= static_cast<int64_t>(options_.inputs.size())) return false;
  input_.emplace(options_.inputs[static_cast<size_t>(position_.input)]);
  if (position_.offset > 0) input_->skip(position_.offset);
  ahead_.clear();
  used_ = 0;
  ended_ = open_document_ = open_line_ = false;
  return true;
}

// Reads until `at_least` bytes are ahead or the input ends; false when nothing is ahead.
bool DocumentReader::refill(size_t at_least) {
  if (ahead_.size() - used_ >= at_least) return true;   // before the erase below, which would be made for every line
  if (used_ > 0 && !ended_) {
    ahead_.erase(0, used_);
    used_ = 0;
  }
  while (!ended_ && ahead_.size() - used_ < at_least) {
    const size_t before = ahead_.size();
    ahead_.resize(before + options_.chunk_bytes);
    const size_t got = input_->read(ahead_.data() + before, options_.chunk_bytes);
    ahead_.resize(before + got);
    ended_ = got == 0;
  }
  return used_ < ahead_.size();
}

void DocumentReader::finish_input(TextChunk& chunk) {
  position_ = {position_.input + 1, 0, 1};
  input_.reset();
  chunk.end = position_;
  chunk.resumable = true;
}

bool DocumentReader::next(TextChunk& chunk) {
  chunk.text.clear();
  chunk.pieces.clear();
  chunk.resumable = false;
  chunk.bytes_read = 0;
  if (!open()) return false;
  chunk.path = input_->path();
  chunk.jsonl = is_jsonl(chunk.path, options_.format);
  if (chunk.jsonl) next_lines(chunk);
  else if (options_.split == DocumentSplit::none) next_whole(chunk);
  else next_documents(chunk);
  chunk.text.reserve(chunk.text.size() + simdjson::SIMDJSON_PADDING);
  return true;
}

void DocumentReader::next_lines(TextChunk& chunk) {
  size_t wanted = options_.chunk_bytes, end = std::string::npos;
  const auto where = [&] { return fmt::format("{}:{}", chunk.path, position_.line); };
  while (refill(wanted)) {
    const void* newline = ::memrchr(ahead_.data() + used_, '\n', ahead_.size() - used_);
    end = newline ? static_cast<size_t>(static_cast<const char*>(newline) - ahead_.data()) + 1 : std::string::npos;
    if (ended_) end = ahead_.size();
    if (end != std::string::npos) break;
    if (ahead_.size() - used_ > most_document_bytes) too_long("a line", where());
    wanted = ahead_.size() - used_ + options_.chunk_bytes;
  }
  if (end == std::string::npos) {  // nothing left
    finish_input(chunk);
    return;
  }
  chunk.text.reserve(end - used_ + simdjson::SIMDJSON_PADDING);
  chunk.text.assign(ahead_, used_, end - used_);
  for (size_t at = 0; at < chunk.text.size();) {
    const size_t stop = std::min(chunk.text.find('\n', at), chunk.text.size());
    const std::string_view line = std::string_view(chunk.text).substr(at, stop - at);
    if (line.empty() || line == "\r") throw Error(ExitCode::data, "an empty line", where(), "JSONL has one JSON object on every line; remove the line");
    if (line.size() > most_document_bytes) too_long("a line", where());
    chunk.pieces.push_back({at, line.size(), position_.line++, true});
    at = stop + 1;
  }
  chunk.bytes_read = static_cast<int64_t>(end - used_);
  position_.offset += chunk.bytes_read;
  used_ = end;
  chunk.end = position_;
  chunk.resumable = true;
  if (ended_ && used_ == ahead_.size()) finish_input(chunk);
}

// A file is one document: in pieces when streaming, else at once.
void DocumentReader::next_whole(TextChunk& chunk) {
  size_t wanted = options_.chunk_bytes;
  while (refill(wanted) && !options_.streaming && !ended_) {
    wanted = ahead_.size() - used_ + options_.chunk_bytes;
    if (wanted > most_document_bytes + options_.chunk_bytes) too_long("a document", chunk.path);
  }
  if (!options_.streaming && ahead_.size() - used_ > most_document_bytes) too_long("a document", chunk.path);
  chunk.text.assign(ahead_, used_, std::string::npos);
  chunk.bytes_read = static_cast<int64_t>(chunk.text.size());
  chunk.pieces.push_back({0, chunk.text.size(), position_.offset, ended_});
  position_.offset += chunk.bytes_read;
  used_ = ahead_.size();
  chunk.end = position_;
  if (ended_) finish_input(chunk);
}

// Runs of lines between empty lines (nothing, or one carriage return).
void DocumentReader::next_documents(TextChunk& chunk) {
  bool inside = open_document_;
  size_t begin = 0;
  const auto close = [&](bool ends_document) {
    if (inside) chunk.pieces.push_back({begin, chunk.text.size() - begin, position_.offset - static_cast<int64_t>(chunk.text.size() - begin), ends_document});
    inside = false;
    begin = chunk.text.size();
  };
  while (refill(1)) {
    const size_t newline = ahead_.find('\n', used_), left = ahead_.size() - used_;
    if (newline == std::string::npos && !ended_) {
      if (!options_.streaming && left > most_document_bytes) too_long("a document", chunk.path);
      if (!options_.streaming || left < std::max<size_t>(options_.chunk_bytes, 2)) {   // one byte could be the carriage return of an empty line
        refill(2 * left);
        continue;
      }
    }
    const size_t stop = newline == std::string::npos ? ahead_.size() : newline + 1;
    const std::string_view line = std::string_view(ahead_).substr(used_, stop - used_);
    const bool empty = !open_line_ && (line == "\n" || line == "\r\n");
    open_line_ = newline == std::string::npos;
    if (empty) close(true);   // before the line counts: a piece's place is told from its end
    position_.offset += static_cast<int64_t>(line.size());
    chunk.bytes_read += static_cast<int64_t>(line.size());
    used_ = stop;
    if (empty) {
      open_document_ = false;
      if (chunk.text.size() < options_.chunk_bytes) continue;
      chunk.end = position_;
      chunk.resumable = true;
      return;
    }
    inside = open_document_ = true;
    chunk.text += line;
    if (chunk.text.size() - begin > most_document_bytes && !options_.streaming) too_long("a document", chunk.path);
    if (options_.streaming && chunk.text.size() >= 2 * options_.chunk_bytes) {
      close(false);
      chunk.end = position_;
      return;
    }
  }
  close(true);
  open_document_ = false;
  finish_input(chunk);
}

}  // namespace octet::data
