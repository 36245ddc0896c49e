// The `tcp` transport: workers pull ranges of the manifest's stream as chunks over ZeroMQ
// (protocol/chunks.h) from a server thread of the trainer. The route's source is the server's
// endpoint.
//
// A worker has requests for at most two buckets outstanding (its credit), so neither side queues
// more; a chunk that does not come is asked for again; every chunk carries a checksum. The server
// keeps no state about workers: one that dies leaves nothing behind, one that comes later asks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/chunks.h"
#include "protocol/curve.h"
#include "weights_sync/broadcast_transport.h"

namespace warproll {

struct TcpTransportOptions {
  uint64_t chunk_bytes = uint64_t{1} << 20;  // 1..kMaxChunkBytes; less when the bucket is smaller
  uint32_t retry_ms = 2'000;                 // then a chunk is asked for again
  uint32_t silence_ms = 30'000;              // without any chunk: the source is gone
  std::optional<CurveKeys> keys;             // of this client; required when the route has a key
};

// Absolute counts.
struct TcpTransportStats {
  uint64_t chunks = 0;
  uint64_t asked_again = 0;
  uint64_t damaged = 0;     // malformed or wrong checksum
  uint64_t duplicates = 0;  // came although they were there already
};

// Worker. Lifetime: the context outlives it. Thread: as BroadcastTransport; stats() from the thread
// of receive().
class TcpTransport final : public BroadcastTransport {
 public:
  TcpTransport(ZmqContext& context, TcpTransportOptions options)
      : context_(context), options_(std::move(options)) {}

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  Status receive(const ReceiveRequest& request, const Manifest& manifest, const StreamSink& sink,
                 const Cancellation& cancellation) override;
  [[nodiscard]] const TcpTransportStats& stats() const { return stats_; }

 private:
  ZmqContext& context_;
  const TcpTransportOptions options_;
  TcpTransportStats stats_;
};

struct TcpSourceOptions {
  std::string endpoint = "tcp://127.0.0.1:*";  // to bind
  std::string advertise;                       // what workers connect to; empty = as bound
  std::optional<CurveServer> curve;
  bool insecure = false;  // allows a non-loopback bind without CURVE
};

// Trainer: the server thread. Lifetime: the context outlives it; destroying it joins the thread.
// Thread: offer and withdraw from any.
class TcpSource final : public BroadcastSource {
 public:
  static Result<std::unique_ptr<TcpSource>> start(ZmqContext& context, TcpSourceOptions options);
  ~TcpSource() override;

  Result<TransportRoute> offer(const OfferedCheckpoint& offered) override;
  void withdraw(uint64_t weight_version) override;
  [[nodiscard]] uint64_t sent_bytes() const;

 private:
  struct Impl;
  explicit TcpSource(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warproll
