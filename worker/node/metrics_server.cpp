#include "worker/node/metrics_server.h"

#include <civetweb.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <chrono>
#include <map>
#include <string_view>
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

}  // namespace

struct MetricsServer::Impl {
  std::string host;  // where the server is reached
  std::function<std::vector<Metric>()> metrics;
  std::function<Health()> health;
  mg_context* context = nullptr;

  // Of every request, from the first connection on. 0: not ours, which the server answers with 404.
  static int on_request(mg_connection* connection) {
    const mg_request_info& request = *mg_get_request_info(connection);
    const auto& self = *static_cast<const Impl*>(request.user_data);
    const std::string_view path = request.local_uri;
    if (std::string_view(request.request_method) != "GET") return 0;
    if (path == "/metrics") {
      answer(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8",
             serialize(self.metrics()));
      return 200;
    }
    if (path != "/healthz") return 0;
    const Health state = self.health();
    const int code = state.healthy ? 200 : 503;
    answer(connection, code, state.healthy ? "OK" : "Service Unavailable", "application/json",
           state.json + "\n");
    return code;
  }
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// The server sees that it is to stop when a connection comes, else after up to two seconds.
MetricsServer::~MetricsServer() {
  const int port = this->port();
  std::atomic<bool> has_stopped{false};
  std::thread stopping([&] {
    mg_stop(impl_->context);
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

int MetricsServer::port() const {
  mg_server_port port{};
  mg_get_server_ports(impl_->context, 1, &port);
  return port.port;
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(
    const std::string& bind, int port, std::function<std::vector<Metric>()> metrics,
    std::function<Health()> health) {
  auto impl = std::make_unique<Impl>();
  impl->host = bind.starts_with('[') ? bind.substr(1, bind.size() - 2) : bind;
  impl->metrics = std::move(metrics);
  impl->health = std::move(health);
  const std::string address = bind + ":" + std::to_string(port);
  const char* options[] = {"listening_ports",    address.c_str(), "num_threads", "2",
                           "request_timeout_ms", "5000",          nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = &Impl::on_request;
  impl->context = mg_start(&callbacks, impl.get(), options);
  if (impl->context == nullptr) {
    return unavailable("metrics: cannot listen on " + address +
                       "; another process may have it, see metrics.bind and metrics.port");
  }
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

}  // namespace warproll
