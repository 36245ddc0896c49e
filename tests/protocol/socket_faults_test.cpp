#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "protocol/frame.h"
#include "tests/protocol/random_records.h"
#include "tests/protocol/socket_fixture.h"

namespace warproll::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(Sockets, AMalformedEndpointIsNamed) {
  const auto worker = WorkerSocket::connect(context_, "http://x", {});
  EXPECT_EQ(worker.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(worker.status().message(), HasSubstr("'http://x'"));
}

TEST_F(Sockets, ASendToAPeerThatNeverWasIsNotFound) {
  auto trainer = bind();
  EXPECT_EQ(trainer.send("nobody", {}, Drain{}).code(), StatusCode::kNotFound);
}

TEST_F(Sockets, ASendToAPeerThatLeftBecomesNotFound) {
  auto trainer = bind();
  auto worker = connect(trainer);
  ASSERT_TRUE(worker.send({}, Bye{}).ok());
  const std::string peer = take(trainer).peer;
  worker.close(0);
  const auto deadline = within(kSoon);
  Status status;
  while (status.code() != StatusCode::kNotFound && Clock::now() < deadline) {
    status = trainer.send(peer, {}, Drain{});
    (void)trainer.receive(within(milliseconds(5))).ok();
  }
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
}

// A port that is taken and where nobody listens.
class DeadPort {
 public:
  DeadPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(fd_, generic, size), 0);
    EXPECT_EQ(getsockname(fd_, generic, &size), 0);
    endpoint_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~DeadPort() { close(fd_); }
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  int fd_;
  std::string endpoint_;
};

TEST_F(Sockets, AWorkerWithoutATrainerCannotQueueAnything) {
  const DeadPort port;
  auto worker = WorkerSocket::connect(context_, port.endpoint(), {});
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ(worker->send({}, Drain{}).code(), StatusCode::kUnavailable);
  const Status status = worker->wait_ready(within(milliseconds(50)));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr(port.endpoint()));
}

TEST_F(Sockets, AFullQueueIsUnavailableAndEveryQueuedMessageArrivesOnceInOrder) {
  SocketOptions options;
  options.send_hwm_messages = 4;
  options.receive_hwm_messages = 4;
  auto trainer = bind(options);
  auto worker = connect(trainer, options);
  Data data;  // big enough that the kernel's buffers hold few
  Random random(2);
  Trajectory trajectory = random_trajectory(random);
  trajectory.metadata.assign(size_t{1} << 20, 'm');
  ASSERT_TRUE(encode_trajectory(trajectory, &data.record, &data.tensors).ok());
  uint64_t sent = 0;
  Status status;
  // Unavailable may pass while the io thread moves messages on: full means it stays so.
  const auto deadline = within(kSoon);
  while (Clock::now() < deadline) {
    status = worker.send({{}, 0, sent + 1}, data);
    if (status.ok()) {
      ++sent;
    } else if (!worker.wait_ready(within(milliseconds(200))).ok() && sent >= 8) {
      break;
    }
  }
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_GE(sent, 8u);
  EXPECT_LT(sent, 200u);
  for (uint64_t seq = 1; seq <= sent; ++seq) EXPECT_EQ(take(trainer).envelope.seq, seq);
  EXPECT_FALSE((*trainer.receive(within(milliseconds(50)))).has_value());
}

TEST_F(Sockets, MalformedMessagesAreReportedWithTheirPeerAndTheSocketGoesOn) {
  auto trainer = bind();
  const Bytes frame = *encode_message({{7}, 2, 5}, Gap{1, 2, "r"});
  const std::string good(reinterpret_cast<const char*>(frame.data()), frame.size());
  std::string spoiled = good;
  spoiled[kFrameHeaderBytes + 20] ^= 1;
  const std::string head = good.substr(0, kFrameHeaderBytes);
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"hello"}, "message has 5 bytes, wanted a header of 80"},
      {{head}, "message has 0 bytes behind its header, wanted 48 of body and 0 of tensors"},
      {{good, "x"}, "message has 2 ZeroMQ frames, wanted 1"},
      {{good, good, "x", "y", "z"}, "message has 5 ZeroMQ frames, wanted 1"},
      {{spoiled}, "body checksum does not match"},
      {{""}, "message has 0 bytes, wanted a header of 80"},
  };
  for (const auto& [parts, wanted] : cases) {
    send_raw(trainer, parts);
    const Received received = take(trainer);
    EXPECT_FALSE(received.peer.empty());
    EXPECT_THAT(received.message.status().message(), HasSubstr(wanted));
    const bool has_header = parts[0].size() >= kFrameHeaderBytes;
    EXPECT_EQ(received.envelope.seq, has_header ? 5u : 0u);
  }
  auto worker = connect(trainer);
  ASSERT_TRUE(worker.send({}, Drain{}).ok());
  EXPECT_TRUE(take(trainer).message.ok());
}

