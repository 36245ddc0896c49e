// A TrajectoryReceiver with small credit and limits, and what its tests say to it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rollout/stream/trajectory_receiver.h"
#include "tests/rollout/stream/stream_fixture.h"

namespace warproll::stream_testing {

class TrajectoryReceiverTest : public ::testing::Test {
 protected:
  TrajectoryReceiverTest() { open(); }

  void open() {
    receiver_.reset();
    auto opened = TrajectoryReceiver::open(options());
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    receiver_ = *std::move(opened);
  }
  [[nodiscard]] TrajectoryReceiverOptions options() const {
    TrajectoryReceiverOptions options = trainer_options(folder_.path("trainer")).receiver;
    options.credit_messages = 4;
    options.limits = {.max_message_bytes = 4096, .heartbeat_ms = 100, .liveness_ms = 1000};
    options.credit_bytes = 8192;
    return options;
  }
  void say(Message message, uint64_t seq = 0, uint64_t epoch = 1, uint8_t producer = 1,
           const std::string& peer = "peer") {
    auto verdict = receiver_->on_message(
        {peer, {producer_id(producer), epoch, seq}, std::move(message)}, clock_.now());
    ASSERT_TRUE(verdict.ok()) << verdict.status().to_string();
  }
  std::vector<PeerMessage> flush() {
    auto flushed = receiver_->flush();
    EXPECT_TRUE(flushed.ok()) << flushed.status().to_string();
    return outgoing(*receiver_);
  }
  Welcome hello(uint64_t epoch = 1, uint8_t producer = 1, Hello message = {}) {
    say(std::move(message), 0, epoch, producer);
    const auto welcomes = only<Welcome>(flush());
    EXPECT_EQ(welcomes.size(), 1u);
    return welcomes.empty() ? Welcome{} : welcomes.front();
  }
  Data sample(const std::string& task_id, uint64_t seq, uint64_t epoch = 1, uint8_t producer = 1) {
    return data_of(
        identified(make_trajectory(task_id, 0, rng_), producer_id(producer), epoch, seq));
  }

  TempFolder folder_;
  TestClock clock_;
  std::mt19937_64 rng_{7};
  std::unique_ptr<TrajectoryReceiver> receiver_;
};

}  // namespace warproll::stream_testing
