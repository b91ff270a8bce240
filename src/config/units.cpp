#include "config/units.h"

#include <limits>
#include <utility>

namespace octet {
namespace {

constexpr size_t kMaxDigits = 18;  // so that digits x 10^12 fits 128 bits

// The factor of a suffix; 0: no suffix.
int64_t factor(std::string_view suffix) {
  constexpr std::pair<std::string_view, int64_t> table[] = {{"k", 1'000},         {"K", 1'000},       {"M", 1'000'000},
                                                            {"G", 1'000'000'000}, {"B", 1'000'000'000}, {"T", 1'000'000'000'000},
                                                            {"Ki", 1 << 10},      {"Mi", 1 << 20},    {"Gi", 1 << 30}};
  for (const auto& [name, value] : table) {
    if (name == suffix) return value;
  }
  return 0;
}

bool digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

UnitCount parse_unit_count(std::string_view text) {
  __extension__ using Wide = __int128;
  Wide digits = 0, divisor = 1;
  size_t at = 0, count = 0;
  bool point = false;
  for (; at < text.size() && (digit(text[at]) || (text[at] == '.' && !point && at > 0)); ++at) {
    if (text[at] == '.') {
      point = true;
      continue;
    }
    if (++count > kMaxDigits) continue;
    digits = digits * 10 + (text[at] - '0');
    if (point) divisor *= 10;
  }
  const int64_t unit = factor(text.substr(at));
  if (count == 0 || unit == 0 || (point && text[at - 1] == '.')) return {0, UnitFault::syntax};
  if (count > kMaxDigits) return {0, UnitFault::too_large};
  const Wide scaled = digits * unit;
  if (scaled % divisor != 0) return {0, UnitFault::fraction};
  const Wide value = scaled / divisor;
  if (value > std::numeric_limits<int64_t>::max()) return {0, UnitFault::too_large};
  return {static_cast<int64_t>(value), UnitFault::none};
}

}  // namespace octet
