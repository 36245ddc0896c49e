// Keys and values of the TrajectoryStore's families. Integers are big-endian, so that keys sort by
// number. A value that does not parse is kDataLoss and names its family. Thread: pure functions.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "protocol/records.h"
#include "rollout/stream/trajectory_store.h"

namespace warproll::store_encoding {

std::string u64_key(uint64_t value);
Result<uint64_t> parse_u64(std::string_view bytes, std::string_view what);
std::string producer_key(const ProducerId& producer_id);               // 16 bytes
std::string seq_key(const ProducerId& producer_id, uint64_t seq);      // 24 bytes
std::string pair_key(std::string_view task_id, int32_t sample_index);  // task, then 4 bytes
std::string content_hash(const std::vector<std::byte>& record);        // XXH3-128, 16 bytes
std::string_view as_view(const std::vector<std::byte>& bytes);
std::vector<std::byte> to_bytes(std::string_view bytes);

// producer, seq, sample_index, task_id, then the record's bytes.
std::string taken_value(const SampleKey& key, const std::vector<std::byte>& record);
Result<TakenTrajectory> parse_taken(uint64_t take_index, std::string_view value);

std::string watermark_value(uint64_t epoch, uint64_t upto);
Result<ProducerWatermark> parse_watermark(std::string_view value);

struct Mark {
  uint64_t num_taken = 0;
  std::map<ProducerId, uint64_t> commit_upto;
};
std::string mark_value(const Mark& mark);
Result<Mark> parse_mark(std::string_view value);

std::string progress_value(const TrajectoryStore::FileProgress& progress);
Result<TrajectoryStore::FileProgress> parse_progress(std::string_view value);

}  // namespace warproll::store_encoding
