#include "config/nearest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace octet {
namespace {

constexpr size_t kMaxLength = 128;

char folded(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kMaxLength);
  b = b.substr(0, kMaxLength);
  using Row = std::array<size_t, kMaxLength + 1>;
  Row rows[3];
  Row *before = &rows[0], *previous = &rows[1], *current = &rows[2];
  for (size_t j = 0; j <= b.size(); ++j) (*current)[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, previous);
    std::swap(previous, current);
    Row& row = *current;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const char x = folded(a[i - 1]), y = folded(b[j - 1]);
      row[j] = std::min({(*previous)[j] + 1, row[j - 1] + 1, (*previous)[j - 1] + (x == y ? 0u : 1u)});
      if (i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y) row[j] = std::min(row[j], (*before)[j - 2] + 1);
    }
  }
  return (*current)[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  size_t least = std::numeric_limits<size_t>::max();
  for (const std::string& c : candidates) {
    // So many insertions or deletions are needed at least.
    const size_t a = std::min(word.size(), kMaxLength), b = std::min(c.size(), kMaxLength), gap = a > b ? a - b : b - a;
    if (gap >= least) continue;
    const size_t distance = edit_distance(word, c);
    if (distance >= least) continue;
    least = distance;
    best = &c;
  }
  return best ? *best : std::string();
}

bool plausible_typo(std::string_view word, std::string_view candidate) {
  return edit_distance(word, candidate) <= std::max<size_t>(2, std::min(word.size(), kMaxLength) / 3);
}

std::string printable(std::string_view text, size_t limit) {
  std::string out(text.substr(0, limit));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > limit) out += "...";
  return out;
}

}  // namespace octet
