#include "report/run_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/check.h"
#include "report/line_reader.h"
#include "report/run_collector.h"
#include "report/tensorboard_reader.h"

namespace octet::report {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kMaxDepth = 64;

// nlohmann parses without recursion but copies and prints with it.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

json parse_json(const std::string& text) { return too_deep(text) ? json(json::value_t::discarded) : json::parse(text, nullptr, false); }

const json* at_path(const json& config, const char* section, const char* key) {
  const auto s = config.find(section);
  if (s == config.end() || !s->is_object()) return nullptr;
  const auto k = s->find(key);
  return k == s->end() ? nullptr : &*k;
}

void read_config(const fs::path& path, RunMetrics& run) {
  LineReader reader(path);
  std::string text, line;
  while (reader.next(line)) {
    if (text.size() + line.size() > LineReader::max_line_bytes) refuse_run(path.string(), "larger than 16 MiB", "this is not a resolved config");
    text += line + "\n";
  }
  run.config = parse_json(text);
  if (!run.config.is_object()) refuse_run(path.string(), "not a JSON object", "restore the file, or remove it to compare the run by its directory name");
  run.files.push_back(path);
  if (const json* v = at_path(run.config, "precision", "recipe")) {
    if (!v->is_string() || v->get<std::string>().empty()) refuse_run(path.string(), "precision.recipe is not a name", "restore the file");
    run.recipe = v->get<std::string>();
  }
  if (const json* v = at_path(run.config, "run", "seed")) {
    if (!v->is_number_unsigned()) refuse_run(path.string(), "run.seed is not a whole number from 0", "restore the file");
    run.seed = v->get<uint64_t>();
  }
  const json* batch = at_path(run.config, "batch", "global");
  const json* length = at_path(run.config, "data", "seq_len");
  if (batch && length) {
    const bool whole = batch->is_number_unsigned() && length->is_number_unsigned();
    const uint64_t a = whole ? batch->get<uint64_t>() : 0, b = whole ? length->get<uint64_t>() : 0;
    if (a == 0 || b == 0 || a > static_cast<uint64_t>(kMaxTokens) / b) {
      refuse_run(path.string(), "batch.global and data.seq_len are not sizes whose product is below 2^53", "restore the file");
    }
    run.tokens_per_step = static_cast<int64_t>(a * b);
  }
}

void read_jsonl(const fs::path& path, RunMetrics& run) {
  LineReader reader(path);
  RunCollector collector(run);
  std::string text;
  while (reader.next(text)) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json line = parse_json(text);
    if (line.is_object()) {
      collector.add(line, reader.where());
    } else if (line.is_discarded() && !reader.ended_by_newline()) {
      run.notes.push_back(reader.where() + ": torn last line passed over");
    } else {
      refuse_run(reader.where(), "not a JSON object", "repair or remove the line");
    }
  }
  run.files.push_back(path);
  collector.finish(path.string());
}

std::vector<std::string> split_csv(std::string line) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  std::vector<std::string> cells;
  for (size_t begin = 0;;) {
    const size_t end = std::min(line.find(',', begin), line.size());
    std::string cell = line.substr(begin, end - begin);
    const size_t first = cell.find_first_not_of(" \t"), last = cell.find_last_not_of(" \t");
    cells.push_back(first == std::string::npos ? std::string() : cell.substr(first, last - first + 1));
    if (end == line.size()) return cells;
    begin = end + 1;
  }
}

template <class T>
T csv_number(const std::string& cell, const std::string& column, const std::string& where) {
  T value{};
  const char* const last = cell.data() + cell.size();
  const auto [end, error] = std::from_chars(cell.data(), last, value);
  bool good = error == std::errc() && end == last;
  if constexpr (std::is_integral_v<T>) {
    double real = 0;  // spreadsheets and Python write 10 as 10.0 or 1e1
    const auto [real_end, real_error] = std::from_chars(cell.data(), last, real);
    if (!good && real_error == std::errc() && real_end == last && std::isfinite(real) && real == std::trunc(real)) {
      good = true;
      value = real >= 0 && real < static_cast<double>(kMaxTokens) ? static_cast<T>(real) : T{-1};  // exact; -1 is refused below
    }
  }
  if (!good) {
    refuse_run(where, fmt::format("column {} holds '{}', not a {}number", column, cell.substr(0, 40), std::is_integral_v<T> ? "whole " : ""),
        "repair the row");
  }
  if constexpr (std::is_integral_v<T>) {
    if (value < 0 || value > kMaxTokens) refuse_run(where, fmt::format("column {} is not between 0 and 2^53", column), "repair the row");
  }
  return value;
}

