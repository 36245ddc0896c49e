// The endpoint policy of curve.h.
#include <arpa/inet.h>

#include <charconv>

#include "protocol/curve.h"

namespace warproll {
namespace {

struct TcpAddress {
  std::string host;
  std::string port;
};

std::optional<TcpAddress> parse_tcp(std::string_view endpoint) {
  constexpr std::string_view kScheme = "tcp://";
  if (!endpoint.starts_with(kScheme)) return std::nullopt;
  endpoint.remove_prefix(kScheme.size());
  const size_t colon = endpoint.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = endpoint.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty() || host.find_first_of(";/ ") != std::string_view::npos) return std::nullopt;
  return TcpAddress{std::string(host), std::string(endpoint.substr(colon + 1))};
}

bool is_port(std::string_view text) {
  if (text == "*") return true;
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port <= 65535;
}

bool is_local_scheme(std::string_view endpoint) {
  for (const std::string_view scheme : {"ipc://", "inproc://"}) {
    if (endpoint.starts_with(scheme) && endpoint.size() > scheme.size()) return true;
  }
  return false;
}

}  // namespace

bool is_loopback_endpoint(std::string_view endpoint) {
  if (is_local_scheme(endpoint)) return true;
  const auto address = parse_tcp(endpoint);
  if (!address) return false;
  if (address->host == "localhost" || address->host == "lo") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, address->host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, address->host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Status check_endpoint(std::string_view endpoint, bool curve_enabled, bool insecure) {
  const std::string quoted = "endpoint '" + std::string(endpoint) + "'";
  if (!is_local_scheme(endpoint)) {
    const auto address = parse_tcp(endpoint);
    if (!address) {
      return invalid_argument(quoted +
                              " is malformed, wanted tcp://HOST:PORT, ipc://PATH or inproc://NAME");
    }
    if (!is_port(address->port)) {
      return invalid_argument(quoted + " has port '" + address->port +
                              "', wanted 0..65535 or * (any free one)");
    }
  }
  if (is_loopback_endpoint(endpoint) || curve_enabled || insecure) return {};
  return failed_precondition(
      quoted +
      " can be reached from other machines and has no CURVE keys: anybody there could send tasks "
      "or take trajectories. Make keys with `warproll keygen` and name them in the configuration, "
      "bind to 127.0.0.1, or set `insecure: true` on a network you trust");
}

}  // namespace warproll
