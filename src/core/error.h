// The one exception type that crosses a module boundary, and the exit codes of the command line.
//
// An Error carries what went wrong, where, and how to fix it; app/main.cpp prints the three as one line on stderr and
// exits with the code. Errors are thrown outside the training step only; a step with a shadow (ops/shadow.h), a debugging aid, is the exception.
#pragma once
#include <stdexcept>
#include <string>

namespace octet {

// Process exit codes; a contract with job scripts (docs/reference/exit_codes.md).
enum class ExitCode : int {
  ok = 0,
  verdict_no = 1,        // a comparison, verification or self-test says no
  usage = 2,             // unparsable command line
  config = 10,           // wrong key, value or file of the config; non-empty or locked run directory
  data = 11,             // token or text files
  checkpoint = 12,       // checkpoints, full disk
  stopped = 20,          // stopped by a signal after saving: requeue
  time_limit = 21,       // time limit reached after saving
  non_finite = 30,       // non-finite values beyond recovery
  deadline = 31,         // a deadline passed (hang)
  device = 32,           // device or communication fault
  hardware = 33,         // suspected hardware fault
  internal = 70,         // a bug of ours
};

class Error : public std::runtime_error {
 public:
  // where: a file, a config path, a module; may be empty. fix: what the user can do; may be empty.
  Error(ExitCode code_, std::string what_, std::string where_ = {}, std::string fix_ = {})
      : std::runtime_error(compose(what_, where_, fix_)), code(code_), message(std::move(what_)), where(std::move(where_)), fix(std::move(fix_)) {}

  ExitCode code;
  std::string message, where, fix;
  bool shared = false;   // every rank of a job ends with this error, and knows that the others do: the first one says so

 private:
  static std::string compose(const std::string& what, const std::string& where, const std::string& fix) {
    std::string line = where.empty() ? what : where + ": " + what;
    if (!fix.empty()) line += " (" + fix + ")";
    return line;
  }
};

}  // namespace octet
