// CurveAllowList: ZeroMQ's authentication protocol (RFC 27, ZAP) over inproc, which is the only
// place where libzmq looks for it.
#include <zmq.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <set>
#include <thread>

#include "protocol/curve.h"
#include "protocol/sockets.h"

namespace warproll {
namespace {

constexpr const char* kZapEndpoint = "inproc://zeromq.zap.01";
constexpr long kPollMs = 1000;
constexpr size_t kRequestParts = 7;  // version, id, domain, address, identity, mechanism, key
constexpr size_t kKeyBytes = 32;

// One request; empty = none there, or not a whole one.
std::vector<std::string> receive_request(void* socket) {
  std::vector<std::string> parts;
  while (true) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    int size;
    while ((size = zmq_msg_recv(&part, socket, ZMQ_DONTWAIT)) < 0 && zmq_errno() == EINTR) {
    }
    if (size < 0) {
      zmq_msg_close(&part);
      return {};
    }
    parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
    const bool more = zmq_msg_more(&part) != 0;
    zmq_msg_close(&part);
    if (!more) return parts;
  }
}

void send_reply(void* socket, const std::string& request_id, bool allowed) {
  const std::string parts[] = {
      "1.0", request_id, allowed ? "200" : "400", allowed ? "OK" : "key is not on the allow-list",
      "",    ""};
  constexpr size_t kNumParts = std::size(parts);
  for (size_t i = 0; i < kNumParts; ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < kNumParts ? ZMQ_SNDMORE : 0);
    if (zmq_send(socket, parts[i].data(), parts[i].size(), flags) < 0) return;
  }
}

}  // namespace

struct CurveAllowList::Impl {
  void* socket = nullptr;
  Waker waker;
  std::thread thread;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> num_accepted{0};
  std::atomic<uint64_t> num_refused{0};
  mutable std::mutex mutex;
  std::set<std::string> allowed;  // Z85, guarded by mutex

  bool is_allowed(const std::vector<std::string>& request) {
    if (request.size() != kRequestParts || request[0] != "1.0" || request[5] != "CURVE" ||
        request[6].size() != kKeyBytes) {
      return false;
    }
    std::array<char, 41> key{};
    zmq_z85_encode(key.data(), reinterpret_cast<const uint8_t*>(request[6].data()), kKeyBytes);
    const std::lock_guard lock(mutex);
    return allowed.contains(key.data());
  }

  void run() {
    while (!stop) {
      zmq_pollitem_t items[] = {{socket, 0, ZMQ_POLLIN, 0}, {nullptr, waker.fd(), ZMQ_POLLIN, 0}};
      if (zmq_poll(items, 2, kPollMs) < 0 && zmq_errno() != EINTR) break;  // context terminated
      const auto request = receive_request(socket);
      if (request.empty()) continue;
      const bool ok = is_allowed(request);
      ++(ok ? num_accepted : num_refused);
      send_reply(socket, request.size() > 1 ? request[1] : std::string(), ok);
    }
    zmq_close(socket);
  }
};

CurveAllowList::CurveAllowList(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<CurveAllowList>> CurveAllowList::start(
    ZmqContext& context, const std::vector<std::string>& public_keys) {
  std::unique_ptr<CurveAllowList> list(new CurveAllowList(std::make_unique<Impl>()));
  WARPROLL_TRY(list->set_allowed(public_keys));
  Impl& impl = *list->impl_;
  impl.socket = zmq_socket(context.handle(), ZMQ_REP);
  if (impl.socket == nullptr) {
    return resource_exhausted(std::string("zmq_socket: ") + zmq_strerror(zmq_errno()));
  }
  const int linger_ms = 0;
  zmq_setsockopt(impl.socket, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
  if (zmq_bind(impl.socket, kZapEndpoint) != 0) {
    const std::string reason = zmq_strerror(zmq_errno());
    zmq_close(impl.socket);
    return failed_precondition("this ZeroMQ context has an allow-list already, wanted one: " +
                               reason);
  }
  impl.thread = std::thread([&impl] { impl.run(); });
  return list;
}

CurveAllowList::~CurveAllowList() {
  impl_->stop = true;
  impl_->waker.wake();
  if (impl_->thread.joinable()) impl_->thread.join();
}

Status CurveAllowList::set_allowed(const std::vector<std::string>& public_keys) {
  for (size_t i = 0; i < public_keys.size(); ++i) {
    WARPROLL_TRY(check_curve_key("allowed key " + std::to_string(i), public_keys[i]));
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->allowed = {public_keys.begin(), public_keys.end()};
  return {};
}

uint64_t CurveAllowList::num_accepted() const { return impl_->num_accepted; }
uint64_t CurveAllowList::num_refused() const { return impl_->num_refused; }

}  // namespace warproll
