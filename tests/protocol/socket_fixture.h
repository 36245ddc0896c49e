// A context, a trainer's and a worker's socket on loopback, and a peer that speaks no warproll.
#pragma once

#include <gtest/gtest.h>
#include <zmq.h>

#include <string>
#include <utility>
#include <vector>

#include "protocol/sockets.h"

namespace warproll::testing {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
inline constexpr const char* kAnyPort = "tcp://127.0.0.1:*";

inline Clock::time_point within(milliseconds time) { return Clock::now() + time; }
inline constexpr auto kSoon = seconds(20);  // a deadline that only a failure reaches

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

}  // namespace warproll::testing
