// Shared by the checkpoint tests: scratch directories, expected errors, child processes.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "core/error.h"

namespace octet::test {
namespace fs = std::filesystem;

// A fresh directory, removed with the object.
class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "octet_checkpoint_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void spill(const fs::path& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  ASSERT_TRUE(out.flush()) << path;
}

inline void flip_bit(const fs::path& path, size_t byte, int bit = 0) {
  std::string content = slurp(path);
  ASSERT_LT(byte, content.size());
  content[byte] = static_cast<char>(static_cast<unsigned char>(content[byte]) ^ (1u << bit));
  spill(path, content);
}

// Runs body, which must throw Error of that code on one line; returns the line.
inline std::string error_of(ExitCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code), static_cast<int>(code)) << e.what();
    const std::string line = e.what();
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    return line;
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

// Names in a directory, sorted; empty when there is none.
inline std::vector<std::string> listing(const fs::path& directory) {
  std::vector<std::string> names;
  if (!fs::exists(directory)) return names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Runs body in a child that ends without running the parent's destructors; returns waitpid's status. An exception ends it with 99.
inline int in_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& e) {
      ::dprintf(2, "child: %s\n", e.what());
    }
    ::_exit(code);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

// A small training state whose every value depends on `fill`.
struct SmallState {
  explicit SmallState(float fill) : weight(6 * 4, fill), norm(4, fill + 0.5f), moment(6 * 4, fill + 0.25f), history(3, fill + 1) {}

  std::vector<TensorToSave> tensors() const {
    return {{"model", "model.layers.0.mlp.up_proj.weight", Dtype::f32, {6, 4}, weight.data()},
            {"model", "model.norm.weight", Dtype::f32, {4}, norm.data()},
            {"optimizer", "exp_avg/model.layers.0.mlp.up_proj.weight", Dtype::f32, {6, 4}, moment.data()},
            {"state", "amax_history/layers.0.mlp.up", Dtype::f32, {3}, history.data()}};
  }
  std::vector<float> weight, norm, moment, history;
};

inline fs::path save_small(const fs::path& dir, int64_t step, float fill, int64_t keep_last = 0, std::function<void(SavePhase)> hook = {}) {
  const SmallState state(fill);
  SaveOptions options;
  options.step = step;
  options.keep_last = keep_last;
  options.after_phase = std::move(hook);
  return save_checkpoint(dir, options, state.tensors(), {{"step", step}, {"fill", fill}});
}

// The fill of a checkpoint, after checking that all of its tensors agree with it.
inline float fill_of(const fs::path& path) {
  const Checkpoint c = Checkpoint::open(path);
  c.verify_all();
  SmallState found(-1);
  for (const auto& t : found.tensors()) c.read(t.group, t.name, t.dtype, t.shape, const_cast<void*>(t.data));
  const SmallState expected(c.state().at("fill").get<float>());
  EXPECT_EQ(found.weight, expected.weight);
  EXPECT_EQ(found.norm, expected.norm);
  EXPECT_EQ(found.moment, expected.moment);
  EXPECT_EQ(found.history, expected.history);
  EXPECT_EQ(c.state().at("step").get<int64_t>(), c.step());
  return expected.weight[0];
}

}  // namespace octet::test
