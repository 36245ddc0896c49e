#include "protocol/socket_core.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace warproll {
namespace {

constexpr const char* kZapDomain = "warproll";

Status zmq_failure(const std::string& what) {
  const int error = zmq_errno();
  std::string message = what + ": " + zmq_strerror(error);
  switch (error) {
    case EAGAIN:
      return unavailable(std::move(message));
    case EHOSTUNREACH:
      return not_found(std::move(message));
    case EINVAL:
    case EPROTONOSUPPORT:
    case ENODEV:
      return invalid_argument(std::move(message));
    case EADDRINUSE:
    case EADDRNOTAVAIL:
    case EACCES:
    case ETERM:
    case ENOTSOCK:
      return failed_precondition(std::move(message));
    case EMFILE:
      return resource_exhausted(std::move(message));
    default:
      return internal_error(std::move(message));
  }
}

// Milliseconds until `deadline`, rounded up so that a poll never spins at the end.
long remaining_ms(std::chrono::steady_clock::time_point deadline) {
  const auto now = std::chrono::steady_clock::now();
  if (deadline <= now) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
  return static_cast<long>(std::min<int64_t>(left.count(), 3'600'000));
}

// Only where it was asked for: otherwise libzmq reports IPv4 endpoints in IPv6 form.
int wants_ipv6(const std::string& endpoint) { return endpoint.find('[') != std::string::npos; }

class ZmqMessage {  // owner of a zmq_msg_t
 public:
  ZmqMessage() { zmq_msg_init(&message_); }
  explicit ZmqMessage(size_t size) {
    if (zmq_msg_init_size(&message_, size) != 0) throw std::bad_alloc();
  }
  ZmqMessage(const ZmqMessage&) = delete;
  ZmqMessage& operator=(const ZmqMessage&) = delete;
  ~ZmqMessage() { zmq_msg_close(&message_); }

