// Ledger: who has what. Commit watermark, outbox, dead letters, gaps and retention of one open log,
// in memory and in the store. Internal to rollout/sample_log.
//
// A commit is taken in memory first; when the disk is full it is written later. That is safe: after
// a crash the log knows an older commit_upto, sends again, and the trainer takes nothing twice.
//
// Thread: any. Lifetime: holds the store. Errors: Status.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rollout/sample_log/store.h"

namespace warproll {

class Ledger {
 public:
  Ledger(std::shared_ptr<Store> store, LogState state, RetentionPolicy retention);

  [[nodiscard]] LogInfo info() const;
  void advance(uint64_t last_seq);  // the writer: everything up to here is durable

  [[nodiscard]] Result<std::vector<OutboxEntry>> read_outbox(uint64_t from_seq,
                                                             size_t max_entries) const;
  [[nodiscard]] std::vector<GapRange> unsendable(uint64_t from_seq, uint64_t to_seq) const;
  Status note_sent(const std::vector<uint64_t>& seqs);
  Status mark_committed(uint64_t upto, const std::string& lineage_id);
  Result<std::vector<GapRange>> rewind(const std::string& lineage_id, uint64_t commit_upto);
  Status dead_letter(uint64_t seq, NackCode code, const std::string& reason);
  Result<RetentionResult> apply_retention();
  // Writes a commit that so far is only in memory.
  Status write_pending_commit();

 private:
  LogState state() const;
  Status write_commit(uint64_t upto);
  Status check_commit(const LogInfo& info, uint64_t upto) const;
  Result<uint64_t> first_seq_to_keep(const LogInfo& info) const;
  Status remove_samples(uint64_t from, uint64_t to, RetentionResult* result);
  Status delete_files_below(uint64_t seq) const;

  const std::shared_ptr<Store> store_;
  const RetentionPolicy retention_;

  // One change of delivery state at a time, its write included: a late outbox entry must not
  // reappear behind a prune.
  std::mutex change_mutex_;
  uint64_t written_commit_;

  mutable std::mutex mutex_;
  LogState state_;
};

}  // namespace warproll
