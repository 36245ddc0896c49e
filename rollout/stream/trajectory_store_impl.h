// The inside of TrajectoryStore, for its two source files: trajectory_store.cpp (open, stage, flush,
// read) and trajectory_store_marks.cpp (marks and rollback). Thread: one.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rollout/stream/store_database.h"
#include "rollout/stream/store_encoding.h"
#include "rollout/stream/trajectory_store.h"

namespace warproll {

struct TrajectoryStore::Impl {
  TrajectoryStoreOptions options;
  std::unique_ptr<StoreDatabase> database;
  std::string lineage_id;
  uint64_t trainer_epoch = 0;
  uint64_t num_taken = 0;
  uint64_t num_quarantined = 0;
  FileProgress progress;
  std::map<ProducerId, ProducerWatermark> producers;

  // Staged:
  StoreBatch batch;
  uint64_t next_take = 0;
  std::set<ProducerId> touched;
  std::vector<TakenPair> pairs;
  std::set<std::string> pair_keys;
  std::map<std::string, std::string> hashes;  // by seq_key
  std::set<std::string> quarantine_keys;

  Status load();
  Status start_session();
  void clear_staged();
  // Everything of `family` under (producer, seq) with seq above the producer's mark.
  Status erase_above(StoreFamily family, const store_encoding::Mark& mark, StoreBatch* changes);
};

// A new random name of a lineage.
std::string random_lineage();
// The producer at the head of a key of kProducers, kSeqs, kGaps or kQuarantine.
Result<ProducerId> parse_producer_key(std::string_view key);

}  // namespace warproll
