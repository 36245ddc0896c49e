#include "worker/terminal/table.h"

#include <algorithm>
#include <cstdio>

namespace warproll {
namespace {

// Width on the terminal: UTF-8 continuation bytes take no column.
size_t columns_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.,-+%eE ") == std::string::npos &&
         text.find_first_of("0123456789") != std::string::npos;
}

}  // namespace

std::string Table::to_string() const {
  size_t num_columns = 0;
  for (const auto& row : rows_) num_columns = std::max(num_columns, row.size());
  std::vector<size_t> widths(num_columns, 0);
  std::vector<bool> right(num_columns, rows_.size() > 1);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      widths[c] = std::max(widths[c], columns_of(rows_[r][c]));
      if (r > 0 && rows_[r][c] != "-" && !is_number(rows_[r][c])) right[c] = false;
    }
  }
  std::string result;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      if (c > 0) line += "  ";
      const std::string padding(widths[c] - columns_of(row[c]), ' ');
      line += right[c] ? padding + row[c] : row[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  }
  return result;
}

std::string format_number(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

}  // namespace warproll
