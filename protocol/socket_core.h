// SocketCore: one ZeroMQ socket of either kind, multipart in and out, never blocking in send.
// Internal to protocol/. Thread: one. Lifetime: before its ZmqContext.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "protocol/sockets.h"

namespace warproll {

class SocketCore {
 public:
  // DEALER, connects. Messages are never queued for a connection that is not up.
  static Result<std::unique_ptr<SocketCore>> connect(ZmqContext& context,
                                                     const std::string& endpoint,
                                                     const SocketOptions& options);
  // ROUTER, binds; a send to an unknown peer fails instead of vanishing.
  static Result<std::unique_ptr<SocketCore>> bind(ZmqContext& context, const std::string& endpoint,
                                                  const SocketOptions& options);
  SocketCore(const SocketCore&) = delete;
  SocketCore& operator=(const SocketCore&) = delete;
  ~SocketCore();  // close(0)

  void close(int linger_ms);
  [[nodiscard]] Result<std::string> bound_endpoint() const;
  // `peer` is nullptr at a DEALER. All parts or none are queued.
  Status send(const std::string* peer, std::span<const std::span<const std::byte>> parts);
  Status send(const std::string* peer, const Frames& frames);
  struct Incoming {
    std::string peer;  // empty at a DEALER
    Frames frames;     // at most kMaxParts; further parts are read and dropped
    bool too_many = false;
  };
  // nullopt at the deadline or when `waker` was woken.
  Result<std::optional<Incoming>> receive(std::chrono::steady_clock::time_point deadline,
                                          const Waker* waker);
  Status wait_writable(std::chrono::steady_clock::time_point deadline);

  static constexpr size_t kMaxParts = 4;

 private:
  SocketCore(void* socket, bool router) : socket_(socket), router_(router) {}
  static Result<std::unique_ptr<SocketCore>> open(ZmqContext& context, bool router,
                                                  const SocketOptions& options);
  Status configure(const SocketOptions& options);
  Status configure_curve(const SocketOptions& options);
  Status set(int option, int value);
  Status set(int option, int64_t value);
  Status set(int option, const std::string& value);
  Status send_part(std::span<const std::byte> part, bool more);
  Result<std::optional<Incoming>> try_receive();

  void* socket_;
  bool router_;
};

}  // namespace warproll
