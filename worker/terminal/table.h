// Table: aligned columns for people. Numbers are right-aligned. Thread: one.
#pragma once

#include <string>
#include <vector>

namespace warproll {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] size_t num_rows() const { return rows_.size() - 1; }
  // Lines end with '\n'; two spaces between columns.
  [[nodiscard]] std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// printf-style number with `decimals` places.
std::string format_number(double value, int decimals);

}  // namespace warproll
