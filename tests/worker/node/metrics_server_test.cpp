#include "worker/node/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

namespace warproll {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string http_get(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(fd, buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return answer;
}

std::vector<Metric> sample_metrics() {
  return {{"warproll_tokens_total", "Sampled tokens.", MetricType::kCounter, 42, {}},
          {"warproll_running", "Running.", MetricType::kGauge, 3, {{"policy", "pin"}}},
          {"warproll_running", "Running.", MetricType::kGauge, 4, {{"policy", "keep"}}}};
}

TEST(MetricsServer, ServesPrometheusTextAndFollowsTheHealth) {
  std::atomic<bool> healthy{true};
  auto server = MetricsServer::start("127.0.0.1", 0, sample_metrics, [&] {
                  return Health{healthy, R"({"state":"x"})"};
                }).value();
  const std::string metrics = http_get(server->port(), "/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(metrics, HasSubstr("# TYPE warproll_tokens_total counter\nwarproll_tokens_total 42"));
  EXPECT_THAT(metrics, HasSubstr("warproll_running{policy=\"keep\"} 4"));
  EXPECT_THAT(http_get(server->port(), "/healthz"), StartsWith("HTTP/1.1 200 OK"));
  healthy = false;
  const std::string sick = http_get(server->port(), "/healthz");
  EXPECT_THAT(sick, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(sick, HasSubstr(R"({"state":"x"})"));
}

TEST(MetricsServer, OddRequestsLeaveItServing) {
  const auto server = MetricsServer::start("127.0.0.1", 0, sample_metrics, [] {
                        return Health{true, "{}"};
                      }).value();
  for (const char* path : {"*", "/", "/metricsx", "//metrics/..", "http://elsewhere/metrics", "%00",
                           "", "/healthz?x=1", "/%2e%2e/healthz"}) {
    (void)http_get(server->port(), path);
    EXPECT_THAT(http_get(server->port(), "/healthz"), StartsWith("HTTP/1.1 200 OK")) << path;
  }
}

TEST(MetricsServer, StopsAtOnce) {
  for (const char* bind : {"127.0.0.1", "0.0.0.0"}) {
    auto server = MetricsServer::start(bind, 0, sample_metrics, [] { return Health{true, "{}"}; });
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    EXPECT_THAT(http_get((*server)->port(), "/healthz"), StartsWith("HTTP/1.1 200 OK"));
    const auto begun = std::chrono::steady_clock::now();
    server->reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(1'500)) << bind;
  }
}

TEST(MetricsServer, ATakenPortIsAnErrorThatNamesIt) {
  auto first =
      MetricsServer::start("127.0.0.1", 0, sample_metrics, [] { return Health{}; }).value();
  const auto second =
      MetricsServer::start("127.0.0.1", first->port(), sample_metrics, [] { return Health{}; });
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string(first->port())));
}

}  // namespace
}  // namespace warproll
