#include "protocol/sockets.h"

#include <algorithm>

#include "protocol/frame.h"
#include "protocol/message_types.h"
#include "protocol/socket_core.h"

namespace warproll {
namespace {

constexpr int kMaxLingerMs = 2000;

Status closed() { return failed_precondition("the socket is closed"); }

// A Data message goes out of the caller's buffers; everything else is encoded first.
Status send_message(SocketCore& core, const std::string* peer, uint64_t max_message_bytes,
                    const Envelope& envelope, const Message& message) {
  const auto check_size = [&](uint64_t size) {
    if (size <= max_message_bytes) return Status{};
    return invalid_argument(std::string(message_name(message)) + " has " + std::to_string(size) +
                            " bytes, wanted at most " + std::to_string(max_message_bytes));
  };
  if (const Data* data = std::get_if<Data>(&message)) {
    WARPROLL_TRY(check_size(kFrameHeaderBytes + data->record.size() + data->tensors.size()));
    WARPROLL_TRY_ASSIGN(header, encode_data_header(envelope, *data));
    return core.send(peer, {header, data->record, data->tensors});
  }
  WARPROLL_TRY_ASSIGN(frame, encode_message(envelope, message));
  WARPROLL_TRY(check_size(frame.size()));
  return core.send(peer, {frame});
}

Result<std::optional<Received>> receive_message(SocketCore& core, uint64_t max_message_bytes,
                                                std::chrono::steady_clock::time_point deadline,
                                                const Waker* waker) {
  WARPROLL_TRY_ASSIGN(incoming, core.receive(deadline, waker));
  if (!incoming) return std::optional<Received>();
  Received received;
  received.peer = std::move(incoming->peer);
  const auto frame = incoming->frame;
  // The envelope is worth having even when the rest is malformed: it says which seq to refuse.
  const auto header = decode_header(frame);
  if (header.ok()) received.envelope = header->envelope;
  const Status single = incoming->check_single();
  if (!header.ok()) {
    received.message = header.status();  // another version may have other frames, too
  } else if (!single.ok()) {
    received.message = single;
  } else if (auto decoded = decode_message(frame, {max_message_bytes}); decoded.ok()) {
    received.message = std::move(decoded->second);
  } else {
    received.message = decoded.status();
  }
  return std::optional(std::move(received));
}

}  // namespace

WorkerSocket::WorkerSocket(std::unique_ptr<SocketCore> core, ZmqContext* context,
                           std::string endpoint, SocketOptions options)
    : core_(std::move(core)),
      context_(context),
      endpoint_(std::move(endpoint)),
      options_(std::move(options)) {}
WorkerSocket::WorkerSocket(WorkerSocket&&) noexcept = default;
WorkerSocket& WorkerSocket::operator=(WorkerSocket&&) noexcept = default;
WorkerSocket::~WorkerSocket() = default;

Result<WorkerSocket> WorkerSocket::connect(ZmqContext& context, const std::string& endpoint,
                                           const SocketOptions& options) {
  WARPROLL_TRY_ASSIGN(core, SocketCore::connect(context, endpoint, options));
  return WorkerSocket(std::move(core), &context, endpoint, options);
}

Status WorkerSocket::send(const Envelope& envelope, const Message& message) {
  if (!core_) return closed();
  return send_message(*core_, nullptr, peer_max_message_bytes_, envelope, message);
}

Result<std::optional<Received>> WorkerSocket::receive(
    std::chrono::steady_clock::time_point deadline, const Waker* waker) {
  if (!core_) return closed();
  return receive_message(*core_, options_.max_message_bytes, deadline, waker);
}

Status WorkerSocket::wait_ready(std::chrono::steady_clock::time_point deadline) {
  if (!core_) return closed();
  return core_->wait_writable(deadline).with_context("'" + endpoint_ + "'");
}

void WorkerSocket::set_peer_max_message_bytes(uint64_t bytes) { peer_max_message_bytes_ = bytes; }

Status WorkerSocket::reconnect() {
  core_.reset();
  peer_max_message_bytes_ = kDefaultMaxMessageBytes;
  WARPROLL_TRY_ASSIGN(core, SocketCore::connect(*context_, endpoint_, options_));
  core_ = std::move(core);
  return {};
}

void WorkerSocket::close(int linger_ms) {
  if (core_) core_->close(std::clamp(linger_ms, 0, kMaxLingerMs));
  core_.reset();
}

TrainerSocket::TrainerSocket(std::unique_ptr<SocketCore> core, std::string endpoint,
                             SocketOptions options)
    : core_(std::move(core)), endpoint_(std::move(endpoint)), options_(std::move(options)) {}
TrainerSocket::TrainerSocket(TrainerSocket&&) noexcept = default;
TrainerSocket& TrainerSocket::operator=(TrainerSocket&&) noexcept = default;
TrainerSocket::~TrainerSocket() = default;

Result<TrainerSocket> TrainerSocket::bind(ZmqContext& context, const std::string& endpoint,
                                          const SocketOptions& options) {
  WARPROLL_TRY_ASSIGN(core, SocketCore::bind(context, endpoint, options));
  WARPROLL_TRY_ASSIGN(bound, core->bound_endpoint());
  return TrainerSocket(std::move(core), std::move(bound), options);
}

Status TrainerSocket::send(const std::string& peer, const Envelope& envelope,
                           const Message& message) {
  if (!core_) return closed();
  return send_message(*core_, &peer, options_.max_message_bytes, envelope, message);
}

Result<std::optional<Received>> TrainerSocket::receive(
    std::chrono::steady_clock::time_point deadline, const Waker* waker) {
  if (!core_) return closed();
  return receive_message(*core_, options_.max_message_bytes, deadline, waker);
}

void TrainerSocket::close(int linger_ms) {
  if (core_) core_->close(std::clamp(linger_ms, 0, kMaxLingerMs));
  core_.reset();
}

}  // namespace warproll
