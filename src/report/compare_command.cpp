#include "report/compare_command.h"

#include <algorithm>

#include "core/file_io.h"
#include "report/compare_output.h"
#include "report/html.h"
#include "report/svg.h"

namespace octet::report {
namespace {

namespace fs = std::filesystem;

bool same_path(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) || fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
}

bool contains(const std::vector<fs::path>& paths, const fs::path& path) {
  return std::any_of(paths.begin(), paths.end(), [&](const fs::path& p) { return same_path(p, path); });
}

std::vector<RunMetrics> read_all(const std::vector<fs::path>& paths, const std::vector<fs::path>& except = {}) {
  std::vector<RunMetrics> runs;
  std::vector<fs::path> seen;
  for (const auto& path : paths) {
    if (contains(except, path) || contains(seen, path)) continue;
    seen.push_back(path);
    runs.push_back(read_run(path));
  }
  return runs;
}

// Outputs are checked before the work, so that a wrong name costs nothing.
void check_outputs(const CompareRequest& request, const CompareInput& input) {
  std::vector<fs::path> taken;
  for (const auto* list : {&input.runs, &input.baselines, &input.twins}) {
    for (const auto& run : *list) taken.insert(taken.end(), run.files.begin(), run.files.end());
  }
  for (const fs::path& path : {request.html, request.json, request.svg}) {
    if (path.empty()) continue;
    if (contains(taken, path)) {
      throw Error(ExitCode::config, "the report would overwrite a file the comparison reads, or another report", path.string(),
                  "choose another name");
    }
    std::error_code error;
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    if (fs::is_directory(path, error)) throw Error(ExitCode::config, "the report's name is a directory", path.string(), "add a file name");
    if (!fs::is_directory(folder, error)) {
      throw Error(ExitCode::config, "the report's directory does not exist", folder.string(), "create it or choose another name");
    }
    taken.push_back(path);
  }
}

void write_file(const fs::path& path, const std::string& text) {
  if (!path.empty()) write_file_atomic(path, text, ExitCode::config);
}

}  // namespace

ExitCode run_comparison(const CompareRequest& request, std::ostream& out) {
  CompareInput input;
  std::vector<fs::path> named = request.baselines;
  named.insert(named.end(), request.twins.begin(), request.twins.end());
  input.baselines = read_all(request.baselines);
  input.twins = read_all(request.twins, request.baselines);
  input.runs = read_all(request.runs, named);
  check_outputs(request, input);
  const Comparison comparison = compare(std::move(input), request.options);

  if (!request.html.empty()) write_file(request.html, to_html(comparison));
  if (!request.json.empty()) write_file(request.json, to_json(comparison).dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n");
  if (!request.svg.empty()) write_file(request.svg, standalone_svg(comparison));
  out << to_text(comparison);
  for (const fs::path& path : {request.html, request.json, request.svg}) {
    if (!path.empty()) out << "wrote " << path.string() << "\n";
  }
  out << std::flush;
  return comparison.within_max_gap() ? ExitCode::ok : ExitCode::verdict_no;
}

}  // namespace octet::report
