// octet train: flags -> RunConfig -> train().
#include "app/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>

#include "app/cli.h"
#include "app/ranks.h"
#include "app/train_help.h"
#include "comm/agree.h"
#include "config/config_io.h"
#include "config/nearest.h"
#include "config/reference.h"
#include "config/schema.h"
#ifdef OCTET_HAVE_CUDA
#include "cuda/nvtx.h"
#endif
#include "train/dump_file.h"
#include "train/train.h"

namespace octet {
namespace {

struct Request {
  ConfigTree tree;
  TrainOptions options;
  std::string text;           // to print instead of training: help, schema, reference
  bool print_config = false;
};

std::optional<double> finite_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

double parse_minutes(const std::string& text) {
  const double minutes = finite_number(text).value_or(0);
  if (minutes <= 0) {
    throw Error(ExitCode::config, fmt::format("\"{}\" is not a number of minutes above 0", printable(text)), "--exit-after",
                "for example --exit-after 55");
  }
  return minutes;
}

// The value of a field from the words after its flag. Text that is not of the field's type is left to from_json(), which
// names the path and the expected type.
nlohmann::json field_value(const FieldInfo& field, const std::vector<std::string>& words) {
  if (words.empty()) return field.flag.implied;
  if (field.kind == FieldKind::text) return words[0];
  nlohmann::json parsed = nlohmann::json::parse(words[0], nullptr, false);
  if (parsed.is_number()) return parsed;
  // Forms such as ".5" and "1." are no JSON, but usual on command lines.
  const auto number = field.kind == FieldKind::number ? finite_number(words[0]) : std::nullopt;
  return number ? nlohmann::json(*number) : nlohmann::json(words[0]);
}

// Megatron-LM's forms of --data-path: "P...", or weights and prefixes in turn.
nlohmann::json data_sources(const std::vector<std::string>& words) {
  bool weighted = words.size() % 2 == 0;
  for (size_t i = 0; i < words.size(); i += 2) weighted = weighted && finite_number(words[i]).has_value();
  nlohmann::json list = nlohmann::json::array();
  for (size_t i = 0; i < words.size(); ++i) {
    if (weighted) {
      list.push_back({{"weight", *finite_number(words[i])}, {"path", words[i + 1]}});
      ++i;
    } else {
      list.push_back({{"path", words[i]}});
    }
  }
  return list;
}

void apply_field_flag(ConfigTree& tree, const cli::Given& given) {
  for (const Field<RunConfig>& f : run_fields()) {
    if (f.flag.name != given.name) continue;
    tree.set(f.path, f.kind == FieldKind::object_list ? data_sources(given.values) : field_value(f, given.values), given.name);
    return;
  }
}

Request read_request(int argc, char** argv) {
  std::vector<cli::Flag> flags;
  for (const TrainFlag& f : train_flags()) flags.push_back(f.flag);
  for (const Field<RunConfig>& f : run_fields()) {
    if (!f.flag.name.empty()) flags.push_back({f.flag.name, f.flag.takes});
  }
  const std::vector<cli::Given> given = cli::split_flags(argc, argv, flags);

  Request r;
  // The order is fixed (files, flags, --set), wherever they stand on the command line.
  for (const cli::Given& g : given) {
    if (g.name == "--help") r.text = train_help(g.values.empty() ? std::string() : g.values[0]);
    if (g.name == "--print-schema") r.text = config_schema().dump(1) + "\n";
    if (g.name == "--print-reference") r.text = config_reference();
    if (!r.text.empty()) return r;
  }
  for (const cli::Given& g : given) {
    if (g.name != "--config") continue;
    for (const std::string& file : g.values) r.tree.merge_file(file);
  }
  for (const cli::Given& g : given) apply_field_flag(r.tree, g);
  for (const cli::Given& g : given) {
    if (g.name == "--set") {
      for (const std::string& expression : g.values) r.tree.set_expression(expression);
    }
    if (g.name == "--init-from") r.options.init_from = g.values[0];
    if (g.name == "--exit-after") r.options.exit_after_minutes = parse_minutes(g.values[0]);
    if (g.name == "--allow-config-change") r.options.allow_config_change.insert(r.options.allow_config_change.end(), g.values.begin(), g.values.end());
    if (g.name == "--dump") parse_dump_request(r.options.dump = g.values[0]);
    if (g.name == "--strict") r.options.strict = true;
    if (g.name == "--dry-run") r.options.dry_run = true;
    if (g.name == "--print-config") r.print_config = true;
  }
  return r;
}

// What a job's ranks do: each reads the command line for itself, and they end together when one can not.
int train_rank(int argc, char** argv, World& world) {
  const std::unique_ptr<Comm> all = all_ranks(world);
  Request r;
  RunConfig config;
  nlohmann::json resolved;
  agree(all.get(), world, [&] {
    r = read_request(argc, argv);
    if (!r.text.empty()) return;
    config = from_json(r.tree.values, r.tree.origins);
    const nlohmann::json given = r.tree.values.flatten();
    validate(config);
    resolved = to_json(config);
    for (const char* pointer : {"/precision/amax_history_len", "/sched/decay_steps", "/data/seed"}) {
      if (!given.contains(pointer)) r.options.derived.push_back(pointer);
    }
    if (config.run.dir.empty() && !r.options.dry_run && !r.print_config) {
      throw Error(ExitCode::config, "no run directory is given", "run.dir", "add --run-dir DIR, a new or empty directory");
    }
  });
  if (!r.text.empty() || r.print_config) {
    if (world.rank() == 0) fmt::print("{}", r.text.empty() ? resolved.dump(2) + "\n" : r.text);
    return static_cast<int>(ExitCode::ok);
  }
#ifdef OCTET_HAVE_CUDA
  if (config.log.profile) r.options.trace_hooks = cuda::nvtx_hooks();
#endif
  // When nobody reads the console any more, training goes on: log.txt and metrics.jsonl have it all.
  if (!r.options.dry_run) std::signal(SIGPIPE, SIG_IGN);
  return static_cast<int>(train(config, r.options, resolved, world, all.get()));
}

}  // namespace

int run_train(int argc, char** argv) {
  return run_job([&](World& world) { return train_rank(argc, argv, world); });
}

}  // namespace octet
