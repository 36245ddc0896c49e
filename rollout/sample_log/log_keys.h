// Keys and values of the sample log's families, and the 32-byte header in front of every stored
// record. docs/sample_log.md is the same for people. Internal to rollout/sample_log.
// Thread: any (pure functions).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/codec.h"
#include "rollout/sample_log/log_types.h"

namespace warproll {

inline constexpr uint32_t kLogFormatVersion = 1;
inline constexpr size_t kRecordHeaderBytes = 32;
inline constexpr uint16_t kRoutedExpertsTensor = 0;  // the only tensor so far

enum class Codec : uint8_t { kNone = 0, kZstd = 1 };

// Big-endian, so that byte order is number order.
std::string be64(uint64_t value);
uint64_t parse_be64(std::string_view bytes);  // first 8 bytes

inline std::string sample_key(uint64_t seq) { return be64(seq); }
std::string tensor_key(uint64_t seq, uint16_t tensor);

// meta
inline constexpr std::string_view kMetaFormat = "format_version";
inline constexpr std::string_view kMetaSchema = "schema";
inline constexpr std::string_view kMetaProducer = "producer_id";
inline constexpr std::string_view kMetaEpoch = "epoch";
inline constexpr std::string_view kMetaNextSeq = "next_seq";
inline constexpr std::string_view kMetaCommitUpto = "commit_upto";
inline constexpr std::string_view kMetaLineage = "lineage_id";
inline constexpr std::string_view kMetaRetainedFrom = "retained_from";
inline constexpr std::string_view kMetaGapPrefix = "gap/";  // + BE64 from -> BE64 to, reason
std::string gap_key(uint64_t from);
std::string encode_gap(const GapRange& gap);
std::optional<GapRange> parse_gap(std::string_view key, std::string_view value);

// outbox and dead_letters
std::string encode_outbox(const OutboxEntry& entry);
std::optional<OutboxEntry> parse_outbox(std::string_view key, std::string_view value);
std::string encode_dead_letter(const DeadLetter& letter);
std::optional<DeadLetter> parse_dead_letter(std::string_view key, std::string_view value);

// index: one type byte, the value, BE64 seq. Values are empty but for kSeq.
inline constexpr char kIndexSeq = 's';
inline constexpr char kIndexTask = 't';     // BE16 length, task_id, BE32 sample_index
inline constexpr char kIndexGroup = 'g';    // BE16 length, group_id
inline constexpr char kIndexVersion = 'v';  // BE64
inline constexpr char kIndexMinute = 'm';   // BE64 of sealed_ns / 60 s

struct SeqInfo {  // value of kIndexSeq: what retention and time queries need without the sample
  uint64_t bytes = 0;
  int64_t sealed_ns = 0;
};
std::string seq_index_key(uint64_t seq);
std::string encode_seq_info(const SeqInfo& info);
std::optional<SeqInfo> parse_seq_info(std::string_view value);
std::string task_index_prefix(std::string_view task_id);
std::string task_sample_prefix(std::string_view task_id, int32_t sample_index);
std::string group_index_prefix(std::string_view group_id);
std::string version_index_prefix(uint64_t weight_version);
std::string minute_index_prefix(int64_t sealed_ns);
// Every index key of one sample, kIndexSeq first.
std::vector<std::string> index_keys(const RecordSummary& summary);

// Header: magic "WRL1" u32, format u16, codec u8, 0 u8, stored length u32, raw length u32,
// unix_ns i64, XXH3-64 u64 of the first 24 bytes and the stored bytes, seeded with the key. All LE.
struct RecordHeader {
  Codec codec = Codec::kNone;
  uint32_t stored_bytes = 0;
  uint32_t raw_bytes = 0;
  int64_t unix_ns = 0;
};
std::array<char, kRecordHeaderBytes> encode_header(const RecordHeader& header, std::string_view key,
                                                   std::span<const std::byte> stored);
// kDataLoss names the key and what is wrong. `raw` gets the bytes that were sealed.
Result<RecordHeader> open_record(std::string_view what, std::string_view key,
                                 std::string_view value, Bytes* raw);
// zstd level 1; kNone when that would not be smaller.
Codec compress(const Bytes& raw, Bytes* stored);

}  // namespace warproll
