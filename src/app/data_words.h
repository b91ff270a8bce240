// The words behind `octet data COMMAND`: parsing with cxxopts, and the errors they share.
#pragma once
#include <cstdint>
#include <cxxopts.hpp>
#include <optional>
#include <string>
#include <vector>

namespace octet::data_words {

// ExitCode::usage: the command line cannot be parsed. `command` may be empty.
[[noreturn]] void usage_error(const std::string& command, const std::string& what);
// ExitCode::config: an option's value is wrong; `fix` says which values it takes.
[[noreturn]] void value_error(const std::string& option, const std::string& value, const std::string& fix);

// Parses one command's words. Nothing is returned when --help was asked for and printed.
std::optional<cxxopts::ParseResult> parse(cxxopts::Options& options, const std::string& command, int argc, char** argv);

std::string required(const cxxopts::ParseResult& words, const std::string& command, const std::string& option, const std::string& shown);
int64_t integer(const cxxopts::ParseResult& words, const std::string& option, int64_t least, int64_t most);

// Takes `--input F...` and `--input=F` out of the words; the others go to `rest`. Done here because cxxopts gives an option one word
// and cuts it at commas, which file names may have.
std::vector<std::string> take_inputs(const std::string& command, int argc, char** argv, std::vector<char*>& rest);

}  // namespace octet::data_words
