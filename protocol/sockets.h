// Typed owners of the two ends of the session: WorkerSocket (DEALER, connects) and TrainerSocket
// (ROUTER, binds). They move Message values; bytes stay inside.
// Thread: a socket belongs to one thread (make it, use it, destroy it there; it may be moved to
// that thread once before its first use). ZmqContext and Waker are for any thread.
// Lifetime: sockets die before their ZmqContext, whose destructor waits for them.
// Errors: kUnavailable = would block (queue full, no connection), kNotFound = that peer is gone,
// kInvalidArgument = the message cannot be encoded or is larger than the peer takes,
// kFailedPrecondition = the socket is closed. Nothing blocks except receive() and wait_ready(), up
// to their deadline.
// A ZeroMQ send that succeeds is no delivery (facts in docs/protocol.md): only ACK is.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "protocol/codec.h"
#include "protocol/curve.h"
#include "protocol/messages.h"
#include "protocol/status.h"

namespace warproll {

class SocketCore;  // socket_core.h: frames in and out

class ZmqContext {
 public:
  explicit ZmqContext(int io_threads = 1);
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  ~ZmqContext();
  [[nodiscard]] void* handle() const { return handle_; }

 private:
  void* handle_;
};

// Wakes a thread that is inside receive(). wake() from any thread, as often as you like.
class Waker {
 public:
  Waker();  // throws std::runtime_error when the process is out of file descriptors
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  ~Waker();
  void wake() const;
  void drain() const;  // receive() does it
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

struct SocketOptions {
  uint64_t max_message_bytes = kDefaultMaxMessageBytes;  // larger ones cut the connection
  int send_hwm_messages = 1000;                          // per peer
  int receive_hwm_messages = 1000;                       // per peer; keep credit below half of it
  int reconnect_ms = 100;
  int reconnect_max_ms = 5000;
  int keepalive_idle_s = 30;
  int keepalive_interval_s = 10;
  int keepalive_count = 3;
  std::optional<CurveServer> curve_server;  // of a binding socket
  std::optional<CurveClient> curve_client;  // of a connecting socket
};

struct Received {
  std::string peer;   // opaque connection id; empty at the worker
  Envelope envelope;  // all zero when not even the header could be read
  // Not ok: the peer sent something malformed. The socket stays usable.
  Result<Message> message = internal_error("no message");
};

class WorkerSocket {
 public:
  static Result<WorkerSocket> connect(ZmqContext& context, const std::string& endpoint,
                                      const SocketOptions& options);
  WorkerSocket(WorkerSocket&&) noexcept;
  WorkerSocket& operator=(WorkerSocket&&) noexcept;
  ~WorkerSocket();  // close(0)

  Status send(const Envelope& envelope, const Message& message);
  // The next message; nullopt at the deadline or when `waker` (may be null) was woken.
  Result<std::optional<Received>> receive(std::chrono::steady_clock::time_point deadline,
                                          const Waker* waker = nullptr);
  // Until send() would not block: the connection is up (with CURVE: authenticated) and its queue
  // has room. kDeadlineExceeded otherwise. Messages are never queued for a connection that is down.
  Status wait_ready(std::chrono::steady_clock::time_point deadline);
  // The trainer's limit, from Welcome; send() refuses larger messages with kInvalidArgument.
  void set_peer_max_message_bytes(uint64_t bytes);
  // A new connection with nothing of the old one left in any queue.
  Status reconnect();
  // linger_ms: how long queued messages may still be sent; > 0 only after Bye, at most 2000.
  void close(int linger_ms);

 private:
  WorkerSocket(std::unique_ptr<SocketCore> core, ZmqContext* context, std::string endpoint,
               SocketOptions options);
  std::unique_ptr<SocketCore> core_;  // null = closed
  ZmqContext* context_;
  std::string endpoint_;
  SocketOptions options_;
  uint64_t peer_max_message_bytes_ = kDefaultMaxMessageBytes;
};

class TrainerSocket {
 public:
  // `endpoint` may ask for any port: "tcp://127.0.0.1:*". Check it first with check_endpoint().
  static Result<TrainerSocket> bind(ZmqContext& context, const std::string& endpoint,
                                    const SocketOptions& options);
  TrainerSocket(TrainerSocket&&) noexcept;
  TrainerSocket& operator=(TrainerSocket&&) noexcept;
  ~TrainerSocket();  // close(0)

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }  // as bound
  Status send(const std::string& peer, const Envelope& envelope, const Message& message);
  Result<std::optional<Received>> receive(std::chrono::steady_clock::time_point deadline,
                                          const Waker* waker = nullptr);
  void close(int linger_ms);

 private:
  TrainerSocket(std::unique_ptr<SocketCore> core, std::string endpoint, SocketOptions options);
  std::unique_ptr<SocketCore> core_;  // null = closed
  std::string endpoint_;
  SocketOptions options_;
};

}  // namespace warproll
