#include "report/table.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace octet {
namespace {

// Length of the valid UTF-8 sequence at text[i] (Unicode 15, table 3-7), or 0.
size_t utf8_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
  const auto continues = [&](size_t k) { return (byte(k) & 0xC0u) == 0x80u; };
  const unsigned b = byte(i), next = byte(i + 1);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return continues(i + 1) ? 2 : 0;
  if (b >= 0xE0 && b <= 0xEF) {
    const bool ok = continues(i + 1) && continues(i + 2) && !(b == 0xE0 && next < 0xA0) && !(b == 0xED && next > 0x9F);
    return ok ? 3 : 0;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    const bool ok = continues(i + 1) && continues(i + 2) && continues(i + 3) && !(b == 0xF0 && next < 0x90) && !(b == 0xF4 && next > 0x8F);
    return ok ? 4 : 0;
  }
  return 0;
}

size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

std::string three_digits(double v) { return fmt::format("{:.{}f}", v, v < 9.995 ? 2 : v < 99.95 ? 1 : 0); }

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8_length(text, i);
    const auto b = static_cast<unsigned char>(text[i]);
    // U+0080..U+009F (C2 80..9F) are control characters too; U+202A..E and U+2066..9 reorder the text around them.
    const std::string_view c = text.substr(i, std::max<size_t>(n, 1));
    const bool control = n == 0 || b < 0x20 || b == 0x7F || (n == 2 && b == 0xC2 && static_cast<unsigned char>(c[1]) < 0xA0) ||
                         (c >= "\xE2\x80\xAA" && c <= "\xE2\x80\xAE") || (c >= "\xE2\x81\xA6" && c <= "\xE2\x81\xA9");
    out += control ? std::string_view("?") : c;
    i += c.size();
  }
  return out;
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add_row(std::vector<std::string> cells) {
  OCTET_CHECK(cells.size() == columns_.size(), "table row has {} cells for {} columns", cells.size(), columns_.size());
  for (auto& cell : cells) cell = terminal_text(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> width;
  for (const auto& column : columns_) width.push_back(display_width(column.title));
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], display_width(row[c]));
  }
  std::string out;
  const auto line = [&](auto&& cell_of) {
    std::string text;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string cell = cell_of(c);
      const std::string pad(width[c] - display_width(cell), ' ');
      text += (c ? "  " : "") + (columns_[c].align == Align::left ? cell + pad : pad + cell);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](size_t c) { return columns_[c].title; });
  line([&](size_t c) { return std::string(width[c], '-'); });
  for (const auto& row : rows_) line([&](size_t c) { return row[c]; });
  return out;
}

std::string human_count(double n) {
  if (!std::isfinite(n)) return "?";
  if (n < 0) return "-" + human_count(-n);
  if (n < 999.5) return n == std::floor(n) ? fmt::format("{:.0f}", n) : three_digits(n);
  const char* const suffixes = "KMGTP";
  size_t k = 0;
  for (n /= 1000; n >= 999.5 && k < 4; n /= 1000) ++k;
  return three_digits(n) + suffixes[k];
}

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  const char* const suffixes = "KMGTPE";
  double n = static_cast<double>(bytes) / 1024;
  size_t k = 0;
  for (; n >= 1023.995 && k < 5; n /= 1024) ++k;
  return fmt::format("{:.2f} {}iB", n, suffixes[k]);
}

std::string human_duration(double s) {
  if (!(s >= 0) || s > 1e12) return "?";
  if (s < 9.995) return fmt::format("{:.2f} s", s);
  const auto t = static_cast<int64_t>(std::llround(s));
  if (t < 60) return fmt::format("{} s", t);
  if (t < 3600) return fmt::format("{}m {:02}s", t / 60, t % 60);
  if (t < 86400) return fmt::format("{}h {:02}m", t / 3600, t / 60 % 60);
  return fmt::format("{}d {:02}h", t / 86400, t / 3600 % 24);
}

}  // namespace octet
