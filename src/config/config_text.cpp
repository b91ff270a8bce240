// JSON text -> value, strictly: what nlohmann::json accepts silently (duplicate keys) or reports without a place is an error
// with file, line and column here.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "config/config_io.h"
#include "config/nearest.h"
#include "core/error.h"

namespace octet {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20, kMaxKeys = 20000, kMaxDepth = 16, kMaxKeyLength = 128;

// Walks over the text and tells how far the parser has read: SAX events carry no position.
class TrackedIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedIterator() = default;
  TrackedIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  TrackedIterator& operator++() {
    ++at_;
    if (furthest_) *furthest_ = at_;
    return *this;
  }
  TrackedIterator operator++(int) {
    TrackedIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const TrackedIterator& o) const { return at_ == o.at_; }

 private:
  const char* at_ = nullptr;
  const char** furthest_ = nullptr;
};

class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(const std::string& text, const std::string& name, Origins* origins)
      : text_(text), name_(name), origins_(origins), furthest_(text.data()), counted_(text.data()) {}

  TrackedIterator begin() { return {text_.data(), &furthest_}; }
  TrackedIterator end() { return {text_.data() + text_.size(), nullptr}; }
  nlohmann::json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool v) override { return add(v); }
  bool number_integer(number_integer_t v) override { return add(v); }
  bool number_unsigned(number_unsigned_t v) override { return add(v); }
  bool number_float(number_float_t v, const string_t&) override { return add(v); }
  bool string(string_t& v) override { return add(v); }
  bool binary(binary_t&) override { return false; }   // not in JSON text
  bool start_object(std::size_t) override { return open(nlohmann::json::object()); }
  bool start_array(std::size_t) override { return open(nlohmann::json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& k) override {
    if (k.size() > kMaxKeyLength) fail(fmt::format("a key of {} characters", k.size()), "keys have at most 128");
    if (++keys_ > kMaxKeys) fail(fmt::format("more than {} keys", kMaxKeys), {});
    key_ = k;
    const std::string path = child_path();
    if (stack_.back()->contains(k)) fail("duplicate key " + printable(path, 160), "keep one of the two");
    if (origins_) (*origins_)[path] = fmt::format("{}:{}", name_, line());
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& e) override {
    const size_t at = std::min(position ? position - 1 : 0, text_.size());
    const auto first = text_.begin(), last = text_.begin() + static_cast<std::ptrdiff_t>(at);
    const auto row = 1 + std::count(first, last, '\n');
    const size_t newline = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
    const size_t column = newline == std::string::npos ? at + 1 : at - newline;
    // The library's text repeats the position in its own format; only the reason is kept.
    std::string reason = e.what();
    for (const char* cut : {"] ", "syntax error "}) {
      if (const size_t p = reason.find(cut); p != std::string::npos) reason = reason.substr(p + std::strlen(cut));
    }
    throw Error(ExitCode::config, "not valid JSON " + printable(reason, 200), fmt::format("{}:{}:{}", name_, row, column));
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& fix) {
    throw Error(ExitCode::config, what, fmt::format("{}:{}", name_, line()), fix);
  }

  int64_t line() {
    line_ += std::count(counted_, furthest_, '\n');
    counted_ = furthest_;
    return line_;
  }

  std::string child_path() const {
    const std::string last = stack_.back()->is_array() ? std::to_string(stack_.back()->size() - 1) : key_;
    return paths_.back().empty() ? last : paths_.back() + "." + last;
  }

  template <class T>
  nlohmann::json* place(T&& v) {
    if (stack_.empty()) {
      root_ = std::forward<T>(v);
      return &root_;
    }
    nlohmann::json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::forward<T>(v));
      return &parent.back();
    }
    return &(parent[key_] = std::forward<T>(v));
  }

  template <class T>
  bool add(T&& v) {
    place(std::forward<T>(v));
    return true;
  }

  bool open(nlohmann::json container) {
    if (stack_.size() >= kMaxDepth) fail(fmt::format("nested more than {} levels deep", kMaxDepth), {});
    nlohmann::json* at = place(std::move(container));
    paths_.push_back(stack_.empty() ? std::string() : child_path());
    stack_.push_back(at);
    return true;
  }

  bool close() {
    stack_.pop_back();
    paths_.pop_back();
    return true;
  }

  const std::string& text_;
  const std::string& name_;
  Origins* origins_;
  const char* furthest_;
  const char* counted_;
  int64_t line_ = 1;
  size_t keys_ = 0;
  nlohmann::json root_;
  std::vector<nlohmann::json*> stack_;   // open containers; only the last one grows, so the pointers stay valid
  std::vector<std::string> paths_;
  std::string key_;
};

}  // namespace

nlohmann::json parse_config_text(const std::string& text, const std::string& name, Origins* origins) {
  if (text.size() > kMaxBytes) throw Error(ExitCode::config, "larger than 1 MiB, which no config is", name, "give a JSON config file");
  Builder builder(text, name, origins);
  nlohmann::json::sax_parse(builder.begin(), builder.end(), &builder, nlohmann::json::input_format_t::json, true, true);
  nlohmann::json value = builder.take();
  if (!value.is_object()) throw Error(ExitCode::config, "the top level of a config must be an object", name, "write {\"model\": {...}, ...}");
  return value;
}

nlohmann::json load_config_file(const std::string& path, Origins* origins) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw Error(ExitCode::config, "is a directory, not a config file", path, "name a JSON file in it");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw Error(ExitCode::config, fmt::format("cannot open the config file: {}", std::strerror(errno)), path, "check the path given to --config");
  }
  std::string text(kMaxBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) throw Error(ExitCode::config, fmt::format("cannot read the config file: {}", std::strerror(errno)), path);
  text.resize(static_cast<size_t>(in.gcount()));
  return parse_config_text(text, path, origins);
}

}  // namespace octet
