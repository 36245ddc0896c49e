#include "protocol/chunks.h"
#include "protocol/frame.h"
#include "protocol/socket_core.h"

namespace warproll {
namespace {

// A peer cannot make us allocate more.
SocketOptions chunk_options(SocketOptions options) {
  options.max_message_bytes = kMaxChunkMessageBytes;
  return options;
}

}  // namespace

ChunkServerSocket::ChunkServerSocket(std::unique_ptr<SocketCore> core, std::string endpoint)
    : core_(std::move(core)), endpoint_(std::move(endpoint)) {}
ChunkServerSocket::ChunkServerSocket(ChunkServerSocket&&) noexcept = default;
ChunkServerSocket& ChunkServerSocket::operator=(ChunkServerSocket&&) noexcept = default;
ChunkServerSocket::~ChunkServerSocket() = default;

Result<ChunkServerSocket> ChunkServerSocket::bind(ZmqContext& context, const std::string& endpoint,
                                                  const SocketOptions& options) {
  WARPROLL_TRY_ASSIGN(core, SocketCore::bind(context, endpoint, chunk_options(options)));
  WARPROLL_TRY_ASSIGN(bound, core->bound_endpoint());
  return ChunkServerSocket(std::move(core), std::move(bound));
}

Result<std::optional<ReceivedChunkRequest>> ChunkServerSocket::receive(
    std::chrono::steady_clock::time_point deadline, const Waker* waker) {
  WARPROLL_TRY_ASSIGN(incoming, core_->receive(deadline, waker));
  if (!incoming) return std::optional<ReceivedChunkRequest>();
  ReceivedChunkRequest received{std::move(incoming->peer)};
  const Status single = incoming->check_single();
  received.request =
      single.ok() ? decode_chunk_request(incoming->frame) : single.with_context("CHUNK_REQUEST");
  return std::optional(std::move(received));
}

Status ChunkServerSocket::send(const std::string& peer, const ChunkReply& reply,
                               std::span<const std::byte> bytes) {
  WARPROLL_TRY_ASSIGN(head, encode_chunk_reply_head(reply, bytes));
  return core_->send(&peer, {head, bytes});
}

ChunkClientSocket::ChunkClientSocket(std::unique_ptr<SocketCore> core) : core_(std::move(core)) {}
ChunkClientSocket::ChunkClientSocket(ChunkClientSocket&&) noexcept = default;
ChunkClientSocket& ChunkClientSocket::operator=(ChunkClientSocket&&) noexcept = default;
ChunkClientSocket::~ChunkClientSocket() = default;

Result<ChunkClientSocket> ChunkClientSocket::connect(ZmqContext& context,
                                                     const std::string& endpoint,
                                                     const SocketOptions& options) {
  WARPROLL_TRY_ASSIGN(core, SocketCore::connect(context, endpoint, chunk_options(options)));
  return ChunkClientSocket(std::move(core));
}

Status ChunkClientSocket::wait_ready(std::chrono::steady_clock::time_point deadline) {
  return core_->wait_writable(deadline);
}

Status ChunkClientSocket::send(const ChunkRequest& request) {
  WARPROLL_TRY_ASSIGN(frame, encode_chunk_request(request));
  return core_->send(nullptr, {frame});
}

Result<std::optional<ChunkReply>> ChunkClientSocket::receive(
    std::chrono::steady_clock::time_point deadline, const Waker* waker) {
  WARPROLL_TRY_ASSIGN(incoming, core_->receive(deadline, waker));
  if (!incoming) return std::optional<ChunkReply>();
  WARPROLL_TRY(incoming->check_single().with_context("CHUNK_REPLY"));
  WARPROLL_TRY_ASSIGN(reply, decode_chunk_reply(incoming->frame));
  return std::optional(std::move(reply));
}

}  // namespace warproll
