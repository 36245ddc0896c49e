// What tests of updates share: golden checkpoints offered as versions, a stream sink that collects,
// waiting on a condition, and a small proxy that damages chunks on their way.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/weights_sync/checkpoint_fixtures.h"
#include "weights_sync/broadcast_transport.h"
#include "weights_sync/manifest.h"

namespace warproll::update_fixtures {

using Clock = std::chrono::steady_clock;
inline Clock::time_point in_ms(int64_t ms) { return Clock::now() + std::chrono::milliseconds(ms); }

inline constexpr uint64_t kBucketBytes = 64 << 10;  // arith checkpoints have about 20 buckets

// arith-v<n> as weight version `version`.
inline OfferedCheckpoint arith(int n, uint64_t version) {
  auto checkpoint = Checkpoint::open(checkpoint_fixtures::golden("arith-v" + std::to_string(n)));
  auto manifest = make_manifest(*checkpoint, version, kBucketBytes);
  return {std::make_shared<const Checkpoint>(std::move(*checkpoint)),
          std::make_shared<const Manifest>(std::move(*manifest))};
}

inline ReceiveRequest request_for(const OfferedCheckpoint& offered, const TransportRoute& route,
                                  Clock::time_point deadline = in_ms(20'000)) {
  return {{1, offered.manifest->weight_version, 1}, route.source, route.server_key, deadline};
}

// Puts the stream together and counts bytes that come twice.
class StreamCollector {
 public:
  explicit StreamCollector(uint64_t stream_bytes) : bytes_(stream_bytes), seen_(stream_bytes) {}
  Status take(uint64_t offset, std::span<const std::byte> bytes) {
    if (offset + bytes.size() > bytes_.size()) return invalid_argument("past the stream");
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (seen_[offset + i]) return invalid_argument("a byte came twice");
      seen_[offset + i] = true;
      bytes_[offset + i] = bytes[i];
    }
    received_ += bytes.size();
    return ok_status();
  }
  StreamSink sink() {
    return
        [this](uint64_t offset, std::span<const std::byte> bytes) { return take(offset, bytes); };
  }
  [[nodiscard]] uint64_t received_bytes() const { return received_; }
  // Every tensor's bytes are the checkpoint's.
  [[nodiscard]] bool holds(const OfferedCheckpoint& offered) const {
    const auto tensors = offered.checkpoint->tensors();
    for (const ManifestEntry& entry : offered.manifest->entries) {
      const uint64_t offset = offered.manifest->stream_offset(entry);
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].name != entry.tensor.name) continue;
        const auto want = offered.checkpoint->bytes(i);
        if (std::memcmp(bytes_.data() + offset, want.data(), want.size()) != 0) return false;
      }
    }
    return true;
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<bool> seen_;
  uint64_t received_ = 0;
};

inline size_t count_entries(const char* directory) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    (void)entry;
    ++count;
  }
  return count;
}
inline size_t open_fds() { return count_entries("/proc/self/fd"); }
inline size_t live_threads() { return count_entries("/proc/self/task"); }
// A thread is listed for a moment after its join: the least of some looks.
inline size_t settled_threads() {
  size_t least = live_threads();
  for (const auto end = in_ms(50); Clock::now() < end; std::this_thread::yield())
    least = std::min(least, live_threads());
  return least;
}
// For the same reason, and because connections close in the background.
inline void wait_for_at_most(size_t fds, size_t threads) {
  const auto deadline = in_ms(20'000);
  while ((open_fds() > fds || live_threads() > threads) && Clock::now() < deadline)
    std::this_thread::yield();
}

}  // namespace warproll::update_fixtures
