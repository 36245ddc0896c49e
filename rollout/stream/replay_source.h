// ReplaySource: sends stored trajectories to a trainer again, on purpose (`warproll replay`). A
// session of its own beside the worker's: its own random producer id, epoch 1, seqs 1, 2, ...; so it
// can run while the worker runs, and the worker's watermark is not touched.
//
//   kDedupe  records as they are: the trainer takes those it does not have, by (producer, seq) and
//            by (task, sample_index), and acknowledges the rest
//   kAsNew   other samples with the same content: producer and seq of the replay, task and group
//            ids with "replay-<8 hex digits of the producer>/" in front, so that S11 lets them in
//
// Same io loop as Publisher's (publisher.h). A sample that the trainer refuses is counted, its
// reason kept, and a GAP sent in its place. Nothing is written to the log.
// What is sent and not yet committed is held in memory, bounded by the trainer's credit.
//
// Thread: one; passive. Errors: Status = the source failed (a damaged record names its seq); the
// next call goes on behind it. stopped_because() as in Publisher.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "rollout/sample_log/log_types.h"
#include "rollout/stream/producer_session.h"
#include "rollout/stream/send_window.h"
#include "rollout/stream/wire.h"

namespace warproll {

enum class ReplayMode : uint8_t { kDedupe, kAsNew };

struct ReplayOptions {
  ReplayMode mode = ReplayMode::kDedupe;
  double samples_per_s = 0.0;  // 0 = as fast as credit allows
  SessionOptions session;
  uint32_t resend_ms = 5000;
  uint32_t retry_ms = 1000;
};

struct ReplayRefusal {
  uint64_t source_seq = 0;
  NackCode code = NackCode::kMalformed;
  std::string reason;
};

struct ReplayStats {
  uint64_t read = 0;  // from the source
  uint64_t sent = 0;  // resends included
  uint64_t sent_bytes = 0;
  uint64_t committed = 0;  // acknowledged by the trainer's store, refused ones included
  uint64_t refused = 0;
};

class ReplaySource {
 public:
  // The next stored sample, nothing at the end: e.g. SampleCursor::next.
  using Next = std::function<Result<std::optional<StoredRecord>>()>;

  ReplaySource(Next next, ReplayOptions options, ProducerSession::Sources sources);

  Status on_message(const Message& message, SteadyTime now);
  void tick(SteadyTime now);
  Result<std::optional<WorkerMessage>> next_outgoing(SteadyTime now);
  void send_failed(WorkerMessage message, const Status& why);
  [[nodiscard]] bool reconnect_due(SteadyTime now) const { return session_.reconnect_due(now); }
  void on_reconnected(SteadyTime now) { session_.on_reconnected(now); }
  void bye(std::string reason) { session_.bye(std::move(reason), {}); }

  // The source is at its end and the trainer holds all of it.
  [[nodiscard]] bool done() const;
  [[nodiscard]] const Status& stopped_because() const { return session_.stopped_because(); }
  [[nodiscard]] const ProducerId& producer_id() const { return producer_id_; }
  [[nodiscard]] const std::vector<ReplayRefusal>& refusals() const { return refusals_; }
  [[nodiscard]] const ReplayStats& stats() const { return stats_; }

 private:
  struct Item {
    uint64_t source_seq = 0;
    Data data;
    bool refused = false;
    uint64_t bytes() const { return refused ? 0 : data.record.size() + data.tensors.size(); }
  };
  void on_welcome(const Welcome& welcome, SteadyTime now);
  void on_nack(const Nack& nack, SteadyTime now);
  void refuse(uint64_t seq, NackCode code, const std::string& reason);
  Status read_ahead();
  Result<Data> as_new(const StoredRecord& stored, uint64_t seq) const;
  void forget_committed();
  Item& item(uint64_t seq) { return items_[static_cast<size_t>(seq - first_seq_)]; }

  const Next next_;
  const ReplayOptions options_;
  const ProducerId producer_id_;
  ProducerSession session_;
  SendWindow window_;
  std::deque<Item> items_;  // [first_seq_, first_seq_ + size): read and not yet committed
  uint64_t first_seq_ = 1;
  bool at_end_ = false;
  std::string lineage_id_;
  SteadyTime not_before_{};  // rate, and after NACK kRetry
  SteadyTime last_progress_{};
  std::vector<ReplayRefusal> refusals_;
  ReplayStats stats_;
};

}  // namespace warproll
