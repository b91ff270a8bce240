#include "app/data_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "config/nearest.h"
#include "core/error.h"

namespace octet::data_words {
namespace {
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
}  // namespace

void usage_error(const std::string& command, const std::string& what) {
  throw Error(ExitCode::usage, what, "octet data" + (command.empty() ? "" : " " + command),
              "see 'octet data" + (command.empty() ? "" : " " + command) + " --help'");
}

void value_error(const std::string& option, const std::string& value, const std::string& fix) {
  throw Error(ExitCode::config, fmt::format("'{}' is no value of {}", value, option), "", fix);
}

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

std::vector<std::string> take_inputs(const std::string& command, int argc, char** argv, std::vector<char*>& rest) {
  std::vector<std::string> inputs;
  bool taking = false;
  for (int i = 0; i < argc; ++i) {
    const std::string_view word = argv[i];
    constexpr std::string_view with_value = "--input=";
    if (i > 0 && word == "--input") {
      if (i + 1 == argc || argv[i + 1][0] == '-') usage_error(command, "--input needs a file");
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

}  // namespace octet::data_words
