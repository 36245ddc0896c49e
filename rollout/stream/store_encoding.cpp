#include "rollout/stream/store_encoding.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace warproll::store_encoding {
namespace {

void put_u64(std::string& out, uint64_t value) {
  for (int shift = 56; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}
void put_u32(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}
void put_producer(std::string& out, const ProducerId& producer_id) {
  out.append(reinterpret_cast<const char*>(producer_id.data()), producer_id.size());
}

// Reads the fields of one value in order; after the first short read everything is zero and
// failed() is true.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  std::string_view take(size_t size) {
    if (bytes_.size() < size) {
      failed_ = true;
      bytes_ = {};
      return {};
    }
    const std::string_view head = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return head;
  }
  uint64_t number(size_t size) {
    uint64_t value = 0;
    for (const char byte : take(size)) value = value << 8 | static_cast<uint8_t>(byte);
    return value;
  }
  uint64_t u64() { return number(8); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  ProducerId producer() {
    ProducerId producer_id{};
    const std::string_view bytes = take(producer_id.size());
    if (!bytes.empty()) std::memcpy(producer_id.data(), bytes.data(), producer_id.size());
    return producer_id;
  }
  std::string_view rest() { return take(bytes_.size()); }
  // Every field was there and nothing is left over.
  [[nodiscard]] bool complete() const { return !failed_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool failed_ = false;
};

Status damaged(std::string_view what, size_t got_bytes) {
  return data_loss("trajectory store: value of " + std::string(what) + " has " +
                   std::to_string(got_bytes) + " bytes, which its fields do not fill exactly");
}

}  // namespace

std::string u64_key(uint64_t value) {
  std::string key;
  put_u64(key, value);
  return key;
}

Result<uint64_t> parse_u64(std::string_view bytes, std::string_view what) {
  Reader reader(bytes);
  const uint64_t value = reader.u64();
  if (!reader.complete()) return damaged(what, bytes.size());
  return value;
}

std::string producer_key(const ProducerId& producer_id) {
  std::string key;
  put_producer(key, producer_id);
  return key;
}

std::string seq_key(const ProducerId& producer_id, uint64_t seq) {
  std::string key = producer_key(producer_id);
  put_u64(key, seq);
  return key;
}

std::string pair_key(std::string_view task_id, int32_t sample_index) {
  std::string key(task_id);
  put_u32(key, static_cast<uint32_t>(sample_index));
  return key;
}

std::string_view as_view(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> to_bytes(std::string_view bytes) {
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

std::string content_hash(const std::vector<std::byte>& record) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(record.data(), record.size()));
  return {reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest)};
}

std::string taken_value(const SampleKey& key, const std::vector<std::byte>& record) {
  std::string value = seq_key(key.producer_id, key.seq);
  put_u32(value, static_cast<uint32_t>(key.sample_index));
  put_u32(value, static_cast<uint32_t>(key.task_id.size()));
  value.append(key.task_id);
  value.append(as_view(record));
  return value;
}

Result<TakenTrajectory> parse_taken(uint64_t take_index, std::string_view value) {
  Reader reader(value);
  TakenTrajectory taken;
  taken.take_index = take_index;
  taken.key.producer_id = reader.producer();
  taken.key.seq = reader.u64();
  taken.key.sample_index = static_cast<int32_t>(reader.u32());
  taken.key.task_id = std::string(reader.take(reader.u32()));
  taken.record = to_bytes(reader.rest());
  if (!reader.complete()) return damaged("taken/" + std::to_string(take_index), value.size());
  return taken;
}

std::string watermark_value(uint64_t epoch, uint64_t upto) {
  std::string value;
  put_u64(value, epoch);
  put_u64(value, upto);
  return value;
}

Result<ProducerWatermark> parse_watermark(std::string_view value) {
  Reader reader(value);
  ProducerWatermark watermark;
  watermark.epoch = reader.u64();
  watermark.commit_upto = watermark.recv_upto = reader.u64();
  if (!reader.complete()) return damaged("producers", value.size());
  return watermark;
}

std::string mark_value(const Mark& mark) {
  std::string value;
  put_u64(value, mark.num_taken);
  put_u64(value, mark.commit_upto.size());
  for (const auto& [producer_id, upto] : mark.commit_upto) {
    put_producer(value, producer_id);
    put_u64(value, upto);
  }
  return value;
}

Result<Mark> parse_mark(std::string_view value) {
  Reader reader(value);
  Mark mark;
  mark.num_taken = reader.u64();
  const uint64_t num_producers = reader.u64();
  constexpr size_t kEntryBytes = 24;
  if (value.size() != 16 + num_producers * kEntryBytes) return damaged("marks", value.size());
  for (uint64_t i = 0; i < num_producers; ++i) {
    const ProducerId producer_id = reader.producer();
    mark.commit_upto[producer_id] = reader.u64();
  }
  if (!reader.complete()) return damaged("marks", value.size());
  return mark;
}

std::string progress_value(const TrajectoryStore::FileProgress& progress) {
  return watermark_value(progress.lines, progress.bytes);
}

Result<TrajectoryStore::FileProgress> parse_progress(std::string_view value) {
  Reader reader(value);
  TrajectoryStore::FileProgress progress;
  progress.lines = reader.u64();
  progress.bytes = reader.u64();
  if (!reader.complete()) return damaged("meta/file_progress", value.size());
  return progress;
}

}  // namespace warproll::store_encoding
