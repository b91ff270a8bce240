#include "config/nearest.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

namespace octet {
namespace {

constexpr size_t kMaxLength = 128;

char folded(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

// What counts of a text, folded.
struct Letters {
  std::array<char, kMaxLength> of;
  size_t size;

  explicit Letters(std::string_view text) : size(std::min(text.size(), kMaxLength)) { std::transform(text.begin(), text.begin() + size, of.begin(), folded); }
};

// The edit distance, or `limit` when it is not below that.
size_t distance_below(const Letters& a, const Letters& b, size_t limit) {
  if (std::max(a.size, b.size) - std::min(a.size, b.size) >= limit) return limit;   // so many insertions or deletions are needed at least
  uint16_t rows[3][kMaxLength + 1];
  uint16_t *before = rows[0], *previous = rows[1], *current = rows[2];
  const char* const y = b.of.data();
  for (size_t j = 0; j <= b.size; ++j) current[j] = static_cast<uint16_t>(j);
  uint16_t least_of_previous = 0;
  for (size_t i = 1; i <= a.size; ++i) {
    uint16_t* const free = before;
    before = previous;
    previous = current;
    current = free;
    const char x = a.of[i - 1], x_before = i > 1 ? a.of[i - 2] : '\0';
    uint16_t least = current[0] = static_cast<uint16_t>(i);
    for (size_t j = 1; j <= b.size; ++j) {
      int cost = std::min(previous[j] + 1, current[j - 1] + 1);
      cost = std::min(cost, previous[j - 1] + (x == y[j - 1] ? 0 : 1));
      if (i > 1 && j > 1 && x == y[j - 2] && x_before == y[j - 1]) cost = std::min(cost, before[j - 2] + 1);
      current[j] = static_cast<uint16_t>(cost);
      least = std::min(least, current[j]);
    }
    // Every way to the end goes through this row or, by a swap, through the one before.
    if (std::min(least, least_of_previous) >= limit) return limit;
    least_of_previous = least;
  }
  return std::min<size_t>(current[b.size], limit);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) { return distance_below(Letters(a), Letters(b), std::numeric_limits<size_t>::max()); }

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  size_t least = std::numeric_limits<size_t>::max();
  const Letters letters(word);
  for (const std::string& c : candidates) {
    const size_t distance = distance_below(letters, Letters(c), least);
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
