// Shared by the config tests: a small valid config, and the text of an expected error.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config_io.h"
#include "core/error.h"

namespace octet::test {

inline nlohmann::json small_config() {
  return nlohmann::json::parse(R"({
    "model": {"vocab_size": 257, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4},
    "data": {"train": [{"path": "data/text"}], "seq_len": 256},
    "batch": {"micro": 4, "global": 8},
    "optim": {"lr": 0.0005},
    "run": {"steps": 300}
  })");
}

// The small config with a merge patch over it.
inline nlohmann::json patched(const char* patch) {
  nlohmann::json values = small_config();
  values.merge_patch(nlohmann::json::parse(patch));
  return values;
}

inline RunConfig validated(const nlohmann::json& values) {
  RunConfig config = from_json(values);
  validate(config);
  return config;
}

// The one-line message of the error that `body` throws, checked to be of `code` and to be one line.
inline std::string error_of(const std::function<void()>& body, ExitCode code = ExitCode::config) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code), static_cast<int>(code)) << e.what();
    const std::string message = e.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

inline std::string read_error(const char* patch) {
  return error_of([&] { from_json(patched(patch)); });
}

inline std::string validate_error(const char* patch) {
  return error_of([&] { validated(patched(patch)); });
}

}  // namespace octet::test
