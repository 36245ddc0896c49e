// verify_log: reads everything and believes nothing.
#include <rocksdb/db.h>
#include <rocksdb/iterator.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "rollout/sample_log/high_water.h"
#include "rollout/sample_log/log_check.h"
#include "rollout/sample_log/log_reader.h"
#include "rollout/sample_log/store.h"

namespace warproll {
namespace {

constexpr size_t kMaxFindings = 1000;

class Verifier {
 public:
  Verifier(std::shared_ptr<Store> store, VerifyReport* report) : store_(store), report_(*report) {}

  Status run(const LogProgress& progress) {
    WARPROLL_TRY_ASSIGN(state, store_->load_state());
    state_ = std::move(state);
    report_.info = state_.info;
    check_high_water();
    WARPROLL_TRY(list_seqs());
    WARPROLL_TRY(check_samples(progress));
    WARPROLL_TRY(check_index());
    WARPROLL_TRY(check_outbox());
    return check_accounting();
  }

  void add(FindingKind kind, uint64_t seq, std::string text) {
    ++report_.findings_total;
    if (report_.findings.size() < kMaxFindings) {
      report_.findings.push_back({.kind = kind, .seq = seq, .text = std::move(text)});
    }
  }

 private:
  struct ExpectedEntry {  // an index key that a good sample must have
    uint64_t hash = 0;
    uint64_t seq = 0;
    bool found = false;
  };

  bool is_listed(uint64_t seq) const { return std::binary_search(seqs_.begin(), seqs_.end(), seq); }

  void check_high_water() {
    const auto mark = HighWater::read(store_->directory());
    if (!mark.ok()) return add(FindingKind::kHighWater, 0, mark.status().message());
    if (mark->producer_id != state_.info.producer_id) {
      add(FindingKind::kHighWater, 0,
          "the high-water file is of producer " + to_hex(mark->producer_id) + ", the database of " +
              to_hex(state_.info.producer_id));
    }
    const uint64_t acknowledged = std::max(mark->synced_seq, mark->os_seq);
    if (acknowledged > state_.info.last_seq) {
      add(FindingKind::kHighWater, 0,
          "seqs up to " + std::to_string(acknowledged) +
              " were acknowledged, the database ends at " + std::to_string(state_.info.last_seq));
    }
  }

  // All seqs of the index, and what should be there and is not.
  Status list_seqs() {
    {
      const Store::Session session = store_->session();
      std::unique_ptr<rocksdb::Iterator> it(
          session.db().NewIterator(rocksdb::ReadOptions(), session.family(Family::kIndex)));
      for (it->Seek(seq_index_key(0)); it->Valid() && it->key()[0] == kIndexSeq; it->Next()) {
        seqs_.push_back(parse_be64(it->key().ToStringView().substr(1)));
      }
      WARPROLL_TRY(from_rocksdb(it->status(), "index"));
    }
    WARPROLL_TRY_ASSIGN(missing, store_->missing_seqs(state_));
    for (const GapRange& range : missing) {
      for (uint64_t seq = range.from; seq <= range.to; ++seq) {
        const bool stored = store_->read(seq).status().code() != StatusCode::kNotFound;
        add(stored ? FindingKind::kIndex : FindingKind::kMissingSample, seq,
            stored ? "stored, but not in the index" : "neither stored nor recorded as a gap");
        if (report_.findings_total > kMaxFindings) return ok_status();
      }
    }
    for (const auto& [seq, letter] : state_.dead_letters) {
      if (!is_listed(seq))
        add(FindingKind::kMissingSample, seq, "a dead letter without its sample");
    }
    return ok_status();
  }

  Status check_samples(const LogProgress& progress) {
    for (size_t i = 0; i < seqs_.size(); ++i) {
      check_sample(seqs_[i]);
      if (progress && !progress(i + 1, seqs_.size(), report_.bytes)) {
        return aborted("verify: stopped after " + std::to_string(i + 1) + " samples");
      }
    }
    return ok_status();
  }

  void check_sample(uint64_t seq) {
    const auto bad = [&](FindingKind kind, const std::string& text) {
      bad_seqs_.push_back(seq);
      add(kind, seq, text);
    };
    const auto stored = store_->read(seq);
    if (stored.status().code() == StatusCode::kNotFound) {
      return bad(FindingKind::kIndex, "in the index, but not stored");
    }
    if (!stored.ok()) return bad(FindingKind::kBadRecord, stored.status().message());
    report_.samples += 1;
    report_.bytes += stored->record.size() + stored->tensors.size();
    const auto summary = peek_trajectory(stored->record);
    if (!summary.ok()) return bad(FindingKind::kBadRecord, summary.status().message());
    if (Status status = check_tensors(*summary, stored->tensors); !status.ok()) {
      return bad(FindingKind::kMissingTensors, status.message());
    }
    const auto trajectory = decode_stored(*stored);
    if (!trajectory.ok()) return bad(FindingKind::kBadRecord, trajectory.status().message());
    if (Status status = validate(*trajectory, 0); !status.ok()) {
      return bad(FindingKind::kBadRecord, status.message());
    }
    if (trajectory->seq != seq || trajectory->producer_id != state_.info.producer_id ||
        trajectory->epoch > state_.info.epoch ||
        trajectory->timings.sealed_ns != stored->sealed_ns) {
      return bad(FindingKind::kIdentity, "the record calls itself " + trajectory->trajectory_id +
                                             " of epoch " + std::to_string(trajectory->epoch));
    }
    for (const std::string& key : index_keys(*summary)) {
      expected_.push_back({.hash = XXH3_64bits(key.data(), key.size()), .seq = seq});
    }
  }

