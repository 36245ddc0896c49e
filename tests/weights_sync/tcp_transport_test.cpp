#include "weights_sync/tcp_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/weights_sync/update_fixtures.h"

namespace warproll {
namespace {

using namespace update_fixtures;
using testing::HasSubstr;

TcpTransportOptions small_chunks() {
  TcpTransportOptions options;
  options.chunk_bytes = 10'000;  // divides no bucket and no tensor
  options.retry_ms = 50;
  options.silence_ms = 2'000;
  return options;
}

// A chunk server that answers as the test wants, on a thread of its own.
class ScriptedServer {
 public:
  using Answer =
      std::function<void(ChunkServerSocket&, const std::string& peer, const ChunkRequest& request)>;
  ScriptedServer(ZmqContext& context, Answer answer)
      : socket_(std::move(*ChunkServerSocket::bind(context, "tcp://127.0.0.1:*", {}))),
        endpoint_(socket_.endpoint()),
        thread_([this, answer] {
          while (!stop_) {
            auto got = socket_.receive(in_ms(1000), &waker_);
            if (got.ok() && *got && (*got)->request.ok()) {
              answer(socket_, (*got)->peer, *(*got)->request);
            }
          }
        }) {}
  ~ScriptedServer() {
    stop_ = true;
    waker_.wake();
    thread_.join();
  }
  [[nodiscard]] TransportRoute route() const { return {"tcp", endpoint_, ""}; }

 private:
  ChunkServerSocket socket_;
  std::string endpoint_;
  std::atomic<bool> stop_{false};
  Waker waker_;
  std::thread thread_;
};

class TcpTransportTest : public testing::Test {
 protected:
  // The bytes of a chunk as a faultless server sends them.
  std::vector<std::byte> chunk(const ChunkRequest& request) const {
    const Manifest& manifest = *offered.manifest;
    const uint64_t from = request.bucket_index * manifest.bucket_bytes + request.offset_bytes;
    std::vector<std::byte> bytes(request.length_bytes);
    for (size_t i = 0; i < manifest.entries.size(); ++i) {
      const uint64_t start = manifest.stream_offset(manifest.entries[i]);
      const auto tensor = offered.checkpoint->bytes(i);  // both are sorted by name
      for (uint64_t at = std::max(from, start);
           at < std::min(from + bytes.size(), start + tensor.size()); ++at) {
        bytes[at - from] = tensor[at - start];
      }
    }
    return bytes;
  }
  void reply(ChunkServerSocket& socket, const std::string& peer,
             const ChunkRequest& request) const {
    const ChunkReply header{request.id, request.bucket_index, request.offset_bytes, "", {}};
    (void)socket.send(peer, header, chunk(request));
  }

