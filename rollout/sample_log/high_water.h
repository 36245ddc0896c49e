// HighWater: what this directory has acknowledged, kept outside RocksDB so that a damaged database
// cannot pass for a shorter one. Three slots of one page each in a preallocated file: two that take
// turns, written in place and fdatasynced (a torn write leaves the other), and one, never synced,
// for what the kernel holds under durability os; it counts only within one boot of the machine.
// In place and not tmp + rename: one sync for each group commit in place of three.
// Internal to rollout/sample_log.
// Thread: one at a time. Errors: kDataLoss when no slot is valid.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "protocol/records.h"
#include "protocol/status.h"

namespace warproll {

inline constexpr const char* kHighWaterFile = "HIGH_WATER";

struct HighWaterMark {
  uint64_t epoch = 0;
  uint64_t synced_seq = 0;    // every seq up to here survives power loss
  uint64_t reserved_seq = 0;  // no seq above this was ever given out
  uint64_t os_seq = 0;        // within this boot: every seq up to here survives SIGKILL
  bool same_boot = false;     // os_seq was written since the machine started; else it is 0
  ProducerId producer_id{};
};

class HighWater {
 public:
  static Status create(const std::string& directory, const ProducerId& producer_id);
  // kNotFound when the file is missing.
  static Result<HighWaterMark> read(const std::string& directory);
  static Result<HighWater> open(const std::string& directory);
  HighWater(HighWater&& other) noexcept;
  HighWater& operator=(HighWater&&) = delete;
  ~HighWater();

  [[nodiscard]] const HighWaterMark& mark() const { return mark_; }
  // Durable when it returns ok.
  Status write_synced(const HighWaterMark& mark);
  // Survives SIGKILL when it returns ok.
  Status write_os(uint64_t os_seq);

 private:
  HighWater(int fd, HighWaterMark mark, uint64_t counter);
  Status write_slot(int slot, bool sync, uint64_t os_seq);

  int fd_;
  HighWaterMark mark_;
  uint64_t counter_;  // of the newest synced slot
  std::array<uint8_t, 16> boot_id_;
};

}  // namespace warproll
