// codec: records and messages <-> bytes. The wire form is docs/protocol.md; the schemas are
// records.capnp and messages.capnp.
// Encoding is deterministic: equal structs give equal bytes, and it refuses (never writes) what
// decoding would refuse. Decoding trusts nothing: framing, lengths, enum values, UTF-8 and list
// sizes are checked, and failures come back as Status. What a field MEANS is not checked here:
// call validate() (records.h) on what was decoded.
// Thread: any (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "protocol/messages.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace warproll {

using Bytes = std::vector<std::byte>;

inline constexpr uint64_t kDefaultMaxMessageBytes = uint64_t{256} << 20;
inline constexpr uint32_t kMaxListItems = 1u << 20;  // of every list in a record or message

struct CodecLimits {
  uint64_t max_message_bytes = kDefaultMaxMessageBytes;  // header + body + tensors
};

// XXH3-64 with seed 0, the checksum of every header, body and of routed experts.
uint64_t checksum64(std::span<const std::byte> bytes);

// ---- records ----
// `record` becomes one one-segment Cap'n Proto message; `tensors` the routed experts' bytes (empty
// without), whose length and checksum are in the record. On failure both are left empty.
Status encode_trajectory(const Trajectory& trajectory, Bytes* record, Bytes* tensors);
// kDataLoss when `tensors` is not what the record says, kInvalidArgument for the rest.
Result<Trajectory> decode_trajectory(std::span<const std::byte> record,
                                     std::span<const std::byte> tensors);

// What the log and the receiver need of a record without decoding its arrays.
struct RecordSummary {
  ProducerId producer_id{};
  uint64_t epoch = 0;
  uint64_t seq = 0;
  std::string trajectory_id;
  std::string task_id;
  std::string group_id;
  int32_t sample_index = 0;
  int32_t num_tokens = 0;  // T
  int32_t prompt_len = 0;
  std::vector<uint64_t> weight_versions;  // of version_digests, in the record's order
  FinishReason finish_reason = FinishReason::kStop;
  int64_t sealed_ns = 0;
  bool has_reward = false;
  double reward_total = 0.0;
  uint64_t tensors_bytes = 0;     // 0 = no routed experts
  uint64_t tensors_checksum = 0;  // checksum64 of them
  bool operator==(const RecordSummary&) const = default;
};
Result<RecordSummary> peek_trajectory(std::span<const std::byte> record);
// kDataLoss when `tensors` does not have the length and checksum that `summary` says.
Status check_tensors(const RecordSummary& summary, std::span<const std::byte> tensors);

Result<Bytes> encode_task(const Task& task);
Result<Task> decode_task(std::span<const std::byte> record);

// ---- messages ----
// A message is one frame: header, body and tensors behind each other. Those of a Data message are
// its record and tensors as they are.
Result<Bytes> encode_message(const Envelope& envelope, const Message& message);
// Data: the record's framing and both lengths are checked here, its content by peek_trajectory /
// decode_trajectory.
Result<std::pair<Envelope, Message>> decode_message(std::span<const std::byte> frame,
                                                    const CodecLimits& limits);

}  // namespace warproll
