// Files: what is read and written, and the exit code and line of each failure.
#include "core/file_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

using namespace octet;
namespace fs = std::filesystem;

namespace {

class file_io : public ::testing::Test {
 protected:
  file_io() {
    std::string name = (fs::temp_directory_path() / "octet_core_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    dir = name;
  }
  ~file_io() override {
    std::error_code ignored;
    fs::remove_all(dir, ignored);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(dir)) all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }
  static void spill(const fs::path& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }
  static std::string slurp(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path dir;
};

// Expects an Error of that code and returns its line.
std::string line_of(ExitCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

TEST_F(file_io, errors_carry_the_callers_code_and_a_remedy) {
  const std::string where = (dir / "none").string();
  EXPECT_EQ(line_of(ExitCode::data, [&] { File::open_for_read(dir / "none", ExitCode::data, "build it"); }),
            where + ": cannot open: No such file or directory (build it)");
  EXPECT_EQ(line_of(ExitCode::checkpoint, [&] { File::open_for_read(dir / "none", ExitCode::checkpoint); }),
            where + ": cannot open: No such file or directory (check the path, its permissions and its mount)");
  EXPECT_EQ(line_of(ExitCode::config, [&] { File::create(dir / "none" / "f", ExitCode::config); }),
            where + "/f: cannot create: No such file or directory (check the path, its permissions and its mount)");
  EXPECT_EQ(line_of(ExitCode::data, [&] { rename_path(dir / "none", dir / "other", ExitCode::data); }),
            where + ": cannot rename to other: No such file or directory (check the path, its permissions and its mount)");
  EXPECT_EQ(line_of(ExitCode::config, [&] { sync_parent_directory(dir / "none" / "f", ExitCode::config); }),
            where + ": cannot open: No such file or directory (check the path, its permissions and its mount)");
}

TEST_F(file_io, want_of_room_is_a_checkpoint_error_whatever_the_callers_code) {
  for (ExitCode code : {ExitCode::data, ExitCode::config, ExitCode::checkpoint}) {
    File full(::open("/dev/full", O_WRONLY | O_CLOEXEC), "/dev/full", code);
    ASSERT_TRUE(full);
    EXPECT_EQ(line_of(ExitCode::checkpoint, [&] { full.write_all("x", 1); }),
              "/dev/full: cannot write: No space left on device (free disk space or quota there, or write to another file system)");
  }
  line_of(ExitCode::checkpoint, [] { throw_io_error("write", "f", EDQUOT, ExitCode::data); });
  line_of(ExitCode::checkpoint, [] { throw_io_error("write", "f", EFBIG, ExitCode::data); });
  line_of(ExitCode::data, [] { throw_io_error("write", "f", EIO, ExitCode::data); });
}

TEST_F(file_io, only_regular_files_are_read) {
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  for (const fs::path& path : {dir, dir / "pipe", fs::path("/dev/null")}) {
    EXPECT_EQ(line_of(ExitCode::data, [&] { File::open_for_read(path, ExitCode::data, "give a file"); }),
              path.string() + ": not a regular file (give a file)");
  }
}

TEST_F(file_io, reads_what_was_written) {
  const fs::path path = dir / "f";
  File out = File::create(path, ExitCode::data);
  out.write_all("0123", 4);
  out.write_all("456789", 6);
  out.sync();
  out.close();
  EXPECT_FALSE(out);
  const File in = File::open_for_read(path, ExitCode::data);
  EXPECT_EQ(in.size_bytes(), 10u);
  EXPECT_EQ(in.path(), path);
  std::string text(4, ' ');
  in.read_exact(text.data(), 4, 3);
  EXPECT_EQ(text, "3456");
  in.read_exact(text.data(), 0, 10);
  EXPECT_EQ(in.read_some(text.data(), 3), 3u);  // from the start: read_exact does not move the position
  EXPECT_EQ(text, "0126");
  std::string rest(20, ' ');
  EXPECT_EQ(in.read_some(rest.data(), rest.size()), 7u);
  EXPECT_EQ(in.read_some(rest.data(), rest.size()), 0u);
  EXPECT_EQ(line_of(ExitCode::data, [&] { in.read_exact(rest.data(), 5, 8); }),
            path.string() + ": ends at byte 10, 3 bytes early (the file was cut while it was in use; restore it or make it again)");
}

TEST_F(file_io, a_moved_file_is_closed_once_and_by_its_last_owner) {
  spill(dir / "f", "x");
  File a = File::open_for_read(dir / "f", ExitCode::data);
  const int fd = a.fd();
  {
    File b(std::move(a));
    EXPECT_FALSE(a);
    EXPECT_EQ(b.fd(), fd);
    File c;
    c = std::move(b);
    EXPECT_EQ(c.fd(), fd);
    EXPECT_EQ(c.path(), dir / "f");
    EXPECT_GE(::fcntl(fd, F_GETFD), 0);
  }
  EXPECT_LT(::fcntl(fd, F_GETFD), 0);
}

TEST_F(file_io, read_file_refuses_what_is_longer) {
  spill(dir / "f", "12345");
  EXPECT_EQ(read_file(dir / "f", 5, ExitCode::checkpoint), "12345");
  EXPECT_EQ(line_of(ExitCode::checkpoint, [&] { read_file(dir / "f", 4, ExitCode::checkpoint); }),
            (dir / "f").string() + ": file has 5 bytes, at most 4 are allowed");
}

TEST_F(file_io, atomic_replacement_is_whole_or_leaves_the_old_content) {
  const fs::path path = dir / "f";
  write_file_atomic(path, "one", ExitCode::checkpoint);
  EXPECT_EQ(slurp(path), "one");
  const std::string two("t\0o", 3);
  write_file_atomic(path, two, ExitCode::checkpoint);
  EXPECT_EQ(slurp(path), two);
  fs::create_symlink("/dev/full", dir / ("f.tmp." + std::to_string(::getpid())));
  EXPECT_NE(line_of(ExitCode::checkpoint, [&] { write_file_atomic(path, "three", ExitCode::config); }).find("No space left"), std::string::npos);
  EXPECT_EQ(slurp(path), two);
  EXPECT_EQ(names(), std::vector<std::string>{"f"});
  EXPECT_NE(line_of(ExitCode::config, [&] { write_file_atomic(dir / "no" / "f", "x", ExitCode::config); }).find("No such file"), std::string::npos);
  fs::create_directory(dir / "d");
  line_of(ExitCode::config, [&] { write_file_atomic(dir / "d", "x", ExitCode::config); });
  EXPECT_EQ(names(), (std::vector<std::string>{"d", "f"}));
}

TEST_F(file_io, leftovers_of_processes_that_are_gone_go) {
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  const std::string ended = std::to_string(gone), running = std::to_string(::getpid());
  for (const std::string& name : {"f.tmp." + ended, "f.tmp." + running, "f.tmp.x" + ended, "f.tmp." + ended + "x", "g.tmp." + ended}) spill(dir / name, "x");
  for (const char* name : {"f.tmp.-1", "f.tmp."}) spill(dir / name, "x");
  remove_leftovers(dir / "f");
  EXPECT_EQ(names().size(), 6u);
  EXPECT_FALSE(fs::exists(dir / ("f.tmp." + ended)));
  remove_leftovers(dir / "no" / "f");
}

TEST_F(file_io, remove_tree_takes_everything_and_accepts_nothing) {
  fs::create_directories(dir / "a" / "b");
  spill(dir / "a" / "b" / "f", "x");
  remove_tree(dir / "a", ExitCode::checkpoint);
  EXPECT_TRUE(names().empty());
  remove_tree(dir / "a", ExitCode::checkpoint);
}

}  // namespace
