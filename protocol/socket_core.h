// SocketCore: one ZeroMQ socket of either kind, messages of one frame in and out, never blocking in
// send.
// Internal to protocol/. Thread: one. Lifetime: before its ZmqContext.
#pragma once

#include <chrono>
#include <cstddef>
#include <initializer_list>
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
  // The pieces, one behind the other, as one frame: queued whole or refused. `peer` is nullptr at a
  // DEALER.
  Status send(const std::string* peer, std::initializer_list<std::span<const std::byte>> pieces);
  struct Incoming {
    std::string peer;                  // empty at a DEALER
    std::span<const std::byte> frame;  // the first; others of a malformed message are only counted
    size_t num_frames = 0;
    std::shared_ptr<const void> memory;         // of frame
    [[nodiscard]] Status check_single() const;  // num_frames is 1
  };
  // nullopt at the deadline or when `waker` was woken.
  Result<std::optional<Incoming>> receive(std::chrono::steady_clock::time_point deadline,
                                          const Waker* waker);
  Status wait_writable(std::chrono::steady_clock::time_point deadline);

 private:
  SocketCore(void* socket, bool router) : socket_(socket), router_(router) {}
  static Result<std::unique_ptr<SocketCore>> open(ZmqContext& context, bool router,
                                                  const SocketOptions& options);
  Status configure(const SocketOptions& options);
  Status configure_curve(const SocketOptions& options);
  Status set(int option, int value);
  Status set(int option, int64_t value);
  Status set(int option, const std::string& value);
  Result<std::optional<Incoming>> try_receive();

  void* socket_;
  bool router_;
};

}  // namespace warproll
