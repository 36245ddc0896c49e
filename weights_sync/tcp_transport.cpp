#include "weights_sync/tcp_transport.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kConnectPoll = std::chrono::milliseconds(20);  // between looks at the cancellation

// One receive: which chunks are still to be asked for, which are under way.
class ChunkPull {
 public:
  ChunkPull(const ReceiveRequest& request, const Manifest& manifest,
            const TcpTransportOptions& options, TcpTransportStats& stats)
      : request_(request),
        manifest_(manifest),
        options_(options),
        stats_(stats),
        chunk_bytes_(std::clamp<uint64_t>(options.chunk_bytes, 1,
                                          std::min(manifest.bucket_bytes, kMaxChunkBytes))),
        window_chunks_(std::max<uint64_t>(1, 2 * manifest.bucket_bytes / chunk_bytes_)) {}

  [[nodiscard]] bool done() const {
    return next_bucket_ == manifest_.num_buckets() && under_way_.empty();
  }

  [[nodiscard]] bool nothing_under_way() const { return under_way_.empty(); }

  // Asks for what the window has room for, and again for what is overdue, as far
  // as the socket takes it now.
  Status ask(ChunkClientSocket& socket, Clock::time_point now) {
    const auto retry = std::chrono::milliseconds(options_.retry_ms);
    for (auto& [place, chunk] : under_way_) {
      if (now < chunk.asked + retry) continue;
      if (!sent(socket, place, chunk.bytes)) return last_error_;
      chunk.asked = now;
      ++stats_.asked_again;
    }
    while (under_way_.size() < window_chunks_ && next_bucket_ < manifest_.num_buckets()) {
      const Place place{static_cast<uint32_t>(next_bucket_), next_offset_};
      const uint64_t in_bucket = manifest_.bytes_of_bucket(next_bucket_);
      const uint64_t bytes = std::min(chunk_bytes_, in_bucket - next_offset_);
      if (!sent(socket, place, bytes)) return last_error_;
      under_way_.emplace(place, Chunk{bytes, now});
      next_offset_ += bytes;
      if (next_offset_ == in_bucket) {
        ++next_bucket_;
        next_offset_ = 0;
      }
    }
    return ok_status();
  }

  Status take(const ChunkReply& reply, const StreamSink& sink) {
    if (reply.id != request_.id) return ok_status();  // of an earlier attempt
    if (!reply.error.empty()) {
      return not_found("the weight server at " + request_.source + ": " + reply.error);
    }
    const auto found = under_way_.find({reply.bucket_index, reply.offset_bytes});
    if (found == under_way_.end()) {
      ++stats_.duplicates;
      return ok_status();
    }
    if (reply.bytes.size() != found->second.bytes) {
      ++stats_.damaged;  // asked for again when it is overdue
      return ok_status();
    }
    ++stats_.chunks;
    const uint64_t offset = reply.bucket_index * manifest_.bucket_bytes + reply.offset_bytes;
    under_way_.erase(found);
    return sink(offset, std::span<const std::byte>(reply.bytes));
  }

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // bucket, offset in it
  struct Chunk {
    uint64_t bytes = 0;
    Clock::time_point asked;
  };

  // kUnavailable is no failure: the connection is not up or its queue is full; asked again later.
  bool sent(ChunkClientSocket& socket, const Place& place, uint64_t bytes) {
    const Status status = socket.send({request_.id, place.first, place.second, bytes});
    last_error_ = status.code() == StatusCode::kUnavailable ? ok_status() : status;
    return status.ok();
  }

  const ReceiveRequest& request_;
  const Manifest& manifest_;
  const TcpTransportOptions& options_;
  TcpTransportStats& stats_;
  const uint64_t chunk_bytes_;
  const uint64_t window_chunks_;
  uint64_t next_bucket_ = 0;
  uint64_t next_offset_ = 0;
  std::map<Place, Chunk> under_way_;
  Status last_error_;
};

Result<SocketOptions> client_options(const ReceiveRequest& request,
                                     const TcpTransportOptions& options) {
  SocketOptions socket;
  socket.max_message_bytes = 2 * kMaxChunkBytes;
  if (request.server_key.empty()) return socket;
  if (!options.keys) {
    return failed_precondition("the weight server at " + request.source +
                               " wants CURVE, and this worker has no keys");
  }
  socket.curve_client = CurveClient{*options.keys, request.server_key};
  return socket;
}

}  // namespace

Status TcpTransport::receive(const ReceiveRequest& request, const Manifest& manifest,
                             const StreamSink& sink, const Cancellation& cancellation) {
  WARPROLL_TRY_ASSIGN(socket_options, client_options(request, options_));
  WARPROLL_TRY_ASSIGN(socket, ChunkClientSocket::connect(context_, request.source, socket_options));
  ChunkPull pull(request, manifest, options_, stats_);
  const auto silence = std::chrono::milliseconds(options_.silence_ms);
  const auto poll = std::chrono::milliseconds(std::clamp<uint32_t>(options_.retry_ms / 4, 1, 100));
  Clock::time_point last_chunk = Clock::now();
  while (!pull.done()) {
    if (cancellation.cancelled()) return aborted("receive from " + request.source + " cancelled");
    const Clock::time_point now = Clock::now();
    if (now >= request.deadline) {
      return deadline_exceeded("receive from " + request.source + ": the deadline passed");
    }
    if (now >= last_chunk + silence) {
      return unavailable("the weight server at " + request.source + " sent nothing for " +
                         std::to_string(options_.silence_ms) + " ms");
    }
    WARPROLL_TRY(pull.ask(socket, now));
    if (pull.nothing_under_way()) {  // the connection is not up yet
      (void)socket.wait_ready(std::min(now + kConnectPoll, request.deadline));
      continue;
    }
    auto reply = socket.receive(std::min(now + poll, request.deadline), &cancellation.waker());
    if (!reply.ok()) {
      ++stats_.damaged;
      continue;
    }
    if (!*reply) continue;
    last_chunk = Clock::now();
    WARPROLL_TRY(pull.take(**reply, sink));
  }
  return ok_status();
}

}  // namespace warproll
