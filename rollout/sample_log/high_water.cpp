#include "rollout/sample_log/high_water.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

namespace warproll {
namespace {

constexpr off_t kSlotBytes = 4096;
constexpr int kNumSyncedSlots = 2;
constexpr int kOsSlot = 2;
constexpr uint64_t kMagic = 0x314d57485052'5257;  // "WRRPHWM1" in memory order

struct Slot {
  uint64_t magic;
  uint64_t counter;
  uint64_t epoch;
  uint64_t synced_seq;
  uint64_t reserved_seq;
  uint64_t os_seq;
  std::array<uint8_t, 16> boot_id;
  ProducerId producer_id;
  uint64_t checksum;  // XXH3-64 of the bytes before
};
static_assert(sizeof(Slot) == 88 && sizeof(Slot) <= kSlotBytes);

uint64_t checksum_of(const Slot& slot) { return XXH3_64bits(&slot, offsetof(Slot, checksum)); }

// Hash of the kernel's boot id; all zero (never equal to a stored one) when there is none.
std::array<uint8_t, 16> boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::array<uint8_t, 16> id{};
  if (!(file >> text)) return id;
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  std::memcpy(id.data(), &hash, sizeof(id));
  return id;
}

Status failed(const std::string& what, const std::string& path) {
  return {errno == ENOSPC ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
          what + " " + path + ": " + std::strerror(errno)};
}

std::optional<Slot> read_slot(int fd, int index) {
  Slot slot;
  if (pread(fd, &slot, sizeof(slot), index * kSlotBytes) != sizeof(slot)) return std::nullopt;
  if (slot.magic != kMagic || slot.checksum != checksum_of(slot)) return std::nullopt;
  return slot;
}

Status read_mark(int fd, const std::string& path, HighWaterMark* mark, uint64_t* counter) {
  std::optional<Slot> newest;
  for (int i = 0; i < kNumSyncedSlots; ++i) {
    const auto slot = read_slot(fd, i);
    if (slot && (!newest || slot->counter > newest->counter)) newest = slot;
  }
  if (!newest) return data_loss("high-water file " + path + ": no slot has a valid checksum");
  *counter = newest->counter;
  *mark = HighWaterMark{.epoch = newest->epoch,
                        .synced_seq = newest->synced_seq,
                        .reserved_seq = newest->reserved_seq,
                        .producer_id = newest->producer_id};
  const auto os = read_slot(fd, kOsSlot);
  const auto boot = boot_id();
  if (os && os->epoch == newest->epoch && os->boot_id == boot && boot != decltype(boot){}) {
    mark->os_seq = os->os_seq;
    mark->same_boot = true;
  }
  return ok_status();
}

}  // namespace

HighWater::HighWater(int fd, HighWaterMark mark, uint64_t counter)
    : fd_(fd), mark_(mark), counter_(counter), boot_id_(boot_id()) {}
HighWater::HighWater(HighWater&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      mark_(other.mark_),
      counter_(other.counter_),
      boot_id_(other.boot_id_) {}
HighWater::~HighWater() {
  if (fd_ >= 0) ::close(fd_);
}

Status HighWater::create(const std::string& directory, const ProducerId& producer_id) {
  const std::string path = directory + "/" + kHighWaterFile;
  const std::string tmp = path + ".tmp";
  const int fd = ::open(tmp.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return failed("cannot create", tmp);
  HighWater file(fd, {.producer_id = producer_id}, 0);
  const std::string zeros(kSlotBytes * (kNumSyncedSlots + 1), '\0');
  if (pwrite(fd, zeros.data(), zeros.size(), 0) != static_cast<ssize_t>(zeros.size())) {
    return failed("cannot fill", tmp);
  }
  WARPROLL_TRY(file.write_slot(0, true, 0));
  if (fsync(fd) != 0) return failed("cannot sync", tmp);
  if (::rename(tmp.c_str(), path.c_str()) != 0) return failed("cannot rename", tmp);
  const int dir_fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir_fd < 0) return failed("cannot open", directory);
  const int synced = fsync(dir_fd);
  ::close(dir_fd);
  return synced == 0 ? ok_status() : failed("cannot sync", directory);
}

Result<HighWaterMark> HighWater::read(const std::string& directory) {
  const std::string path = directory + "/" + kHighWaterFile;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return not_found("no high-water file " + path);
  if (fd < 0) return failed("cannot open", path);
  HighWaterMark mark;
  uint64_t counter = 0;
  const Status status = read_mark(fd, path, &mark, &counter);
  ::close(fd);
  if (!status.ok()) return status;
  return mark;
}

Result<HighWater> HighWater::open(const std::string& directory) {
  const std::string path = directory + "/" + kHighWaterFile;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return not_found("no high-water file " + path);
  if (fd < 0) return failed("cannot open", path);
  HighWater file(fd, {}, 0);
  WARPROLL_TRY(read_mark(fd, path, &file.mark_, &file.counter_));
  return file;
}

Status HighWater::write_slot(int slot_index, bool sync, uint64_t os_seq) {
  Slot slot{.magic = kMagic,
            .counter = counter_,
            .epoch = mark_.epoch,
            .synced_seq = mark_.synced_seq,
            .reserved_seq = mark_.reserved_seq,
            .os_seq = os_seq,
            .boot_id = boot_id_,
            .producer_id = mark_.producer_id,
            .checksum = 0};
  slot.checksum = checksum_of(slot);
  if (pwrite(fd_, &slot, sizeof(slot), slot_index * kSlotBytes) != sizeof(slot)) {
    return failed("cannot write", kHighWaterFile);
  }
  if (sync && fdatasync(fd_) != 0) return failed("cannot sync", kHighWaterFile);
  return ok_status();
}

Status HighWater::write_synced(const HighWaterMark& mark) {
  mark_ = mark;
  ++counter_;
  const Status status = write_slot(static_cast<int>(counter_ % kNumSyncedSlots), true, 0);
  if (!status.ok()) --counter_;  // a retry must hit the same slot, never the good one
  return status;
}

Status HighWater::write_os(uint64_t os_seq) {
  mark_.os_seq = os_seq;
  return write_slot(kOsSlot, false, os_seq);
}

}  // namespace warproll
