#include "worker/node/metrics_server.h"

#include <CivetServer.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

namespace warproll {
namespace {

std::string serialize(const std::vector<Metric>& metrics) {
  std::vector<prometheus::MetricFamily> families;
  std::map<std::string, size_t> index_of;
  for (const Metric& metric : metrics) {
    const auto [entry, added] = index_of.try_emplace(metric.name, families.size());
    if (added) {
      prometheus::MetricFamily family;
      family.name = metric.name;
      family.help = metric.help;
      family.type = metric.type == MetricType::kCounter ? prometheus::MetricType::Counter
                                                        : prometheus::MetricType::Gauge;
      families.push_back(std::move(family));
    }
    prometheus::ClientMetric value;
    for (const auto& [name, text] : metric.labels) value.label.push_back({name, text});
    if (metric.type == MetricType::kCounter) {
      value.counter.value = metric.value;
    } else {
      value.gauge.value = metric.value;
    }
    families[entry->second].metric.push_back(std::move(value));
  }
  return prometheus::TextSerializer().Serialize(families);
}

void answer(mg_connection* connection, int code, const char* reason, const char* type,
            const std::string& body) {
  mg_printf(
      connection,
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
      code, reason, type, body.size());
  mg_write(connection, body.data(), body.size());
}

class Handler final : public CivetHandler {
 public:
  using Function = std::function<void(mg_connection*)>;
  explicit Handler(Function function) : function_(std::move(function)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    function_(connection);
    return true;
  }

 private:
  const Function function_;
};

}  // namespace

struct MetricsServer::Impl {
  Impl(const std::string& bind, const std::vector<std::string>& options,
       std::function<std::vector<Metric>()> metrics, std::function<Health()> health)
      : host(bind.starts_with('[') ? bind.substr(1, bind.size() - 2) : bind),
        metrics_handler([metrics = std::move(metrics)](mg_connection* connection) {
          answer(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8",
                 serialize(metrics()));
        }),
        health_handler([health = std::move(health)](mg_connection* connection) {
          const Health state = health();
          answer(connection, state.healthy ? 200 : 503,
                 state.healthy ? "OK" : "Service Unavailable", "application/json",
                 state.json + "\n");
        }),
        server(options) {
    server.addHandler("/metrics", metrics_handler);
    server.addHandler("/healthz", health_handler);
  }
  const std::string host;  // where the server is reached
  Handler metrics_handler;
  Handler health_handler;
  CivetServer server;
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// The server sees that it is to stop when a connection comes, else after up to two seconds.
MetricsServer::~MetricsServer() {
  const int port = this->port();
  std::atomic<bool> has_stopped{false};
  std::thread stopping([&] {
    impl_->server.close();
    has_stopped = true;
  });
  while (!has_stopped) {
    char error[64];
    mg_connection* knock = mg_connect_client(impl_->host.c_str(), port, 0, error, sizeof error);
    if (knock != nullptr) mg_close_connection(knock);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  stopping.join();
}

int MetricsServer::port() const { return impl_->server.getListeningPorts().at(0); }

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(
    const std::string& bind, int port, std::function<std::vector<Metric>()> metrics,
    std::function<Health()> health) {
  const std::string address = bind + ":" + std::to_string(port);
  try {
    return std::unique_ptr<MetricsServer>(new MetricsServer(
        std::make_unique<Impl>(bind,
                               std::vector<std::string>{"listening_ports", address, "num_threads",
                                                        "2", "request_timeout_ms", "5000"},
                               std::move(metrics), std::move(health))));
  } catch (const CivetException& error) {
    return unavailable("metrics: cannot listen on " + address + " (" + error.what() +
                       "); another process may have it, see metrics.bind and metrics.port");
  }
}

}  // namespace warproll
