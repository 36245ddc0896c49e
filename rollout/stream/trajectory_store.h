// TrajectoryStore: the trainer's durable half of the stream, in a RocksDB of its own. It holds what
// was taken (record and tensors exactly as sent), which (producer, seq) and which (task,
// sample_index) that was, one watermark a producer, the quarantine, and marks to roll back to.
// stage_*() collect changes in memory; flush() makes all of them durable in ONE WriteBatch, so that
// sample, watermark and taken pair can never disagree. Nothing may be acknowledged as committed
// before the flush() that wrote it.
//
// take_index numbers the taken trajectories 0, 1, 2, ... in the order they were taken; it is what a
// trainer that embeds the store keeps as its cursor.
//
// Lifetime: one process opens a directory at a time (RocksDB's lock). Each open raises
// trainer_epoch. A new directory, and each rollback, gets a new random lineage_id.
// Errors: a failed flush() keeps what is staged; call it again (a full disk gives
// kResourceExhausted). Damage found at open is kDataLoss and nothing is repaired in place.
// Thread: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/messages.h"
#include "protocol/status.h"

namespace warproll {

struct TrajectoryStoreOptions {
  std::string directory;
  bool sync = true;  // fsync each flush; false survives a process crash but not power loss
};

// Whose sample it is: identity of the content, not of the connection that carried it.
struct SampleKey {
  ProducerId producer_id{};
  uint64_t seq = 0;
  std::string task_id;
  int32_t sample_index = 0;
};

struct TakenTrajectory {
  uint64_t take_index = 0;
  SampleKey key;
  std::vector<std::byte> record;
  std::vector<std::byte> tensors;
};

struct ProducerWatermark {
  uint64_t epoch = 0;        // highest seen
  uint64_t recv_upto = 0;    // staged or durable
  uint64_t commit_upto = 0;  // durable
};

struct TakenPair {
  std::string task_id;
  int32_t sample_index = 0;
  bool operator==(const TakenPair&) const = default;
};

enum class SeenContent { kNew, kSame, kOther };

class TrajectoryStore {
 public:
  static Result<std::unique_ptr<TrajectoryStore>> open(const TrajectoryStoreOptions& options);
  ~TrajectoryStore();
  TrajectoryStore(const TrajectoryStore&) = delete;
  TrajectoryStore& operator=(const TrajectoryStore&) = delete;

  [[nodiscard]] const std::string& lineage_id() const;
  [[nodiscard]] uint64_t trainer_epoch() const;
  [[nodiscard]] uint64_t num_taken() const;  // durable
  [[nodiscard]] uint64_t num_quarantined() const;
  [[nodiscard]] const std::map<ProducerId, ProducerWatermark>& producers() const;
  [[nodiscard]] ProducerWatermark producer(const ProducerId& producer_id) const;

  // Staged or durable.
  [[nodiscard]] Result<bool> is_taken(std::string_view task_id, int32_t sample_index) const;
  // Was this (producer, seq) seen, and with this content?
  [[nodiscard]] Result<SeenContent> seen(const ProducerId& producer_id, uint64_t seq,
                                         const std::vector<std::byte>& record) const;

  void stage_epoch(const ProducerId& producer_id, uint64_t epoch);
  // The sample is delivered: it gets the next take_index.
  void stage_taken(const SampleKey& key, const Data& data);
  // The sample is known as received but not delivered, because its (task, sample_index) is taken.
  void stage_duplicate(const SampleKey& key, const Data& data);
  void stage_gap(const ProducerId& producer_id, const Gap& gap);
  Status stage_quarantine(const ProducerId& producer_id, uint64_t seq, const Data& data,
                          std::string_view reason);
  void stage_watermark(const ProducerId& producer_id, uint64_t recv_upto);
  [[nodiscard]] bool has_staged() const;
  // Returns the pairs that became taken, in take order.
  Result<std::vector<TakenPair>> flush();

  // Taken trajectories from `take_index` on, at most `max` (0 <= max), durable ones only.
  [[nodiscard]] Result<std::vector<TakenTrajectory>> read(uint64_t take_index, size_t max) const;

  // A mark names the present durable state, e.g. "step-1200" beside the trainer's own checkpoint.
  // Marking again under a name moves it. What is staged must be flushed first.
  Status mark(std::string_view name);
  [[nodiscard]] Result<std::vector<std::string>> marks() const;
  // Back to the mark: everything taken since is forgotten, watermarks are lowered, the lineage is
  // new; the workers resend from their logs. Epochs stay, so that a fenced process stays fenced.
  Status rollback(std::string_view name);

  // The store knows less than it once acknowledged (power loss without sync): a new lineage_id, so
  // that the workers send again what they hold above the watermarks. Nothing staged is dropped.
  Status start_new_lineage();

  // How far the JSONL file (trajectory_jsonl.h) is known to be durable. After a rollback
  // bytes is kUnknownBytes: the file must be cut after `lines` lines.
  static constexpr uint64_t kUnknownBytes = UINT64_MAX;
  struct FileProgress {
    uint64_t lines = 0;
    uint64_t bytes = 0;
  };
  [[nodiscard]] FileProgress file_progress() const;
  Status set_file_progress(const FileProgress& progress);

 private:
  struct Impl;
  explicit TrajectoryStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warproll
