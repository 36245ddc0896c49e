#include "rollout/sample_log/log_keys.h"

#include <xxhash.h>
#include <zstd.h>

#include <cstring>

namespace warproll {
namespace {

constexpr char kMagic[4] = {'W', 'R', 'L', '1'};
constexpr size_t kHashedHeaderBytes = 24;
constexpr int64_t kMinuteNs = 60'000'000'000;

void put_be(std::string& out, uint64_t value, int num_bytes) {
  for (int i = num_bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
}

template <typename T>
void put_le(char* out, T value) {
  std::memcpy(out, &value, sizeof(value));  // x86-64 and aarch64 are little-endian
}
template <typename T>
void append_le(std::string& out, T value) {
  char bytes[sizeof(T)];
  put_le(bytes, value);
  out.append(bytes, sizeof(T));
}
template <typename T>
T get_le(const char* in) {
  T value;
  std::memcpy(&value, in, sizeof(value));
  return value;
}

uint64_t header_checksum(const char* header, std::string_view key, const void* stored,
                         size_t stored_bytes) {
  const uint64_t key_hash = XXH3_64bits(key.data(), key.size());
  const uint64_t seed = XXH3_64bits_withSeed(header, kHashedHeaderBytes, key_hash);
  return XXH3_64bits_withSeed(stored, stored_bytes, seed);
}

std::string prefixed_text(char type, std::string_view text) {
  std::string key(1, type);
  put_be(key, text.size(), 2);
  key.append(text);
  return key;
}

}  // namespace

std::string be64(uint64_t value) {
  std::string out;
  put_be(out, value, 8);
  return out;
}
uint64_t parse_be64(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}
std::string tensor_key(uint64_t seq, uint16_t tensor) {
  std::string key = be64(seq);
  put_be(key, tensor, 2);
  return key;
}

std::string gap_key(uint64_t from) { return std::string(kMetaGapPrefix) + be64(from); }
std::string encode_gap(const GapRange& gap) { return be64(gap.to) + gap.reason; }
std::optional<GapRange> parse_gap(std::string_view key, std::string_view value) {
  if (key.size() != kMetaGapPrefix.size() + 8 || value.size() < 8) return std::nullopt;
  GapRange gap{.from = parse_be64(key.substr(kMetaGapPrefix.size())),
               .to = parse_be64(value),
               .reason = std::string(value.substr(8))};
  if (gap.from == 0 || gap.to < gap.from) return std::nullopt;
  return gap;
}

std::string encode_outbox(const OutboxEntry& entry) {
  std::string value;
  append_le(value, entry.bytes);
  append_le(value, entry.attempts);
  append_le(value, entry.first_sent_ns);
  return value;
}
std::optional<OutboxEntry> parse_outbox(std::string_view key, std::string_view value) {
  if (key.size() != 8 || value.size() != 20) return std::nullopt;
  return OutboxEntry{.seq = parse_be64(key),
                     .bytes = get_le<uint64_t>(value.data()),
                     .attempts = get_le<uint32_t>(value.data() + 8),
                     .first_sent_ns = get_le<int64_t>(value.data() + 12)};
}

std::string encode_dead_letter(const DeadLetter& letter) {
  std::string value(1, static_cast<char>(letter.code));
  append_le(value, letter.unix_ns);
  return value + letter.reason;
}
std::optional<DeadLetter> parse_dead_letter(std::string_view key, std::string_view value) {
  if (key.size() != 8 || value.size() < 9) return std::nullopt;
  const auto code = static_cast<uint8_t>(value[0]);
  if (code > static_cast<uint8_t>(NackCode::kRetry)) return std::nullopt;
  return DeadLetter{.seq = parse_be64(key),
                    .code = static_cast<NackCode>(code),
                    .reason = std::string(value.substr(9)),
                    .unix_ns = get_le<int64_t>(value.data() + 1)};
}

std::string seq_index_key(uint64_t seq) { return kIndexSeq + be64(seq); }
std::string encode_seq_info(const SeqInfo& info) {
  std::string value;
  append_le(value, info.bytes);
  append_le(value, info.sealed_ns);
  return value;
}
std::optional<SeqInfo> parse_seq_info(std::string_view value) {
  if (value.size() != 16) return std::nullopt;
  return SeqInfo{.bytes = get_le<uint64_t>(value.data()),
                 .sealed_ns = get_le<int64_t>(value.data() + 8)};
}
std::string task_index_prefix(std::string_view task_id) {
  return prefixed_text(kIndexTask, task_id);
}
std::string task_sample_prefix(std::string_view task_id, int32_t sample_index) {
  std::string key = task_index_prefix(task_id);
  put_be(key, static_cast<uint32_t>(sample_index), 4);
  return key;
}
std::string group_index_prefix(std::string_view group_id) {
  return prefixed_text(kIndexGroup, group_id);
}
std::string version_index_prefix(uint64_t weight_version) {
  return kIndexVersion + be64(weight_version);
}
std::string minute_index_prefix(int64_t sealed_ns) {
  return kIndexMinute + be64(static_cast<uint64_t>(sealed_ns < 0 ? 0 : sealed_ns / kMinuteNs));
}
std::vector<std::string> index_keys(const RecordSummary& summary) {
  const std::string seq = be64(summary.seq);
  std::vector<std::string> keys;
  keys.push_back(kIndexSeq + seq);
  keys.push_back(task_sample_prefix(summary.task_id, summary.sample_index) + seq);
  keys.push_back(group_index_prefix(summary.group_id) + seq);
  for (uint64_t version : summary.weight_versions) {
    keys.push_back(version_index_prefix(version) + seq);
  }
  keys.push_back(minute_index_prefix(summary.sealed_ns) + seq);
  return keys;
}

std::array<char, kRecordHeaderBytes> encode_header(const RecordHeader& header, std::string_view key,
                                                   std::span<const std::byte> stored) {
  std::array<char, kRecordHeaderBytes> out{};
  std::memcpy(out.data(), kMagic, 4);
  put_le(out.data() + 4, static_cast<uint16_t>(kLogFormatVersion));
  out[6] = static_cast<char>(header.codec);
  put_le(out.data() + 8, header.stored_bytes);
  put_le(out.data() + 12, header.raw_bytes);
  put_le(out.data() + 16, header.unix_ns);
  put_le(out.data() + 24, header_checksum(out.data(), key, stored.data(), stored.size()));
  return out;
}

Result<RecordHeader> open_record(std::string_view what, std::string_view key,
                                 std::string_view value, Bytes* raw) {
  const auto bad = [&](const std::string& text) {
    return data_loss(std::string(what) + " seq " + std::to_string(parse_be64(key)) + ": " + text);
  };
  if (value.size() < kRecordHeaderBytes) {
    return bad("value of " + std::to_string(value.size()) + " bytes, wanted at least 32");
  }
  const char* head = value.data();
  if (std::memcmp(head, kMagic, 4) != 0) return bad("header does not begin with WRL1");
  const auto version = get_le<uint16_t>(head + 4);
  if (version != kLogFormatVersion) {
    return bad("record format " + std::to_string(version) + ", wanted 1");
  }
  const RecordHeader header{.codec = static_cast<Codec>(head[6]),
                            .stored_bytes = get_le<uint32_t>(head + 8),
                            .raw_bytes = get_le<uint32_t>(head + 12),
                            .unix_ns = get_le<int64_t>(head + 16)};
  const std::string_view stored = value.substr(kRecordHeaderBytes);
  if (stored.size() != header.stored_bytes) {
    return bad(std::to_string(stored.size()) + " bytes stored, the header says " +
               std::to_string(header.stored_bytes));
  }
  if (header_checksum(head, key, stored.data(), stored.size()) != get_le<uint64_t>(head + 24)) {
    return bad("checksum mismatch over " + std::to_string(stored.size()) + " bytes");
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(stored.data());
  if (header.codec == Codec::kNone) {
    raw->assign(bytes, bytes + stored.size());
    return header;
  }
  if (header.codec != Codec::kZstd) return bad("unknown codec " + std::to_string(head[6]));
  raw->resize(header.raw_bytes);
  const size_t size = ZSTD_decompress(raw->data(), raw->size(), stored.data(), stored.size());
  if (ZSTD_isError(size) || size != header.raw_bytes) return bad("zstd data does not decompress");
  return header;
}

Codec compress(const Bytes& raw, Bytes* stored) {
  stored->resize(ZSTD_compressBound(raw.size()));
  const size_t size = ZSTD_compress(stored->data(), stored->size(), raw.data(), raw.size(), 1);
  if (ZSTD_isError(size) || size >= raw.size()) return Codec::kNone;
  stored->resize(size);
  return Codec::kZstd;
}

}  // namespace warproll
