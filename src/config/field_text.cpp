#include "config/field_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace octet::config_detail {

const std::vector<Section>& sections() {
  static const std::vector<Section> table = {
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
      {"log", "Logging"},
      {"guard", "Guards"},
      {"run", "Run"},
  };
  return table;
}

std::vector<const FieldInfo*> fields_of(const Section& section) {
  std::vector<const FieldInfo*> out;
  for (const FieldInfo& f : run_fields()) {
    if (f.path.rfind(section.key + ".", 0) == 0) out.push_back(&f);
  }
  return out;
}

std::string type_text(const FieldInfo& f) {
  if (!f.choices.empty()) {
    const std::string choices = fmt::format("{}", fmt::join(f.choices, "|"));
    return f.kind == FieldKind::text_list ? "[" + choices + ", ...]" : choices;
  }
  switch (f.kind) {
    case FieldKind::integer: return f.takes_units ? "integer or \"32k\"" : "integer";
    case FieldKind::number: return "number";
    case FieldKind::boolean: return "true|false";
    case FieldKind::text: return "text";
    case FieldKind::text_list: return "[text, ...]";
    case FieldKind::operands: return "{fprop: {x, w}, dgrad: {dy, w}, wgrad: {dy, x}}";
    case FieldKind::block: return "tensor|row|[rows, length]";
    case FieldKind::object_list: break;
  }
  std::string keys;
  for (const FieldInfo& e : f.element) keys += (keys.empty() ? "" : ", ") + e.path;
  return "[{" + keys + "}, ...]";
}

std::string default_text(const FieldInfo& f) {
  if (f.required()) return f.alternative.empty() ? "required" : "required, or " + f.alternative;
  if (!f.fallback_note.empty()) return f.fallback_note;
  return f.fallback == "" ? "none" : f.fallback.dump();
}

std::string flag_text(const FieldInfo& f) {
  if (f.flag.name.empty()) return {};
  switch (f.flag.takes) {
    case FlagTakes::nothing: return f.flag.name + " (sets " + f.flag.implied.dump() + ")";
    case FlagTakes::value: return f.flag.name + " V";
    case FlagTakes::optional_value:
    case FlagTakes::optional_word: return f.flag.name + " [V]";
    case FlagTakes::values: return f.flag.name + " V...";
  }
  return {};
}

std::string resume_text(OnResume on_resume) {
  switch (on_resume) {
    case OnResume::free: return "free";
    case OnResume::warn: return "warns";
    case OnResume::forbidden: return "refused";
    case OnResume::fixed: return "fixed";
  }
  return {};
}

}  // namespace octet::config_detail
