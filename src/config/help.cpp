#include "config/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/fields.h"

namespace octet {
namespace {

struct Section {
  const char* key;
  const char* title;
};

constexpr Section kSections[] = {
    {"model", "Model (keys are those of a Hugging Face config.json)"},
    {"data", "Data"},
    {"batch", "Batch"},
    {"optim", "Optimizer"},
    {"sched", "Learning-rate schedule"},
    {"precision", "Precision"},
    {"parallel", "Parallel layout"},
    {"recompute", "Recomputation"},
    {"ckpt", "Checkpoints"},
    {"eval", "Validation"},
    {"log", "Console"},
    {"guard", "Guards"},
    {"run", "Run"},
};

std::string type_text(const FieldInfo& f) {
  if (!f.choices.empty()) {
    const std::string choices = fmt::format("{}", fmt::join(f.choices, "|"));
    return f.kind == FieldKind::text_list ? "[" + choices + ", ...]" : choices;
  }
  switch (f.kind) {
    case FieldKind::integer: return "integer";
    case FieldKind::number: return "number";
    case FieldKind::boolean: return "true|false";
    case FieldKind::text: return "text";
    case FieldKind::text_list: return "[text, ...]";
    case FieldKind::object: return "{...}";
    case FieldKind::object_list: break;
  }
  std::string keys;
  for (const FieldInfo& e : f.element) keys += (keys.empty() ? "" : ", ") + e.path;
  return "[{" + keys + "}, ...]";
}

std::string default_text(const FieldInfo& f) {
  if (f.required()) return "required";
  if (!f.fallback_note.empty()) return "default: " + f.fallback_note;
  return f.fallback == "" ? "default: none" : "default: " + f.fallback.dump();
}

std::string flag_text(const FieldInfo& f) {
  switch (f.flag.takes) {
    case FlagTakes::nothing: return f.flag.name + " (sets " + f.flag.implied.dump() + ")";
    case FlagTakes::value: return f.flag.name + " V";
    case FlagTakes::optional_value: return f.flag.name + " [V]";
    case FlagTakes::values: return f.flag.name + " V...";
  }
  return {};
}

}  // namespace

std::string config_help() {
  std::string text = "Config keys. Each can be set by --set KEY=VALUE, some by a flag of their own (last column).\n";
  for (const Section& s : kSections) {
    text += fmt::format("\n{}\n", s.title);
    for (const FieldInfo& f : run_fields()) {
      if (f.path.rfind(std::string(s.key) + ".", 0) != 0) continue;
      text += fmt::format("  {:<39} {}{}{}\n", f.path, type_text(f), f.flag.name.empty() ? "" : "   ", f.flag.name.empty() ? "" : flag_text(f));
      text += fmt::format("      {} ({})\n", f.doc, default_text(f));
    }
  }
  return text;
}

}  // namespace octet
