// MetricsServer: GET /metrics (Prometheus text format) and GET /healthz (200 or 503 with a JSON
// body) over HTTP. Values are asked for at each request; nothing is counted here.
// Thread: owns its own; the two functions are called on them and must be thread-safe.
// Lifetime: what the functions use must outlive the server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "protocol/status.h"

namespace warproll {

enum class MetricType { kCounter, kGauge };

struct Metric {
  std::string name;  // "warproll_tokens_total"; unit in the name
  std::string help;
  MetricType type = MetricType::kGauge;
  double value = 0;
  std::vector<std::pair<std::string, std::string>> labels;
};

struct Health {
  bool healthy = true;
  std::string json;  // the body
};

class MetricsServer {
 public:
  // port 0 = any free one. kUnavailable when the address cannot be bound.
  static Result<std::unique_ptr<MetricsServer>> start(const std::string& bind, int port,
                                                      std::function<std::vector<Metric>()> metrics,
                                                      std::function<Health()> health);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  [[nodiscard]] int port() const;

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warproll
