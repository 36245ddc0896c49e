// Weight bytes of the `tcp` transport, pulled by the worker: each ChunkRequest asks for one range
// of one bucket and gets one ChunkReply. The credit is the number of requests the client keeps
// outstanding, so nothing piles up that nobody asked for. Both are idempotent: ask again for what
// did not come. They are framed as the messages of codec.h (types 64 and 65), on sockets of their own.
// Thread, lifetime, errors: as sockets.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/sockets.h"

namespace warproll {

inline constexpr uint64_t kMaxChunkBytes = uint64_t{16} << 20;
inline constexpr uint64_t kMaxChunkMessageBytes =  // with header and body
    kMaxChunkBytes + (uint64_t{1} << 16);

struct ChunkRequest {
  UpdateId id;
  uint32_t bucket_index = 0;
  uint64_t offset_bytes = 0;  // within the bucket
  uint64_t length_bytes = 0;  // 1..kMaxChunkBytes
  bool operator==(const ChunkRequest&) const = default;
};
struct ChunkReply {
  UpdateId id;
  uint32_t bucket_index = 0;
  uint64_t offset_bytes = 0;
  std::string error;  // not empty: no bytes, and why ("unknown update", "past the end" ...)
  Bytes bytes;        // exactly as many as asked for; their XXH3-64 was checked on receipt
  bool operator==(const ChunkReply&) const = default;
};

Result<Bytes> encode_chunk_request(const ChunkRequest& request);
Result<ChunkRequest> decode_chunk_request(std::span<const std::byte> frame);
// A reply whose bytes are `bytes` (reply.bytes is ignored): the server need not copy its mapping
// into a struct first.
Result<Bytes> encode_chunk_reply(const ChunkReply& reply, std::span<const std::byte> bytes);
// kDataLoss: a checksum does not match
Result<ChunkReply> decode_chunk_reply(std::span<const std::byte> frame);

struct ReceivedChunkRequest {
  std::string peer;
  Result<ChunkRequest> request = internal_error("no request");  // not ok: malformed
};

class ChunkServerSocket {  // ROUTER, binds
 public:
  static Result<ChunkServerSocket> bind(ZmqContext& context, const std::string& endpoint,
                                        const SocketOptions& options);
  ChunkServerSocket(ChunkServerSocket&&) noexcept;
  ChunkServerSocket& operator=(ChunkServerSocket&&) noexcept;
  ~ChunkServerSocket();

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }  // as bound
  Result<std::optional<ReceivedChunkRequest>> receive(
      std::chrono::steady_clock::time_point deadline, const Waker* waker = nullptr);
  // kNotFound: the client is gone; kUnavailable: its queue is full (it asks again).
  Status send(const std::string& peer, const ChunkReply& reply, std::span<const std::byte> bytes);

 private:
  ChunkServerSocket(std::unique_ptr<SocketCore> core, std::string endpoint);
  std::unique_ptr<SocketCore> core_;
  std::string endpoint_;
};

class ChunkClientSocket {  // DEALER, connects
 public:
  static Result<ChunkClientSocket> connect(ZmqContext& context, const std::string& endpoint,
                                           const SocketOptions& options);
  ChunkClientSocket(ChunkClientSocket&&) noexcept;
  ChunkClientSocket& operator=(ChunkClientSocket&&) noexcept;
  ~ChunkClientSocket();

  Status wait_ready(std::chrono::steady_clock::time_point deadline);
  Status send(const ChunkRequest& request);
  // nullopt at the deadline or when woken; kDataLoss or kInvalidArgument for a malformed reply
  // (the socket stays usable).
  Result<std::optional<ChunkReply>> receive(std::chrono::steady_clock::time_point deadline,
                                            const Waker* waker = nullptr);

 private:
  explicit ChunkClientSocket(std::unique_ptr<SocketCore> core);
  std::unique_ptr<SocketCore> core_;
};

}  // namespace warproll
