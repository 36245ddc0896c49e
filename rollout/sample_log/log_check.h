// What `warproll log stats|verify|repair` do. All work on a linked copy (see log_reader.h), so the
// directory itself is never changed and may belong to a running worker.
// Thread: any; long work, call from a thread that may block. Errors: Status when the work itself
// could not be done; damage found is a finding, not an error.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "rollout/sample_log/log_types.h"

namespace warproll {

// (samples done, samples in all, bytes done); false stops the work with kAborted. May be empty.
using LogProgress = std::function<bool(uint64_t done, uint64_t total, uint64_t bytes)>;

enum class FindingKind : uint8_t {
  kUnreadable,      // the database does not open, or a block fails its checksum
  kBadRecord,       // header, checksum, decode or validate failed
  kMissingTensors,  // the record names tensors that are not stored, or with another checksum
  kMissingSample,   // a seq inside the log that is neither stored, removed, nor a gap
  kIndex,           // an index entry without its sample, or the other way round
  kOutbox,          // an outbox entry without its sample, or at or below commit_upto, or missing
  kAccounting,      // S9 does not hold
  kHighWater,       // fewer samples than were acknowledged, or the file is missing or damaged
  kIdentity,        // producer_id, epoch, seq or trajectory_id of a record contradict the log
};
std::string_view to_string(FindingKind kind);  // "unreadable" ...

struct Finding {
  FindingKind kind = FindingKind::kUnreadable;
  uint64_t seq = 0;  // 0 = of the whole log
  std::string text;
};

struct VerifyReport {
  LogInfo info;
  Accounting accounting;
  uint64_t samples = 0;
  uint64_t bytes = 0;
  uint64_t findings_total = 0;
  std::vector<Finding> findings;  // the first 1000
  [[nodiscard]] bool clean() const { return findings_total == 0; }
};
Result<VerifyReport> verify_log(const std::string& directory, const LogProgress& progress = {});

struct RepairReport {
  uint64_t samples_copied = 0;
  uint64_t bytes_copied = 0;
  std::vector<GapRange> lost;      // seqs acknowledged once and not recovered; gaps in the new log
  std::vector<std::string> notes;  // what else was wrong, one sentence each
};
// Copies everything that checks out into a new log in `out_directory` (must not exist or be empty):
// same producer_id, seqs and bytes, epoch raised, outbox = all uncommitted, lost seqs as gaps.
Result<RepairReport> repair_log_to(const std::string& directory, const std::string& out_directory,
                                   const LogProgress& progress = {});

struct LogSummary {
  LogInfo info;
  Accounting accounting;
  uint64_t samples = 0;  // stored now
  uint64_t bytes = 0;    // of records and tensors
  int64_t oldest_ns = 0;
  int64_t newest_ns = 0;
  std::vector<std::pair<uint64_t, uint64_t>> samples_by_weight_version;  // version, samples
  uint64_t groups = 0;
  uint64_t tasks = 0;
};
Result<LogSummary> summarize_log(const std::string& directory);

}  // namespace warproll
