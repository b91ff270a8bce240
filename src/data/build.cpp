#include "data/build.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/file_io.h"
#include "data/build_journal.h"
#include "data/build_pipeline.h"
#include "data/indexed_dataset.h"
#include "data/token_meta.h"
#include "data/tokenizer.h"

namespace octet::data {
namespace {
using nlohmann::ordered_json;

struct EncodedChunk {
  std::vector<int32_t> ids;
  std::vector<size_t> counts;   // of ids, by piece
};

struct Worker {
  DocumentParser parser;
  Tokenizer::Scratch scratch;
};

// Everything the output depends on. Inputs are known by place, size and time of change: reading them again would cost what resuming saves. Taken before
// the first is read: what changes later is another job.
std::string job_of(const BuildOptions& options, const Tokenizer& tokenizer) {
  ordered_json job;
  job["inputs"] = ordered_json::array();
  for (const std::string& path : options.inputs) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) throw_io_error("inspect", path, errno, ExitCode::data, "check the path given to --input");
    std::error_code unresolved;
    const auto place = std::filesystem::weakly_canonical(path, unresolved);
    job["inputs"].push_back({unresolved ? path : place.string(), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec});
  }
  job["format"] = static_cast<int>(options.format);
  job["split"] = static_cast<int>(options.split);
  job["json_key"] = options.json_key;
  job["tokenizer"] = tokenizer.kind();
  job["tokenizer_xxh64"] = tokenizer.file_xxh64();
  job["eod_id"] = tokenizer.eod() ? ordered_json(*tokenizer.eod()) : ordered_json(nullptr);
  job["append_eod"] = options.append_eod;
  job["replace_invalid_utf8"] = options.replace_invalid_utf8;
  return job.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

InvalidUtf8 invalid_utf8(const BuildOptions& options, const Tokenizer& tokenizer) {
  if (options.replace_invalid_utf8) return InvalidUtf8::replace;
  return tokenizer.takes_any_bytes() ? InvalidUtf8::keep : InvalidUtf8::refuse;
}

class Build {
 public:
  Build(const BuildOptions& options, const Tokenizer& tokenizer, BuildProgress start)
      : options_(options), tokenizer_(tokenizer), progress_(std::move(start)), committed_(progress_.bytes_read), resumable_(committed_ > 0),
        writer_(options.prefix, token_type_for(tokenizer.vocab_size()), {progress_.documents, progress_.tokens}),
        meta_(options.prefix + ".meta.json"),
        // Invalid UTF-8 is replaced in whole documents: a cut could part a character.
        reader_({options.inputs, options.format, options.split, tokenizer.takes_any_bytes() && !options.replace_invalid_utf8}, progress_.position) {
    for (int i = 0; i < options.threads; ++i) workers_.push_back(std::make_unique<Worker>(Worker{{options.json_key, invalid_utf8(options, tokenizer)}, {}}));
  }

  // An error leaves nothing behind; but what a full disk stops can go on when there is room again.
  BuildProgress run() {
    try {
      encode_all();
      if (progress_.documents == 0) {
        throw Error(ExitCode::data, fmt::format("the corpus is empty: no text in {} input file(s)", options_.inputs.size()),
                    options_.inputs.empty() ? "" : options_.inputs.front(), "give files that hold text");
      }
      publish();
    } catch (const Error& error) {
      if (error.code == ExitCode::checkpoint && resumable_) {
        writer_.keep();
        throw Error(error.code, error.message, error.where, error.fix + "; what is done stays, go on with --resume");
      }
      remove_journal(options_.prefix);
      throw;
    } catch (...) {
      remove_journal(options_.prefix);
      throw;
    }
    return progress_;
  }

 private:
  void encode_all() {
    OrderedPipeline<TextChunk, EncodedChunk>(
        options_.threads, [&](TextChunk& chunk) { return reader_.next(chunk); },
        [&](TextChunk& chunk, EncodedChunk& out, int worker) { encode(chunk, out, *workers_[static_cast<size_t>(worker)]); },
        [&](TextChunk& chunk, EncodedChunk& out) { write(chunk, out); })
        .run();
  }

  void encode(const TextChunk& chunk, EncodedChunk& out, Worker& worker) const {
    out.ids.clear();
    out.counts.clear();
    for (const TextPiece& piece : chunk.pieces) {
      const auto ids = tokenizer_.encode(worker.parser.text(chunk, piece), worker.scratch);
      out.ids.insert(out.ids.end(), ids.begin(), ids.end());
      out.counts.push_back(ids.size());
    }
  }

  void write(const TextChunk& chunk, const EncodedChunk& encoded) {
    const int32_t* at = encoded.ids.data();
    for (size_t i = 0; i < chunk.pieces.size(); ++i) {
      writer_.append({at, encoded.counts[i]});
      at += encoded.counts[i];
      if (chunk.pieces[i].ends_document) end_document();
    }
    progress_.bytes_read += chunk.bytes_read;
    progress_.documents = writer_.documents();
    progress_.tokens = writer_.tokens();
    progress_.position = chunk.end;
    if (chunk.resumable && progress_.bytes_read - committed_ >= options_.commit_bytes) commit();
  }
  void end_document() {
    if (writer_.document_tokens() == 0) {
      ++progress_.empty_documents;
      return;
    }
    if (options_.append_eod) {
      const int32_t eod = *tokenizer_.eod();
      writer_.append({&eod, 1});
    }
    writer_.end_document();
  }
  void commit() {
    writer_.checkpoint();
    write_journal(options_.prefix, progress_);
    committed_ = progress_.bytes_read;
    resumable_ = true;
  }

