#include "config/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/field_text.h"
#include "config/field_values.h"
#include "core/check.h"

namespace octet {
namespace {

using config_detail::Section;

std::string section_help(const Section& s) {
  std::string text = fmt::format("{}\n", s.title);
  for (const FieldInfo* f : config_detail::fields_of(s)) {
    const std::string flag = config_detail::flag_text(*f);
    text += fmt::format("  {:<39} {}{}{}\n", f->path, config_detail::type_text(*f), flag.empty() ? "" : "   ", flag);
    text += fmt::format("      {} ({}{})\n", f->doc, f->required() ? "" : "default: ", config_detail::default_text(*f));
  }
  return text;
}

std::string field_help(const FieldInfo& f) {
  std::string text = fmt::format("{}\n  {}\n\n", f.path, f.doc);
  const auto line = [&](const char* what, const std::string& value) {
    if (!value.empty()) text += fmt::format("  {:<10} {}\n", what, value);
  };
  line("type", config_detail::type_text(f));
  line("range", config_detail::range_text(f));
  line("default", config_detail::default_text(f));
  line("flag", config_detail::flag_text(f));
  const std::string value = f.required() ? f.example : f.fallback.is_null() || f.fallback == "" ? "VALUE" : f.fallback.dump();
  line("set", fmt::format("--set '{}={}'", f.path, value));
  line("on resume", config_detail::resume_text(f.on_resume));
  for (const FieldInfo& e : f.element) {
    text += fmt::format("\n  {}: {} ({}{})\n      {}\n", e.path, config_detail::type_text(e), e.required() ? "" : "default: ", config_detail::default_text(e), e.doc);
  }
  return text;
}

const FieldInfo* field_of_flag(const std::string& flag) {
  for (const FieldInfo& f : run_fields()) {
    if (!f.flag.name.empty() && f.flag.name == flag) return &f;
  }
  return nullptr;
}

}  // namespace

std::string config_help() {
  std::string text = "Config keys. Each can be set by --set KEY=VALUE, some by a flag of their own (last column).\n";
  for (const Section& s : config_detail::sections()) text += "\n" + section_help(s);
  return text;
}

std::vector<std::string> config_sections() {
  std::vector<std::string> out;
  for (const Section& s : config_detail::sections()) out.push_back(s.key);
  return out;
}

std::string config_help(const std::string& topic) {
  for (const Section& s : config_detail::sections()) {
    if (s.key == topic) return section_help(s);
  }
  const FieldInfo* field = topic.rfind("--", 0) == 0 ? field_of_flag(topic) : find_field(topic);
  return field ? field_help(*field) : std::string();
}

std::string flag_help(const std::string& flag) {
  const FieldInfo* f = field_of_flag(flag);
  OCTET_CHECK(f, "there is no flag {}", flag);
  // Choices are in the usage only where they are few: a newcomer reads this.
  std::string note = f->required() ? "" : fmt::format(" (default: {})", config_detail::default_text(*f));
  const std::string shape = f->flag.takes == FlagTakes::values ? flag + " V..." : flag + " V";
  return fmt::format("  {:<27} {}{}\n", shape, f->doc, note);
}

}  // namespace octet
