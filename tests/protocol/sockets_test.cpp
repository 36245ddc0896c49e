#include "protocol/sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <thread>

#include "protocol/frame.h"
#include "tests/protocol/random_records.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr const char* kAnyPort = "tcp://127.0.0.1:*";

Clock::time_point within(milliseconds time) { return Clock::now() + time; }
const auto kSoon = seconds(20);  // a deadline that only a failure reaches

class Sockets : public ::testing::Test {
 protected:
  TrainerSocket bind(const SocketOptions& options = {}) {
    auto trainer = TrainerSocket::bind(context_, kAnyPort, options);
    EXPECT_EQ(trainer.status().to_string(), "OK");
    return std::move(*trainer);
  }
  WorkerSocket connect(const TrainerSocket& trainer, const SocketOptions& options = {}) {
    auto worker = WorkerSocket::connect(context_, trainer.endpoint(), options);
    EXPECT_EQ(worker.status().to_string(), "OK");
    EXPECT_EQ(worker->wait_ready(within(kSoon)).to_string(), "OK");
    return std::move(*worker);
  }
  template <typename Socket>
  Received take(Socket& socket) {
    auto received = socket.receive(within(kSoon));
    EXPECT_EQ(received.status().to_string(), "OK");
    EXPECT_TRUE(received->has_value());
    return std::move(**received);
  }
  // What a peer that speaks no warproll sends: any parts at all.
  void send_raw(const TrainerSocket& trainer, const std::vector<std::string>& parts) {
    void* dealer = zmq_socket(context_.handle(), ZMQ_DEALER);
    ASSERT_EQ(zmq_connect(dealer, trainer.endpoint().c_str()), 0);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int flags = i + 1 < parts.size() ? ZMQ_SNDMORE : 0;
      ASSERT_GE(zmq_send(dealer, parts[i].data(), parts[i].size(), flags), 0);
    }
    raw_.push_back(dealer);
  }
  void TearDown() override {
    const int linger_ms = 0;
    for (void* dealer : raw_) {
      zmq_setsockopt(dealer, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
      zmq_close(dealer);
    }
  }

  ZmqContext context_;
  std::vector<void*> raw_;
};

TEST_F(Sockets, EveryMessageCrossesBothWaysUnchanged) {
  auto trainer = bind();
  auto worker = connect(trainer);
  testing::Random random(1);
  for (const Message& message : testing::random_messages(random)) {
    SCOPED_TRACE(message_name(message));
    const Envelope envelope = testing::random_envelope(random);
    ASSERT_TRUE(worker.send(envelope, message).ok());
    const Received at_trainer = take(trainer);
    EXPECT_EQ(at_trainer.envelope, envelope);
    ASSERT_TRUE(at_trainer.message.ok());
    EXPECT_TRUE(*at_trainer.message == message);
    EXPECT_FALSE(at_trainer.peer.empty());

    ASSERT_TRUE(trainer.send(at_trainer.peer, envelope, message).ok());
    const Received at_worker = take(worker);
    EXPECT_EQ(at_worker.envelope, envelope);
    ASSERT_TRUE(at_worker.message.ok());
    EXPECT_TRUE(*at_worker.message == message);
    EXPECT_TRUE(at_worker.peer.empty());
  }
}

TEST_F(Sockets, TheBoundEndpointNamesThePortThatWasChosen) {
  auto trainer = bind();
  EXPECT_THAT(trainer.endpoint(), ::testing::MatchesRegex("tcp://127.0.0.1:[0-9]+"));
}

TEST_F(Sockets, ABusyPortIsNamed) {
  auto trainer = bind();
  const auto second = TrainerSocket::bind(context_, trainer.endpoint(), {});
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(trainer.endpoint()));
}

