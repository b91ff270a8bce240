#include "data/text_input.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/file_io.h"

namespace octet::data {
namespace {
constexpr size_t block_bytes = size_t{1} << 17;
constexpr int most_window_log = 27;  // 128 MiB, what `zstd -d` takes without --long
constexpr const char* damaged_fix = "restore the file, or decompress it by hand and look at what is there";

[[noreturn]] void bad_stream(const File& file, const std::string& what, const char* fix = damaged_fix) {
  throw Error(ExitCode::data, what, file.path().string(), fix);
}
}  // namespace

namespace streams {   // not anonymous: TextInput::Source holds them

// The compressed bytes, a block at a time.
struct Blocks {
  File file;
  std::vector<char> block = std::vector<char>(block_bytes);
  size_t at = 0, size = 0;

  bool fill() {
    if (at < size) return true;
    at = 0;
    size = file.read_some(block.data(), block.size());
    return size > 0;
  }
};

struct PlainText {
  File file;
  size_t read(char* out, size_t bytes) const { return file.read_some(out, bytes); }
};

class GzipText {
 public:
  explicit GzipText(File file) : in_{std::move(file)}, stream_(std::make_unique<z_stream>()) {
    constexpr int gzip_only = 15 + 16;
    if (inflateInit2(stream_.get(), gzip_only) != Z_OK) throw std::bad_alloc();
  }
  GzipText(GzipText&&) noexcept = default;
  ~GzipText() {
    if (stream_) inflateEnd(stream_.get());
  }
  size_t read(char* out, size_t bytes) {
    stream_->next_out = reinterpret_cast<Bytef*>(out);
    const auto room = static_cast<uInt>(std::min<size_t>(bytes, size_t{1} << 30));
    stream_->avail_out = room;
    while (stream_->avail_out == room) {
      // With nothing read the stream may still hold text to give out.
      const bool more = in_.fill();
      if (!more && !inside_) return 0;
      if (!inside_ && started_ && inflateReset(stream_.get()) != Z_OK) throw std::bad_alloc();
      inside_ = started_ = true;
      stream_->next_in = reinterpret_cast<Bytef*>(in_.block.data() + in_.at);
      stream_->avail_in = static_cast<uInt>(in_.size - in_.at);
      const int rc = inflate(stream_.get(), Z_NO_FLUSH);
      in_.at = in_.size - stream_->avail_in;
      if (rc == Z_STREAM_END) inside_ = false;
      else if (rc != Z_OK && rc != Z_BUF_ERROR) bad_stream(in_.file, fmt::format("damaged gzip data: {}", stream_->msg ? stream_->msg : "error " + std::to_string(rc)));
      else if (!more && stream_->avail_out == room) bad_stream(in_.file, "truncated: ends in the middle of its gzip data");
    }
    return room - stream_->avail_out;
  }

 private:
  Blocks in_;
  std::unique_ptr<z_stream> stream_;
  bool started_ = false, inside_ = false;  // inside a member
};

struct FreeZstd {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

class ZstdText {
 public:
  explicit ZstdText(File file) : in_{std::move(file)}, stream_(ZSTD_createDStream()) {
    if (!stream_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, most_window_log);
  }
  size_t read(char* out, size_t bytes) {
    ZSTD_outBuffer to{out, bytes, 0};
    while (to.pos == 0) {
      // With nothing read the stream may still hold text to give out.
      const bool more = in_.fill();
      ZSTD_inBuffer from{in_.block.data(), in_.size, in_.at};
      const size_t rc = ZSTD_decompressStream(stream_.get(), &to, &from);
      in_.at = from.pos;
      if (ZSTD_isError(rc)) {
        const bool window = ZSTD_getErrorCode(rc) == ZSTD_error_frameParameter_windowTooLarge;
        bad_stream(in_.file, fmt::format("damaged Zstandard data: {}", ZSTD_getErrorName(rc)),
             window ? "compress it again without --long or --ultra, or decompress it by hand" : damaged_fix);
      }
      if (!more && to.pos == 0) {
        if (inside_) bad_stream(in_.file, "truncated: ends in the middle of its Zstandard data");
        return 0;
      }
      inside_ = rc != 0;
    }
    return to.pos;
  }

 private:
  Blocks in_;
  std::unique_ptr<ZSTD_DStream, FreeZstd> stream_;
  bool inside_ = false;
};
}  // namespace streams

struct TextInput::Source {
  std::variant<streams::PlainText, streams::GzipText, streams::ZstdText> text;
};

bool is_jsonl(const std::string& path, TextFormat format) {
  if (format != TextFormat::automatic) return format == TextFormat::jsonl;
  std::filesystem::path name(path);
  if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
  return name.extension() == ".jsonl" || name.extension() == ".json";
}

TextInput::TextInput(const std::string& path) : path_(path) {
  File file = File::open_for_read(path, ExitCode::data, "check the path given to --input");
  unsigned char magic[4] = {};
  const size_t size = static_cast<size_t>(std::min<uint64_t>(file.size_bytes(), sizeof(magic)));
  if (size > 0) file.read_exact(magic, size, 0);
  const uint32_t word = magic[0] | magic[1] << 8 | magic[2] << 16 | static_cast<uint32_t>(magic[3]) << 24;
  const bool gzip = magic[0] == 0x1F && magic[1] == 0x8B;
  const bool zstd = word == ZSTD_MAGICNUMBER || (word & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
  if (gzip) source_ = std::make_unique<Source>(Source{streams::GzipText(std::move(file))});
  else if (zstd) source_ = std::make_unique<Source>(Source{streams::ZstdText(std::move(file))});
  else source_ = std::make_unique<Source>(Source{streams::PlainText{std::move(file)}});
}

TextInput::TextInput(TextInput&&) noexcept = default;
TextInput& TextInput::operator=(TextInput&&) noexcept = default;
TextInput::~TextInput() = default;

size_t TextInput::read(char* out, size_t bytes) {
  return std::visit([&](auto& text) { return text.read(out, bytes); }, source_->text);
}

void TextInput::skip(int64_t bytes) {
  const auto shorter = [&] { throw Error(ExitCode::data, fmt::format("has less than {} bytes of text", bytes), path_, "the input must be the one the build began with"); };
  if (const auto* plain = std::get_if<streams::PlainText>(&source_->text)) {
    if (static_cast<uint64_t>(bytes) > plain->file.size_bytes()) shorter();
    if (::lseek(plain->file.fd(), bytes, SEEK_SET) < 0) throw_io_error("seek", path_, errno, ExitCode::data);
    return;
  }
  std::vector<char> dropped(block_bytes);
  for (int64_t left = bytes; left > 0;) {
    const size_t got = read(dropped.data(), static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(dropped.size()))));
    if (got == 0) shorter();
    left -= static_cast<int64_t>(got);
  }
}

}  // namespace octet::data