  Status check_index() {
    std::sort(bad_seqs_.begin(), bad_seqs_.end());
    std::sort(expected_.begin(), expected_.end(),
              [](const auto& a, const auto& b) { return a.hash < b.hash; });
    const Store::Session session = store_->session();
    std::unique_ptr<rocksdb::Iterator> it(
        session.db().NewIterator(rocksdb::ReadOptions(), session.family(Family::kIndex)));
    for (it->SeekToFirst(); it->Valid(); it->Next()) check_index_key(it->key().ToStringView());
    WARPROLL_TRY(from_rocksdb(it->status(), "index"));
    for (const ExpectedEntry& entry : expected_) {
      if (!entry.found) add(FindingKind::kIndex, entry.seq, "an index entry of it is missing");
    }
    return ok_status();
  }

  void check_index_key(std::string_view key) {
    if (key.size() < 9) return add(FindingKind::kIndex, 0, "an index key is too short");
    const uint64_t seq = parse_be64(key.substr(key.size() - 8));
    const uint64_t hash = XXH3_64bits(key.data(), key.size());
    auto entry = std::lower_bound(expected_.begin(), expected_.end(), hash,
                                  [](const ExpectedEntry& e, uint64_t h) { return e.hash < h; });
    for (; entry != expected_.end() && entry->hash == hash; ++entry) {
      if (entry->seq != seq) continue;
      entry->found = true;
      return;
    }
    if (std::binary_search(bad_seqs_.begin(), bad_seqs_.end(), seq)) return;  // reported already
    add(FindingKind::kIndex, seq,
        std::string("an index entry of type ") + key[0] + " that its sample does not ask for");
  }

  Status check_outbox() {
    WARPROLL_TRY_ASSIGN(entries, store_->outbox(0, SIZE_MAX));
    size_t next = 0;
    const auto wanted = [&](uint64_t seq) {
      return seq > state_.info.commit_upto && state_.dead_letters.count(seq) == 0;
    };
    for (uint64_t seq : seqs_) {
      if (!wanted(seq)) continue;
      while (next < entries.size() && entries[next].seq < seq) stray(entries[next++].seq);
      if (next < entries.size() && entries[next].seq == seq) {
        ++next;
      } else {
        add(FindingKind::kOutbox, seq, "neither committed nor in the outbox");
      }
    }
    while (next < entries.size()) stray(entries[next++].seq);
    return ok_status();
  }
  void stray(uint64_t seq) {
    add(FindingKind::kOutbox, seq,
        seq <= state_.info.commit_upto ? "in the outbox, but committed already"
                                       : "in the outbox without a sample to send");
  }

  Status check_accounting() {
    WARPROLL_TRY_ASSIGN(accounting, store_->accounting());
    report_.accounting = accounting;
    if (!accounting.holds()) add(FindingKind::kAccounting, 0, accounting.to_string());
    return ok_status();
  }

  const std::shared_ptr<Store> store_;
  VerifyReport& report_;
  LogState state_;
  std::vector<uint64_t> seqs_;      // of the index, ascending
  std::vector<uint64_t> bad_seqs_;  // whose record told nothing about its index entries
  std::vector<ExpectedEntry> expected_;
};

bool is_damage(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound ||
         status.code() == StatusCode::kFailedPrecondition ||
         status.code() == StatusCode::kUnavailable;
}

}  // namespace

std::string_view to_string(FindingKind kind) {
  switch (kind) {
    case FindingKind::kUnreadable:
      return "unreadable";
    case FindingKind::kBadRecord:
      return "bad_record";
    case FindingKind::kMissingTensors:
      return "missing_tensors";
    case FindingKind::kMissingSample:
      return "missing_sample";
    case FindingKind::kIndex:
      return "index";
    case FindingKind::kOutbox:
      return "outbox";
    case FindingKind::kAccounting:
      return "accounting";
    case FindingKind::kHighWater:
      return "high_water";
    case FindingKind::kIdentity:
      return "identity";
  }
  return "unknown";
}

Result<VerifyReport> verify_log(const std::string& directory, const LogProgress& progress) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(fs::path(directory) / "CURRENT", error) &&
      !fs::exists(fs::path(directory) / kHighWaterFile, error)) {
    return not_found("no sample log in " + directory + ": neither CURRENT nor " + kHighWaterFile);
  }
  VerifyReport report;
  auto store = Store::open_copy(directory, StoreMode::kReadOnly);
  Status status = store.status();
  if (store.ok()) {
    status = Verifier(*store, &report).run(progress);
  }
  if (status.ok()) return report;
  if (!is_damage(status)) return status;
  ++report.findings_total;
  report.findings.push_back({.kind = FindingKind::kUnreadable, .seq = 0, .text = status.message()});
  return report;
}

}  // namespace warproll