  void publish() {
    TokenMeta meta;
    meta.tokenizer = tokenizer_.kind();
    meta.tokenizer_file = tokenizer_.file_name();
    meta.tokenizer_xxh64 = tokenizer_.file_xxh64();
    meta.vocab_size = tokenizer_.vocab_size();
    if (tokenizer_.eod()) meta.eod_id = *tokenizer_.eod();
    meta.documents = progress_.documents;
    meta.tokens = progress_.tokens;
    meta.build_xxh64 = xxh64_hex(progress_.job);
    const std::string text = to_json(meta);
    meta_.write(text.data(), text.size());
    meta_.sync();
    writer_.seal();
    progress_.publishing = true;
    write_journal(options_.prefix, progress_);
    bool meta_there = false;
    try {
      writer_.publish([&] {
        meta_.commit();
        meta_there = true;
      });
    } catch (...) {
      if (meta_there) meta_.withdraw();
      throw;
    }
    remove_journal(options_.prefix);
  }

  const BuildOptions& options_;
  const Tokenizer& tokenizer_;
  BuildProgress progress_;
  int64_t committed_;
  bool resumable_;
  IndexedDatasetWriter writer_;
  OutputFile meta_;
  DocumentReader reader_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Looked at before the partial files of an interrupted build are touched. With its journal there the renames may have begun.
void refuse_existing(const std::string& prefix, const char* extension) {
  struct stat status {};
  if (::lstat((prefix + extension).c_str(), &status) != 0) return;
  const auto journal = read_journal(prefix);
  if (journal && journal->publishing) return;
  throw Error(ExitCode::data, "exists already and is not overwritten", prefix + extension, "remove it or choose another output");
}

// What an earlier run of this very job wrote; nothing when there are no outputs. Errors: outputs of another job, or not whole.
std::optional<TokenMeta> finished_build(const BuildOptions& options, const std::string& job) {
  std::error_code error;
  for (const char* extension : {".bin", ".meta.json", ".idx"}) {
    if (!std::filesystem::exists(std::filesystem::symlink_status(options.prefix + extension, error))) return std::nullopt;
  }
  const auto meta = read_token_meta(options.prefix);
  if (!meta || meta->build_xxh64 != xxh64_hex(job)) {
    throw Error(ExitCode::data, "exists already, from other inputs (name, size or time of change), options or another tokenizer, and is not overwritten", options.prefix + ".bin",
                "remove it or choose another output");
  }
  TokenLayout layout;
  open_megatron(options.prefix, layout);   // the index is whole and the tokens are as long as it says
  if (layout.starts.back() != meta->tokens) throw Error(ExitCode::data, "index and PREFIX.meta.json count other tokens", options.prefix + ".idx", "remove the files and build anew");
  return meta;
}

// The earlier run had written all and was killed among the renames: whatever is still under its temporary name gets its own.
void finish_publishing(const std::string& prefix) {
  for (const char* extension : {".bin", ".meta.json", ".idx"}) {
    const std::string path = prefix + extension, temporary = path + ".tmp";
    std::error_code error;
    const bool there = std::filesystem::exists(path, error), waiting = std::filesystem::exists(temporary, error);
    if (there == waiting) {
      throw Error(ExitCode::data, fmt::format("an interrupted build left {} {} and {}", there ? "both" : "neither", path, temporary), prefix,
                  "remove the partial files and build anew");
    }
    if (waiting) rename_path(temporary, path, ExitCode::data);
  }
  std::error_code error;
  std::filesystem::remove(prefix + ".lengths.tmp", error);
  sync_parent_directory(prefix, ExitCode::data);
  remove_journal(prefix);
}

BuildResult result_of(const Tokenizer& tokenizer) {
  BuildResult result;
  result.token_type = name(token_type_for(tokenizer.vocab_size()));
  result.eod_id = tokenizer.eod();
  result.eod_text = tokenizer.eod_text();
  result.vocab_size = tokenizer.vocab_size();
  return result;
}
}  // namespace

BuildResult build_token_files(const BuildOptions& options) {
  const Tokenizer tokenizer = Tokenizer::open(options.tokenizer, options.eod_token);
  if (options.append_eod && !tokenizer.eod()) {
    throw Error(ExitCode::config, "the tokenizer has no token that ends a document", options.tokenizer, "name one with --eod-token, or give --no-append-eod");
  }
  // Every input is looked at before anything is written; it is opened again when its turn comes, so that many inputs need few descriptors.
  for (const std::string& path : options.inputs) TextInput input(path);

  const std::string job = job_of(options, tokenizer);
  auto journal = read_journal(options.prefix);
  if (options.resume && !journal) {
    if (const auto meta = finished_build(options, job)) {
      BuildResult result = result_of(tokenizer);
      result.documents = meta->documents;
      result.tokens = meta->tokens;
      result.was_complete = true;
      return result;
    }
  }
  for (const char* extension : {".bin", ".meta.json", ".idx"}) refuse_existing(options.prefix, extension);

  if (journal && !options.resume) {
    throw Error(ExitCode::data, "an interrupted build is there", journal_path(options.prefix), "go on with --resume, or remove this file");
  }
  if (journal && journal->job != job) {
    throw Error(ExitCode::data, "the interrupted build had other inputs, options or another tokenizer", journal_path(options.prefix),
                "give the same ones, or remove this file and build anew");
  }
  BuildResult result = result_of(tokenizer);
  result.resumed_bytes = journal ? journal->bytes_read : 0;
  if (!journal) journal.emplace().job = job;
  BuildProgress done = *journal;
  make_parent_directory(options.prefix, ExitCode::data);
  if (done.publishing) finish_publishing(options.prefix);
  else done = Build(options, tokenizer, std::move(*journal)).run();

  result.documents = done.documents;
  result.tokens = done.tokens;
  result.empty_documents = done.empty_documents;
  result.bytes_read = done.bytes_read;
  return result;
}

}  // namespace octet::data