void read_csv(const fs::path& path, RunMetrics& run) {
  LineReader reader(path);
  std::string line;
  if (!reader.next(line)) refuse_run(path.string(), "the file is empty", "its first row must be: step,tokens,loss");
  if (line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
  const std::vector<std::string> header = split_csv(line);
  const std::set<std::string> known{"step", "tokens", "loss", "grad_norm", "lr", "tokens_per_s", "step_ms"};
  std::set<std::string> seen;
  for (const auto& column : header) {
    if (!seen.insert(column).second) refuse_run(reader.where(), "column '" + column + "' appears twice", "keep one of them");
    if (!known.contains(column)) run.notes.push_back(path.string() + ": column '" + column + "' is not used");
  }
  for (const char* column : {"step", "tokens", "loss"}) {
    if (!seen.contains(column))
      refuse_run(reader.where(), fmt::format("the header row has no column '{}'", column), "its first row must be: step,tokens,loss");
  }
  RunCollector collector(run);
  while (reader.next(line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::vector<std::string> cells = split_csv(line);
    if (cells.size() != header.size()) {
      refuse_run(reader.where(), fmt::format("the row has {} cells, the header {}", cells.size(), header.size()), "repair the row");
    }
    TrainPoint p;
    p.loss = p.grad_norm = p.lr = p.tokens_per_s = p.step_ms = kNan;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string& column = header[i];
      if (column == "step")
        p.step = csv_number<int64_t>(cells[i], column, reader.where());
      else if (column == "tokens")
        p.tokens = csv_number<int64_t>(cells[i], column, reader.where());
      else if (!known.contains(column))
        continue;
      else if (cells[i].empty() && column != "loss")
        continue;
      else {
        double& field = column == "loss"        ? p.loss
                        : column == "grad_norm" ? p.grad_norm
                        : column == "lr"        ? p.lr
                        : column == "step_ms"   ? p.step_ms
                                                : p.tokens_per_s;
        field = csv_number<double>(cells[i], column, reader.where());
        if (!std::isfinite(field)) {
          field = kNan;
          p.non_finite = p.non_finite || (column != "tokens_per_s" && column != "step_ms");
        }
      }
    }
    collector.add(p);
  }
  run.files.push_back(path);
  collector.finish(path.string());
}

}  // namespace

int64_t RunMetrics::skipped_steps() const {
  return std::count_if(train.begin(), train.end(), [](const TrainPoint& p) { return p.skipped; });
}

int64_t RunMetrics::non_finite_steps() const {
  return std::count_if(train.begin(), train.end(), [](const TrainPoint& p) { return p.non_finite; });
}

RunMetrics read_run(const fs::path& path) {
  std::error_code error;
  RunMetrics run;
  run.source = path;
  const fs::path whole = fs::weakly_canonical(path, error);
  if (fs::is_directory(path, error)) {
    run.name = run.recipe = whole.filename().string();
    const fs::path metrics = path / "metrics.jsonl", config = path / "config.resolved.json";
    if (!fs::exists(metrics, error) && is_tensorboard_folder(path)) {
      // RUN/tb is the folder of a run whose config lies above it.
      const fs::path above = whole.filename() == "tb" ? whole.parent_path() : whole;
      run.name = run.recipe = above.filename().string();
      if (fs::exists(above / "config.resolved.json", error)) read_config(above / "config.resolved.json", run);
      read_tensorboard(path, run);
      return run;
    }
    if (!fs::exists(metrics, error)) {
      throw Error(ExitCode::config, "the directory has no metrics.jsonl, so it is not a run directory, nor a TensorBoard event file", path.string(),
                  "give the --run-dir of a training run, or a folder with events.out.tfevents.* files");
    }
    if (fs::exists(config, error)) read_config(config, run);
    read_jsonl(metrics, run);
  } else if (fs::is_regular_file(path, error) && path.extension() == ".csv") {
    run.name = run.recipe = whole.stem().string();
    read_csv(path, run);
  } else {
    refuse_run(path.string(), fs::exists(path, error) ? "neither a run directory, nor a TensorBoard folder, nor a .csv file" : "no such file or directory",
        "give the directory of a training run, a TensorBoard folder or a CSV with the columns step,tokens,loss");
  }
  return run;
}

std::map<std::string, std::string> flatten_config(const json& config) {
  std::map<std::string, std::string> out;
  const auto visit = [&](auto&& self, const json& value, const std::string& key) -> void {
    if (value.is_object() && !value.empty()) {
      for (const auto& item : value.items()) self(self, item.value(), key.empty() ? item.key() : key + "." + item.key());
    } else if (!key.empty()) {
      out[key] = value.dump(-1, ' ', false, json::error_handler_t::replace);
    }
  };
  visit(visit, config, "");
  return out;
}

}  // namespace octet::report
