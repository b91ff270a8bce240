#include "report/line_reader.h"

#include "core/error.h"

namespace octet::report {

LineReader::LineReader(const std::filesystem::path& path) : path_(path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) file_.open(path, std::ios::binary);
  if (!file_.is_open()) throw Error(ExitCode::data, "cannot read the file", path.string(), "check that it is a regular file you may read");
}

bool LineReader::next(std::string& line) {
  line.clear();
  newline_ = false;
  ++number_;
  std::streambuf& buffer = *file_.rdbuf();
  for (int c = buffer.sbumpc(); c != std::char_traits<char>::eof(); c = buffer.sbumpc()) {
    if (c == '\n') {
      newline_ = true;
      return true;
    }
    if (line.size() == max_line_bytes) throw Error(ExitCode::data, "line is longer than 16 MiB", where(), "this is not a metrics file");
    line.push_back(static_cast<char>(c));
  }
  return !line.empty();
}

}  // namespace octet::report
