// SendWindow: which sequence numbers are on their way and how many more may go (S4, S7).
//
//   commit_upto <= recv_upto <= sent_upto.   In flight = everything above commit_upto that was sent.
//
// A message may go when its seq is at most credit_seq and the bytes in flight stay within
// credit_bytes. One exception, so that a trainer with a credit smaller than its own
// max_message_bytes cannot lock the stream: with nothing in flight and any credit at all, one
// message may go whatever its size.
// Thread: one. Errors: none; what makes no sense (an ack beyond what was ever sealed) is checked by
// the owner, who knows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "protocol/messages.h"

namespace warproll {

class SendWindow {
 public:
  // A WELCOME: nothing is in flight, all above commit_upto is to be sent.
  void reset(uint64_t commit_upto, uint64_t credit_seq, uint64_t credit_bytes) {
    in_flight_.clear();
    in_flight_bytes_ = 0;
    commit_upto_ = recv_upto_ = sent_upto_ = commit_upto;
    credit_seq_ = credit_seq;
    credit_bytes_ = credit_bytes;
  }
  // True when recv_upto or commit_upto moved.
  bool on_ack(const Ack& ack) {
    const bool moved = ack.recv_upto > recv_upto_ || ack.commit_upto > commit_upto_;
    commit_upto_ = std::max(commit_upto_, ack.commit_upto);
    recv_upto_ = std::max({recv_upto_, ack.recv_upto, commit_upto_});
    sent_upto_ = std::max(sent_upto_, recv_upto_);  // what came through needs no second sending
    credit_seq_ = ack.credit_seq;
    credit_bytes_ = ack.credit_bytes;
    while (!in_flight_.empty() && in_flight_.front().seq <= commit_upto_) {
      in_flight_bytes_ -= in_flight_.front().bytes;
      in_flight_.pop_front();
    }
    return moved;
  }
  [[nodiscard]] bool may_send(uint64_t seq, uint64_t bytes) const {
    if (seq > credit_seq_) return false;
    if (in_flight_bytes_ == 0) return bytes == 0 || credit_bytes_ > 0;
    return in_flight_bytes_ + bytes <= credit_bytes_;
  }
  // [sent_upto + 1, seq] went out: one message, or a GAP of 0 bytes.
  void on_sent(uint64_t seq, uint64_t bytes) {
    in_flight_.push_back({seq, bytes});
    in_flight_bytes_ += bytes;
    sent_upto_ = seq;
  }
  // Everything above max(seq, recv_upto) is to be sent again.
  void go_back(uint64_t seq) {
    const uint64_t target = std::max(seq, recv_upto_);
    if (target >= sent_upto_) return;
    while (!in_flight_.empty() && in_flight_.back().seq > target) {
      in_flight_bytes_ -= in_flight_.back().bytes;
      in_flight_.pop_back();
    }
    sent_upto_ = target;
  }
  [[nodiscard]] uint64_t commit_upto() const { return commit_upto_; }
  [[nodiscard]] uint64_t recv_upto() const { return recv_upto_; }
  [[nodiscard]] uint64_t sent_upto() const { return sent_upto_; }
  [[nodiscard]] uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  [[nodiscard]] uint64_t in_flight_messages() const { return in_flight_.size(); }

 private:
  struct Sent {
    uint64_t seq;
    uint64_t bytes;
  };
  uint64_t commit_upto_ = 0;
  uint64_t recv_upto_ = 0;
  uint64_t sent_upto_ = 0;
  uint64_t credit_seq_ = 0;
  uint64_t credit_bytes_ = 0;
  uint64_t in_flight_bytes_ = 0;
  std::deque<Sent> in_flight_;
};

}  // namespace warproll