  ZmqContext context;
  OfferedCheckpoint offered = arith(1, 1);
  StreamCollector stream{offered.manifest->stream_bytes()};
  Cancellation cancellation;
};

TEST_F(TcpTransportTest, AWorkerGetsEveryByteOnce) {
  auto source = TcpSource::start(context, {});
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  const auto route = (*source)->offer(offered);
  TcpTransport transport(context, small_chunks());
  const Status status = transport.receive(request_for(offered, *route), *offered.manifest,
                                          stream.sink(), cancellation);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
  EXPECT_EQ(stream.received_bytes(), offered.manifest->stream_bytes());
}

TEST_F(TcpTransportTest, FourWorkersReceiveAtOnceFromOneServer) {
  auto source = TcpSource::start(context, {});
  const auto route = (*source)->offer(offered);
  std::atomic<int> whole{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < 4; ++i) {
    workers.emplace_back([&] {
      TcpTransport transport(context, small_chunks());
      StreamCollector own(offered.manifest->stream_bytes());
      Cancellation never;
      const Status status =
          transport.receive(request_for(offered, *route), *offered.manifest, own.sink(), never);
      if (status.ok() && own.holds(offered)) ++whole;
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(whole, 4);
  EXPECT_GE((*source)->sent_bytes(), 4 * offered.manifest->stream_bytes());
}

TEST_F(TcpTransportTest, AtMostTwoBucketsAreAskedForAtOnce) {
  std::atomic<uint64_t> asked{0}, taken{0}, most{0};
  const ScriptedServer server(context, [&](ChunkServerSocket& socket, const std::string& peer,
                                           const ChunkRequest& request) {
    asked += request.length_bytes;
    most = std::max<uint64_t>(most, asked - taken);
    reply(socket, peer, request);
  });
  TcpTransportOptions options = small_chunks();
  options.retry_ms = 10'000;
  TcpTransport transport(context, options);
  const Status status = transport.receive(
      request_for(offered, server.route()), *offered.manifest,
      [&](uint64_t offset, std::span<const std::byte> bytes) {
        taken += bytes.size();
        return stream.take(offset, bytes);
      },
      cancellation);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_LE(most, 2 * kBucketBytes);
  EXPECT_GT(most, kBucketBytes / 2) << "the window was never used";
}

TEST_F(TcpTransportTest, LostChunksAreAskedForAgain) {
  int count = 0;
  const ScriptedServer server(context, [&](ChunkServerSocket& socket, const std::string& peer,
                                           const ChunkRequest& request) {
    if (++count % 5 != 0) reply(socket, peer, request);
  });
  TcpTransport transport(context, small_chunks());
  const Status status = transport.receive(request_for(offered, server.route()), *offered.manifest,
                                          stream.sink(), cancellation);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
  EXPECT_GT(transport.stats().asked_again, 0u);
}

TEST_F(TcpTransportTest, DoubledAndForeignChunksAreNotTakenTwice) {
  const ScriptedServer server(context, [&](ChunkServerSocket& socket, const std::string& peer,
                                           const ChunkRequest& request) {
    reply(socket, peer, request);
    reply(socket, peer, request);
    ChunkRequest foreign = request;
    foreign.id.attempt = 77;
    reply(socket, peer, foreign);
  });
  // Three answers a request: on a slow machine requests made again would never be caught up with.
  TcpTransportOptions options = small_chunks();
  options.retry_ms = 2'000;
  options.silence_ms = 10'000;
  TcpTransport transport(context, options);
  const Status status = transport.receive(request_for(offered, server.route()), *offered.manifest,
                                          stream.sink(), cancellation);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
  EXPECT_GT(transport.stats().duplicates, 0u);
}

TEST_F(TcpTransportTest, AChunkOfTheWrongLengthIsAskedForAgain) {
  int count = 0;
  const ScriptedServer server(context, [&](ChunkServerSocket& socket, const std::string& peer,
                                           const ChunkRequest& request) {
    if (++count % 7 != 0) return reply(socket, peer, request);
    const ChunkReply header{request.id, request.bucket_index, request.offset_bytes, "", {}};
    const auto bytes = chunk(request);
    (void)socket.send(peer, header, std::span(bytes).first(bytes.size() / 2));
  });
  TcpTransport transport(context, small_chunks());
  const Status status = transport.receive(request_for(offered, server.route()), *offered.manifest,
                                          stream.sink(), cancellation);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
  EXPECT_GT(transport.stats().damaged, 0u);
}

TEST_F(TcpTransportTest, AVersionThatIsNotOfferedIsNotFound) {
  auto source = TcpSource::start(context, {});
  const auto route = (*source)->offer(arith(1, 7));
  TcpTransport transport(context, small_chunks());
  const Status status = transport.receive(request_for(offered, *route), *offered.manifest,
                                          stream.sink(), cancellation);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("weight version 1 is not offered"));
}

TEST_F(TcpTransportTest, WithdrawingInTheMiddleEndsTheReceiveWithAReason) {
  auto source = TcpSource::start(context, {});
  const auto route = (*source)->offer(offered);
  TcpTransport transport(context, small_chunks());
  const Status status = transport.receive(
      request_for(offered, *route), *offered.manifest,
      [&](uint64_t, std::span<const std::byte>) {
        (*source)->withdraw(1);
        return ok_status();
      },
      cancellation);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
}

TEST_F(TcpTransportTest, AServerThatDiesInTheMiddleIsUnavailableAfterTheSilence) {
  std::atomic<int> count{0};
  const ScriptedServer server(context, [&](ChunkServerSocket& socket, const std::string& peer,
                                           const ChunkRequest& request) {
    if (++count < 20) reply(socket, peer, request);
  });
  TcpTransportOptions options = small_chunks();
  options.silence_ms = 200;
  TcpTransport transport(context, options);
  const Status status = transport.receive(request_for(offered, server.route()), *offered.manifest,
                                          stream.sink(), cancellation);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("sent nothing for 200 ms"));
}

TEST_F(TcpTransportTest, ADeadServerEndsAtTheDeadline) {
  const ScriptedServer server(context,
                              [](ChunkServerSocket&, const std::string&, const ChunkRequest&) {});
  TcpTransport transport(context, small_chunks());
  const Status status = transport.receive(request_for(offered, server.route(), in_ms(100)),
                                          *offered.manifest, stream.sink(), cancellation);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(TcpTransportTest, CancellingWakesAReceiveThatWaits) {
  std::atomic<bool> asked{false};
  const ScriptedServer server(
      context, [&](ChunkServerSocket&, const std::string&, const ChunkRequest&) { asked = true; });
  TcpTransportOptions options = small_chunks();
  options.retry_ms = 60'000;
  options.silence_ms = 60'000;
  TcpTransport transport(context, options);
  std::thread canceller([&] {
    const auto deadline = in_ms(10'000);
    while (!asked && Clock::now() < deadline) std::this_thread::yield();
    cancellation.cancel();
  });
  const auto started = Clock::now();
  const Status status = transport.receive(request_for(offered, server.route()), *offered.manifest,
                                          stream.sink(), cancellation);
  canceller.join();
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_LT(Clock::now() - started, std::chrono::seconds(10));
}

TEST_F(TcpTransportTest, AnotherHostNeedsCurveOrAnExplicitInsecure) {
  TcpSourceOptions options;
  options.endpoint = "tcp://0.0.0.0:*";
  EXPECT_FALSE(TcpSource::start(context, options).ok());
  options.insecure = true;
  EXPECT_TRUE(TcpSource::start(context, options).ok());
}

TEST_F(TcpTransportTest, WithCurveAWorkerNeedsItsKey) {
  const auto server_keys = generate_keypair();
  const auto worker_keys = generate_keypair();
  auto allowed = CurveAllowList::start(context, {worker_keys->public_key});
  ASSERT_TRUE(allowed.ok()) << allowed.status().to_string();
  TcpSourceOptions source_options;
  source_options.curve = CurveServer{*server_keys, allowed->get()};
  auto source = TcpSource::start(context, source_options);
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  const auto route = (*source)->offer(offered);
  EXPECT_EQ(route->server_key, server_keys->public_key);

  TcpTransportOptions options = small_chunks();
  options.silence_ms = 300;
  TcpTransport without(context, options);
  EXPECT_EQ(
      without.receive(request_for(offered, *route), *offered.manifest, stream.sink(), cancellation)
          .code(),
      StatusCode::kFailedPrecondition);
  options.keys = *generate_keypair();
  TcpTransport stranger(context, options);
  EXPECT_EQ(
      stranger.receive(request_for(offered, *route), *offered.manifest, stream.sink(), cancellation)
          .code(),
      StatusCode::kUnavailable);
  options.keys = *worker_keys;
  options.silence_ms = 10'000;
  TcpTransport worker(context, options);
  const Status status =
      worker.receive(request_for(offered, *route), *offered.manifest, stream.sink(), cancellation);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
}

TEST_F(TcpTransportTest, ABucketOfOneChunkAndChunksLargerThanABucketWork) {
  auto source = TcpSource::start(context, {});
  const auto route = (*source)->offer(offered);
  TcpTransportOptions options = small_chunks();
  options.chunk_bytes = 10 << 20;
  TcpTransport transport(context, options);
  const Status status = transport.receive(request_for(offered, *route), *offered.manifest,
                                          stream.sink(), cancellation);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
  EXPECT_EQ(transport.stats().chunks, offered.manifest->num_buckets());
}

}  // namespace
}  // namespace warproll
