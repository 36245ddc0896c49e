// ConfigVisitor: one description of a configuration serves reading, checking and printing it.
// A config struct has `void describe(ConfigVisitor&, WorkerConfig&)`, which names each key once
// with its field, range and comment; the field's initialiser is the default. Errors are collected,
// not thrown: file, line, key, value got, value wanted. Thread: one.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace warproll {

struct Range {  // inclusive
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};

class ConfigVisitor {
 public:
  virtual ~ConfigVisitor() = default;
  virtual void begin_section(std::string_view name, std::string_view comment) = 0;
  virtual void end_section() = 0;
  virtual void text(std::string_view key, std::string& field, std::string_view comment) = 0;
  virtual void choice(std::string_view key, std::string& field,
                      const std::vector<std::string>& choices, std::string_view comment) = 0;
  virtual void flag(std::string_view key, bool& field, std::string_view comment) = 0;
  virtual void integer(std::string_view key, int64_t& field, Range range,
                       std::string_view comment) = 0;
  virtual void number(std::string_view key, double& field, Range range,
                      std::string_view comment) = 0;
  virtual void list(std::string_view key, std::vector<std::string>& field,
                    std::string_view comment) = 0;
};

// Opens a section for the life of the object.
class ConfigSection {
 public:
  ConfigSection(ConfigVisitor& visitor, std::string_view name, std::string_view comment)
      : visitor_(visitor) {
    visitor_.begin_section(name, comment);
  }
  ~ConfigSection() { visitor_.end_section(); }
  ConfigSection(const ConfigSection&) = delete;
  ConfigSection& operator=(const ConfigSection&) = delete;

 private:
  ConfigVisitor& visitor_;
};

}  // namespace warproll