TEST_F(Sockets, AMalformedEndpointIsNamed) {
  const auto worker = WorkerSocket::connect(context_, "http://x", {});
  EXPECT_EQ(worker.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(worker.status().message(), HasSubstr("'http://x'"));
}

TEST_F(Sockets, ReceiveGivesNothingAtItsDeadline) {
  auto trainer = bind();
  const auto begin = Clock::now();
  const auto received = trainer.receive(within(milliseconds(30)));
  ASSERT_TRUE(received.ok());
  EXPECT_FALSE(received->has_value());
  EXPECT_GE(Clock::now() - begin, milliseconds(30));
}

TEST_F(Sockets, AWakeFromAnotherThreadEndsReceive) {
  auto trainer = bind();
  const Waker waker;
  std::thread other([&] { waker.wake(); });
  const auto received = trainer.receive(within(kSoon), &waker);
  other.join();
  ASSERT_TRUE(received.ok());
  EXPECT_FALSE(received->has_value());
  // and the wake was consumed: the next receive waits for its deadline
  const auto begin = Clock::now();
  EXPECT_FALSE((*trainer.receive(within(milliseconds(20)), &waker)).has_value());
  EXPECT_GE(Clock::now() - begin, milliseconds(20));
}

TEST_F(Sockets, AWakeBeforeReceiveIsNotLost) {
  auto trainer = bind();
  const Waker waker;
  for (int i = 0; i < 1000; ++i) waker.wake();
  EXPECT_FALSE((*trainer.receive(within(kSoon), &waker)).has_value());
}

TEST_F(Sockets, AMessageIsDeliveredAlthoughTheWakerIsSetToo) {
  auto trainer = bind();
  auto worker = connect(trainer);
  const Waker waker;
  ASSERT_TRUE(worker.send({}, Drain{}).ok());
  std::optional<Received> received;
  const auto deadline = within(kSoon);
  while (!received && Clock::now() < deadline) {
    waker.wake();
    received = std::move(*trainer.receive(deadline, &waker));
  }
  ASSERT_TRUE(received);
  EXPECT_TRUE(std::holds_alternative<Drain>(*received->message));
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

TEST_F(Sockets, AnIpv6EndpointWorks) {
  auto trainer = TrainerSocket::bind(context_, "tcp://[::1]:*", {});
  if (!trainer.ok()) GTEST_SKIP() << "no IPv6 loopback here: " << trainer.status().to_string();
  auto worker = connect(*trainer);
  ASSERT_TRUE(worker.send({}, Drain{}).ok());
  EXPECT_TRUE(take(*trainer).message.ok());
}

TEST_F(Sockets, AFullQueueIsUnavailableAndEveryQueuedMessageArrivesOnceInOrder) {
  SocketOptions options;
  options.send_hwm_messages = 4;
  options.receive_hwm_messages = 4;
  auto trainer = bind(options);
  auto worker = connect(trainer, options);
  Data data;  // big enough that the kernel's buffers hold few
  testing::Random random(2);
  Trajectory trajectory = testing::random_trajectory(random);
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
    } else if (!worker.wait_ready(within(milliseconds(200))).ok()) {
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
  const Frames good = *encode_message({{7}, 2, 5}, Gap{1, 2, "r"});
  const auto text = [](const Bytes& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  std::string spoiled = text(good[1]);
  spoiled[20] ^= 1;
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"hello"}, "frame header length is 5, wanted 80"},
      {{text(good[0])}, "number of frames is 1, wanted 2"},
      {{text(good[0]), text(good[1]), "x", "y", "z"}, "too many frames"},
      {{text(good[0]), spoiled}, "body checksum does not match"},
      {{""}, "frame header length is 0, wanted 80"},
  };
  for (const auto& [parts, wanted] : cases) {
    send_raw(trainer, parts);
    const Received received = take(trainer);
    EXPECT_FALSE(received.peer.empty());
    EXPECT_THAT(received.message.status().message(), HasSubstr(wanted));
    const bool has_header = parts[0].size() == kFrameHeaderBytes && parts.size() < 5;
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

TEST_F(Sockets, ByeIsDeliveredWhenTheSocketLingers) {
  auto trainer = bind();
  auto worker = connect(trainer);
  ASSERT_TRUE(worker.send({}, Bye{"done", {}}).ok());
  worker.close(2000);
  EXPECT_TRUE(std::holds_alternative<Bye>(*take(trainer).message));
}

TEST_F(Sockets, AClosedSocketSaysSo) {
  auto trainer = bind();
  auto worker = connect(trainer);
  worker.close(0);
  EXPECT_EQ(worker.send({}, Drain{}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(worker.receive(within(kSoon)).status().code(), StatusCode::kFailedPrecondition);
  trainer.close(0);
  EXPECT_EQ(trainer.send("x", {}, Drain{}).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace warproll
