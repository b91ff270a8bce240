// RunDir: a run's directory, owned by one process at a time.
//
//   RUN/.lock        flock(2)ed while a run writes here; holds "pid <pid> host <name>". The kernel drops the lock when the process
//                    ends in any way, so the file stays behind and means nothing by itself.
//   RUN/checkpoints/ checkpoint/store.h
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "core/file_io.h"

namespace octet {

enum class Resume {
  automatic,  // continue from a checkpoint when there is one, else start
  never,      // start; a directory with anything in it is refused
  must,       // continue; a directory without a checkpoint is refused
};

// "auto" | "never" | "must", as in ckpt.resume and --resume. Throws Error(ExitCode::config).
Resume resume_mode(std::string_view text);

class RunDir {
 public:
  // Makes the directory when the mode allows it, locks it and makes checkpoints/. A refusal writes nothing.
  // Error(config): locked (names the holder's pid and host), not empty with never, not a directory, cannot be made.
  // Error(checkpoint): must without a checkpoint.
  static RunDir open(const std::filesystem::path& path, Resume mode);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints_dir() const { return path_ / "checkpoints"; }
  // True when there is nothing to resume from. When false, latest_checkpoint(checkpoints_dir()) finds it or throws.
  bool fresh() const { return fresh_; }

 private:
  std::filesystem::path path_;
  File lock_;
  bool fresh_ = true;
};

}  // namespace octet
