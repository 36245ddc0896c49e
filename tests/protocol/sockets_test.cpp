#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/protocol/random_records.h"
#include "tests/protocol/socket_fixture.h"

namespace warproll::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(Sockets, EveryMessageCrossesBothWaysUnchanged) {
  auto trainer = bind();
  auto worker = connect(trainer);
  Random random(1);
  for (const Message& message : random_messages(random)) {
    SCOPED_TRACE(message_name(message));
    const Envelope envelope = random_envelope(random);
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

TEST_F(Sockets, AnIpv6EndpointWorks) {
  auto trainer = TrainerSocket::bind(context_, "tcp://[::1]:*", {});
  if (!trainer.ok()) GTEST_SKIP() << "no IPv6 loopback here: " << trainer.status().to_string();
  auto worker = connect(*trainer);
  ASSERT_TRUE(worker.send({}, Drain{}).ok());
  EXPECT_TRUE(take(*trainer).message.ok());
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
}  // namespace warproll::testing
