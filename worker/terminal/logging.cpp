#include "worker/terminal/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

namespace warproll {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

struct Logger::Sink {
  std::shared_ptr<spdlog::logger> logger;
  bool json = false;
};

Logger::Logger(const std::string& name, const std::string& level, const std::string& format)
    : sink_(std::make_shared<Sink>()) {
  sink_->json = format == "json";
  sink_->logger =
      std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  sink_->logger->set_level(spdlog::level::from_str(level == "error" ? "err" : level));
  sink_->logger->flush_on(spdlog::level::trace);
  const std::string quoted_name = nlohmann::json(name).dump();
  sink_->logger->set_pattern(sink_->json
                                 ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","name":)" +
                                       quoted_name + R"(,"message":%v})"
                                 : "%H:%M:%S.%e %L [%n] %v");
}

void Logger::log(LogLevel level, std::string_view message) const {
  if (!sink_->logger->should_log(to_spdlog(level))) return;
  if (!sink_->json) return sink_->logger->log(to_spdlog(level), message);
  sink_->logger->log(
      to_spdlog(level),
      nlohmann::json(message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace warproll
