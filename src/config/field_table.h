// Building blocks of fields.cpp: rows are listed with Table::add() and refined by the methods of Row. Internal to config/.
// Row is neither a template nor inline, and closures depend on a member's type only: the table is long, and must compile fast.
#pragma once
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/field_values.h"

namespace octet::config_detail {

class Row {
 public:
  explicit Row(FieldInfo& field) : field_(field) {}
  Row& at_least(double v);
  Row& above(double v);
  Row& at_most(double v);
  Row& below(double v);
  Row& one_of(const std::vector<std::string>& choices);
  Row& one_of(std::initializer_list<const char*> choices);
  Row& refuse(const char* value, const char* reason);     // an explanation instead of "must be one of"
  Row& required(const char* example);
  Row& unless(const char* alternative);                   // required, if that field is not given
  Row& derived(const char* how);                          // what an absent value becomes
  Row& of(const std::vector<FieldInfo>& element);
  Row& units();                                           // "32k" is read as 32000
  Row& flag(const char* name);                            // --name VALUE
  Row& flag_values(const char* name);                     // --name VALUE...
  Row& flag_switch(const char* name, bool implied);       // --name
  Row& flag_switch(const char* name, const char* implied);
  Row& flag_optional(const char* name, int implied);      // --name [VALUE]

 private:
  FieldInfo& field_;
};

// The rows of struct S while they are listed.
template <class S>
class Table {
 public:
  // access: a captureless lambda from S& to a reference to the member. on_resume has no default: each field decides.
  template <class Access>
  Row add(OnResume on_resume, const char* path, Access access, const char* doc) {
    using T = std::remove_reference_t<decltype(access(std::declval<S&>()))>;
    return add_member<T>(on_resume, path, static_cast<T& (*)(S&)>(access), doc);
  }

  std::vector<Field<S>> fields;

 private:
  template <class T>
  [[gnu::noinline]] Row add_member(OnResume on_resume, const char* path, T& (*access)(S&), const char* doc) {
    Field<S>& f = fields.emplace_back();
    f.path = path;
    f.kind = KindOf<T>::value;
    f.on_resume = on_resume;
    f.is_unsigned = std::is_same_v<T, uint64_t>;
    f.doc = doc;
    f.read = [access](S& s, const nlohmann::json& j, const FieldInfo& info, const Place& place) { read_value(access(s), j, info, place); };
    f.write = [access](const S& s) { return write_value(std::as_const(access(const_cast<S&>(s)))); };   // only read
    f.fallback = f.write(S{});
    return Row(f);
  }
};

// JSON path and accessor of a member: the keys are the members' names.
#define OCTET_FIELD(member) #member, [](auto& c) -> auto& { return c.member; }

}  // namespace octet::config_detail