TEST_F(Sockets, AFrameOverTheLimitCutsThatConnectionOnly) {
  SocketOptions options;
  options.max_message_bytes = 4096;
  auto trainer = bind(options);
  send_raw(trainer, {std::string(100'000, 'x')});
  auto worker = connect(trainer);
  ASSERT_TRUE(worker.send({}, Drain{}).ok());
  EXPECT_TRUE(take(trainer).message.ok());
}

TEST_F(Sockets, AMessageOverThePeersLimitIsRefusedByTheSender) {
  auto trainer = bind();
  auto worker = connect(trainer);
  worker.set_peer_max_message_bytes(200);
  Cancel cancel{"task", std::string(500, 'r')};
  const Status status = worker.send({}, cancel);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("wanted at most 200"));
}

TEST_F(Sockets, ReconnectIsANewPeerForTheTrainer) {
  auto trainer = bind();
  auto worker = connect(trainer);
  ASSERT_TRUE(worker.send({}, Drain{}).ok());
  const std::string first = take(trainer).peer;
  ASSERT_TRUE(worker.reconnect().ok());
  ASSERT_TRUE(worker.wait_ready(within(kSoon)).ok());
  ASSERT_TRUE(worker.send({}, Drain{}).ok());
  EXPECT_NE(take(trainer).peer, first);
}

TEST_F(Sockets, AWorkerFindsATrainerThatCameBackOnTheSamePort) {
  auto trainer = bind();
  SocketOptions options;
  options.reconnect_ms = 10;
  auto worker = connect(trainer, options);
  const std::string endpoint = trainer.endpoint();
  trainer.close(0);
  Result<TrainerSocket> second = internal_error("");
  const auto deadline = within(kSoon);
  while (!second.ok() && Clock::now() < deadline) {  // the port is freed by the io thread
    second = TrainerSocket::bind(context_, endpoint, {});
  }
  ASSERT_EQ(second.status().to_string(), "OK");
  Status status = unavailable("");
  std::optional<Received> received;
  while (!received && Clock::now() < deadline) {
    (void)worker.send({}, Drain{}).ok();
    received = std::move(*second->receive(within(milliseconds(20))));
  }
  ASSERT_TRUE(received);
  EXPECT_TRUE(received->message.ok());
}

// libzmq takes up what happened to a connection at every hundredth frame it hands out. When a
// message had two frames that was between the two, and it aborted the process ("!_more").
TEST_F(Sockets, ATrainerThatDiedWithMessagesUnreadCutsNoneInTwo) {
  for (const bool asleep : {true, false}) {  // an even and an odd number of frames before
    auto trainer = bind();
    auto worker = connect(trainer);
    ASSERT_TRUE(worker.send({}, Drain{}).ok());
    const std::string peer = take(trainer).peer;
    std::thread first([&] {
      if (asleep) std::this_thread::sleep_for(milliseconds(100));
      EXPECT_TRUE(trainer.send(peer, {}, Drain{}).ok());
    });
    if (!asleep) std::this_thread::sleep_for(milliseconds(100));
    EXPECT_TRUE(take(worker).message.ok());
    first.join();
    for (int i = 0; i < 300; ++i) ASSERT_TRUE(trainer.send(peer, {}, Drain{}).ok());
    std::this_thread::sleep_for(milliseconds(200));  // until all are in the worker's queue
    trainer.close(0);
    std::this_thread::sleep_for(milliseconds(200));  // until its io thread has seen the end
    int num_received = 0;
    while (auto received = *worker.receive(within(milliseconds(50)))) {
      EXPECT_EQ(received->message.status().to_string(), "OK");
      ++num_received;
    }
    EXPECT_GT(num_received, 0);
  }
}

}  // namespace
}  // namespace warproll::testing
