// Logging: one line on stderr for people, or one JSON object a line for collectors. Only worker/
// logs; other folders return Status or count. Thread: any.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace warproll {

enum class LogLevel { kTrace, kDebug, kInfo, kWarn, kError };

class Logger {
 public:
  // level and format as in the configuration; name is in every line ("worker-1").
  Logger(const std::string& name, const std::string& level, const std::string& format);
  void log(LogLevel level, std::string_view message) const;
  void debug(std::string_view message) const { log(LogLevel::kDebug, message); }
  void info(std::string_view message) const { log(LogLevel::kInfo, message); }
  void warn(std::string_view message) const { log(LogLevel::kWarn, message); }
  void error(std::string_view message) const { log(LogLevel::kError, message); }

 private:
  struct Sink;
  std::shared_ptr<Sink> sink_;
};

}  // namespace warproll