  zmq_msg_t* get() { return &message_; }
  std::span<std::byte> bytes() {
    return {static_cast<std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  bool more() { return zmq_msg_more(&message_) != 0; }

 private:
  zmq_msg_t message_;
};

Status send_frame(void* socket, ZmqMessage& frame, int flags) {
  while (zmq_msg_send(frame.get(), socket, flags | ZMQ_DONTWAIT) < 0) {
    if (zmq_errno() != EINTR) return zmq_failure("send");
  }
  return {};
}

}  // namespace

ZmqContext::ZmqContext(int io_threads) : handle_(zmq_ctx_new()) {
  if (handle_ == nullptr) throw std::runtime_error("zmq_ctx_new: out of file descriptors");
  zmq_ctx_set(handle_, ZMQ_IO_THREADS, io_threads);
}
ZmqContext::~ZmqContext() {
  while (zmq_ctx_term(handle_) != 0 && zmq_errno() == EINTR) {
  }
}

Waker::Waker() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw std::runtime_error(std::string("eventfd: ") + std::strerror(errno));
}
Waker::~Waker() { ::close(fd_); }
void Waker::wake() const {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the sleeper is awake already.
  while (::write(fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}
void Waker::drain() const {
  uint64_t count;
  while (::read(fd_, &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

Result<std::unique_ptr<SocketCore>> SocketCore::open(ZmqContext& context, bool router,
                                                     const SocketOptions& options) {
  void* socket = zmq_socket(context.handle(), router ? ZMQ_ROUTER : ZMQ_DEALER);
  if (socket == nullptr) return zmq_failure("zmq_socket");
  std::unique_ptr<SocketCore> core(new SocketCore(socket, router));
  WARPROLL_TRY(core->configure(options));
  return core;
}

Result<std::unique_ptr<SocketCore>> SocketCore::connect(ZmqContext& context,
                                                        const std::string& endpoint,
                                                        const SocketOptions& options) {
  if (options.curve_server) {
    return invalid_argument("curve_server is for binding sockets, wanted curve_client");
  }
  WARPROLL_TRY_ASSIGN(core, open(context, false, options));
  WARPROLL_TRY(core->set(ZMQ_IMMEDIATE, 1));
  WARPROLL_TRY(core->set(ZMQ_IPV6, wants_ipv6(endpoint)));
  if (zmq_connect(core->socket_, endpoint.c_str()) != 0) {
    return zmq_failure("connect to '" + endpoint + "'");
  }
  return core;
}

Result<std::unique_ptr<SocketCore>> SocketCore::bind(ZmqContext& context,
                                                     const std::string& endpoint,
                                                     const SocketOptions& options) {
  if (options.curve_client) {
    return invalid_argument("curve_client is for connecting sockets, wanted curve_server");
  }
  WARPROLL_TRY_ASSIGN(core, open(context, true, options));
  WARPROLL_TRY(core->set(ZMQ_ROUTER_MANDATORY, 1));
  WARPROLL_TRY(core->set(ZMQ_IPV6, wants_ipv6(endpoint)));
  if (zmq_bind(core->socket_, endpoint.c_str()) != 0) {
    return zmq_failure("bind to '" + endpoint + "'");
  }
  return core;
}

Status SocketCore::set(int option, int value) {
  if (zmq_setsockopt(socket_, option, &value, sizeof(value)) == 0) return {};
  return zmq_failure("socket option " + std::to_string(option) + " = " + std::to_string(value));
}
Status SocketCore::set(int option, int64_t value) {
  if (zmq_setsockopt(socket_, option, &value, sizeof(value)) == 0) return {};
  return zmq_failure("socket option " + std::to_string(option) + " = " + std::to_string(value));
}
Status SocketCore::set(int option, const std::string& value) {
  if (zmq_setsockopt(socket_, option, value.data(), value.size()) == 0) return {};
  return zmq_failure("socket option " + std::to_string(option));  // may be a secret: no value
}

Status SocketCore::configure(const SocketOptions& options) {
  WARPROLL_TRY(set(ZMQ_LINGER, 0));
  WARPROLL_TRY(set(ZMQ_SNDHWM, options.send_hwm_messages));
  WARPROLL_TRY(set(ZMQ_RCVHWM, options.receive_hwm_messages));
  WARPROLL_TRY(set(ZMQ_MAXMSGSIZE, static_cast<int64_t>(options.max_message_bytes)));
  WARPROLL_TRY(set(ZMQ_RECONNECT_IVL, options.reconnect_ms));
  WARPROLL_TRY(set(ZMQ_RECONNECT_IVL_MAX, options.reconnect_max_ms));
  // No ZMQ_HEARTBEAT_*: it aborts a stalled receiver (libzmq#4364). TCP keepalive finds dead
  // hosts, our own heartbeats find dead processes.
  WARPROLL_TRY(set(ZMQ_TCP_KEEPALIVE, 1));
  WARPROLL_TRY(set(ZMQ_TCP_KEEPALIVE_IDLE, options.keepalive_idle_s));
  WARPROLL_TRY(set(ZMQ_TCP_KEEPALIVE_INTVL, options.keepalive_interval_s));
  WARPROLL_TRY(set(ZMQ_TCP_KEEPALIVE_CNT, options.keepalive_count));
  return configure_curve(options);
}

Status SocketCore::configure_curve(const SocketOptions& options) {
  if (options.curve_server) {
    const CurveServer& server = *options.curve_server;
    if (server.allow_list == nullptr) {
      return invalid_argument("CURVE server without an allow-list, wanted CurveAllowList::start()");
    }
    WARPROLL_TRY(check_curve_key("server secret key", server.keys.secret_key));
    WARPROLL_TRY(set(ZMQ_CURVE_SERVER, 1));
    WARPROLL_TRY(set(ZMQ_CURVE_SECRETKEY, server.keys.secret_key));
    WARPROLL_TRY(set(ZMQ_ZAP_DOMAIN, std::string(kZapDomain)));
  }
  if (options.curve_client) {
    const CurveClient& client = *options.curve_client;
    WARPROLL_TRY(check_curve_key("server public key", client.server_key));
    WARPROLL_TRY(check_curve_key("client public key", client.keys.public_key));
    WARPROLL_TRY(check_curve_key("client secret key", client.keys.secret_key));
    WARPROLL_TRY(set(ZMQ_CURVE_SERVERKEY, client.server_key));
    WARPROLL_TRY(set(ZMQ_CURVE_PUBLICKEY, client.keys.public_key));
    WARPROLL_TRY(set(ZMQ_CURVE_SECRETKEY, client.keys.secret_key));
  }
  return {};
}

SocketCore::~SocketCore() { close(0); }

void SocketCore::close(int linger_ms) {
  if (socket_ == nullptr) return;
  zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
  zmq_close(socket_);
  socket_ = nullptr;
}

Result<std::string> SocketCore::bound_endpoint() const {
  char text[1024];
  size_t size = sizeof(text);
  if (zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, text, &size) != 0) {
    return zmq_failure("ZMQ_LAST_ENDPOINT");
  }
  return std::string(text);
}

Status SocketCore::send(const std::string* peer,
                        std::initializer_list<std::span<const std::byte>> pieces) {
  size_t size = 0;
  for (const auto piece : pieces) size += piece.size();
  ZmqMessage frame(size);
  std::byte* to = frame.bytes().data();
  for (const auto piece : pieces) to = std::ranges::copy(piece, to).out;
  if (peer != nullptr) {
    ZmqMessage id(peer->size());
    std::ranges::copy(std::as_bytes(std::span(*peer)), id.bytes().begin());
    // The id is refused or the whole message is taken: libzmq rolls back what it cannot deliver.
    WARPROLL_TRY(send_frame(socket_, id, ZMQ_SNDMORE));
  }
  return send_frame(socket_, frame, 0);
}

Status SocketCore::Incoming::check_single() const {
  if (num_frames == 1) return {};
  return invalid_argument("message has " + std::to_string(num_frames) + " ZeroMQ frames, wanted 1");
}

Result<std::optional<SocketCore::Incoming>> SocketCore::try_receive() {
  Incoming incoming;
  for (bool first = true;; first = false) {
    ZmqMessage part;
    // All of a message arrives together: only its beginning can be missing.
    while (zmq_msg_recv(part.get(), socket_, ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EINTR) continue;
      if (zmq_errno() == EAGAIN && first) return std::optional<Incoming>();
      return zmq_failure("receive");
    }
    const bool more = part.more();
    if (first && router_) {
      const auto id = part.bytes();
      incoming.peer.assign(reinterpret_cast<const char*>(id.data()), id.size());
    } else if (++incoming.num_frames == 1) {
      const auto kept = std::make_shared<ZmqMessage>();
      zmq_msg_move(kept->get(), part.get());
      incoming.frame = kept->bytes();
      incoming.memory = kept;
    }
    if (!more) return std::optional(std::move(incoming));
  }
}

Result<std::optional<SocketCore::Incoming>> SocketCore::receive(
    std::chrono::steady_clock::time_point deadline, const Waker* waker) {
  while (true) {
    WARPROLL_TRY_ASSIGN(incoming, try_receive());
    if (incoming) return incoming;
    zmq_pollitem_t items[2] = {{socket_, 0, ZMQ_POLLIN, 0},
                               {nullptr, waker != nullptr ? waker->fd() : -1, ZMQ_POLLIN, 0}};
    const int num_items = waker != nullptr ? 2 : 1;
    const long timeout_ms = remaining_ms(deadline);
    const int ready = zmq_poll(items, num_items, timeout_ms);
    if (ready < 0 && zmq_errno() != EINTR) return zmq_failure("poll");
    if (ready > 0 && num_items == 2 && (items[1].revents & ZMQ_POLLIN) != 0) {
      waker->drain();
      return try_receive();
    }
    if (ready == 0 && timeout_ms == 0) return std::optional<Incoming>();
  }
}

Status SocketCore::wait_writable(std::chrono::steady_clock::time_point deadline) {
  while (true) {
    zmq_pollitem_t item = {socket_, 0, ZMQ_POLLOUT, 0};
    const long timeout_ms = remaining_ms(deadline);
    const int ready = zmq_poll(&item, 1, timeout_ms);
    if (ready > 0) return {};
    if (ready < 0 && zmq_errno() != EINTR) return zmq_failure("poll");
    if (ready == 0 && timeout_ms == 0)
      return deadline_exceeded("no connection that takes messages");
  }
}

}  // namespace warproll
