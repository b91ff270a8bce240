// Text tables and human units for the console, the memory plan and the comparison.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// The text with control characters and invalid UTF-8 replaced by '?': names come from outside and must not steer a terminal.
std::string terminal_text(std::string_view text);

class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::right;
  };
  explicit Table(std::vector<Column> columns);
  // As many cells as there are columns.
  void add_row(std::vector<std::string> cells);
  // Title, rule and rows; columns two spaces apart, no trailing spaces, each line ends with '\n'.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

std::string human_count(double n);        // 950, 12.3K, 4.56M, 7.89G  (powers of 1000)
std::string human_bytes(uint64_t bytes);  // 512 B, 1.50 KiB, 2.00 GiB  (powers of 1024)
std::string human_duration(double s);     // 0.42 s, 12 s, 3m 05s, 2h 07m, 3d 04h; "?" when not finite or negative

}  // namespace octet
