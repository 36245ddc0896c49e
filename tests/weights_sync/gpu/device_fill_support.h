// What the tests of device arenas share. Thread: one test. Errors: CudaError.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "tests/weights_sync/device_twin.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/cuda/cuda_arena_device.h"
#include "weights_sync/digest.h"
#include "weights_sync/manifest.h"
#include "weights_sync/weight_staging.h"

namespace warproll::checkpoint_fixtures {

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}
// Skips the test, loudly, where there is no GPU.
#define SKIP_WITHOUT_GPU()                         \
  if (!::warproll::checkpoint_fixtures::has_gpu()) \
  GTEST_SKIP() << "NO GPU HERE: this test was not run"

// Poisoned, so that bytes nobody writes show.
struct DeviceArena {
  ArenaDevicePtr device;
  ArenaBuffer buffer;
  DeviceArena(ArenaDevicePtr on, uint64_t size)
      : device(std::move(on)), buffer(ArenaBuffer::allocate(size, device).value()) {
    WARPROLL_CUDA_CHECK(cudaMemset(buffer.data(), 0xee, size));  // also of page-locked host memory
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());  // the filler's streams do not wait for this one
  }
  [[nodiscard]] std::vector<std::byte> bytes() const {
    std::vector<std::byte> host(buffer.capacity_bytes());
    WARPROLL_CUDA_CHECK(cudaMemcpy(host.data(), buffer.data(), host.size(), cudaMemcpyDefault));
    return host;
  }
};

// One checkpoint, its host arena and its layout on the device.
struct Golden {
  Checkpoint checkpoint;
  LoadedWeights host;
  ArenaLayout layout;
  std::vector<std::byte> wanted;

  Golden(const std::string& name, bool quantise)
      : checkpoint(Checkpoint::open(golden(name)).value()),
        host(load_checkpoint(checkpoint, model_layout(quantise)).value()),
        layout(device_layout_function(quantise)(checkpoint.files(), checkpoint.tensors()).value()),
        wanted(device_arena_twin(config_of(host.files), host.layout, host.arena.span(), layout)) {}
};

inline void expect_filled(const Golden& golden, DeviceArena& arena,
                          const Result<FilledArena>& filled) {
  ASSERT_TRUE(filled.ok()) << filled.status().to_string();
  EXPECT_EQ(to_hex(filled->weight_digest), to_hex(golden.host.weight_digest));
  EXPECT_EQ(to_hex(filled->source_digest), to_hex(golden.host.source_digest));
  EXPECT_TRUE(equal_bytes(arena.bytes(), golden.wanted));
  EXPECT_EQ(to_hex(arena.device->digest(arena.buffer.span())),
            to_hex(tensor_digest(golden.wanted)));
}

// A manifest's stream, in host and in device memory, cut into pieces.
struct StreamOnDevice {
  const Manifest& manifest;
  std::vector<std::byte> bytes;
  DeviceBuffer<std::byte> copy, slot;

  StreamOnDevice(const Checkpoint& checkpoint, const Manifest& of)
      : manifest(of), bytes(of.stream_bytes()) {
    for (size_t i = 0; i < manifest.entries.size(); ++i) {
      std::ranges::copy(
          checkpoint.bytes(i),
          bytes.begin() + static_cast<std::ptrdiff_t>(manifest.stream_offset(manifest.entries[i])));
    }
    copy = DeviceBuffer<std::byte>(bytes);
    slot = DeviceBuffer<std::byte>(size_t{1} << 20);
  }

  [[nodiscard]] std::span<const std::byte> device_bytes(uint64_t at, uint64_t size) const {
    return {copy.data() + at, std::min(size, bytes.size() - at)};
  }
  Status put_host(WeightFiller& filler, uint64_t at, uint64_t size) const {
    const auto piece = std::span(bytes).subspan(at, std::min(size, bytes.size() - at));
    for (const DevicePart& part : parts_of(at, piece)) {
      WARPROLL_TRY(filler.put_part(part.tensor_name, part.offset_bytes, part.bytes));
    }
    return ok_status();
  }
  Status put_device(WeightFiller& filler, uint64_t at, uint64_t size) const {
    return filler.put_device(parts_of(at, device_bytes(at, size)), nullptr);
  }
  // The same from one slot that is overwritten each time, as a transport does.
  Status put_device_through_slot(WeightFiller& filler, uint64_t at, uint64_t size) const {
    const auto piece = device_bytes(at, size);
    WARPROLL_CUDA_CHECK(cudaMemcpyAsync(slot.data(), piece.data(), piece.size(),
                                        cudaMemcpyDeviceToDevice, nullptr));
    return filler.put_device(parts_of(at, {slot.data(), piece.size()}), nullptr);
  }

  [[nodiscard]] std::vector<DevicePart> parts_of(uint64_t at,
                                                 std::span<const std::byte> piece) const {
    std::vector<DevicePart> parts;
    for (const ManifestEntry& entry : manifest.entries) {
      const uint64_t begin = manifest.stream_offset(entry);
      const uint64_t from = std::max(at, begin);
      const uint64_t to = std::min(at + piece.size(), begin + entry.tensor.bytes);
      if (from < to) {
        parts.push_back({entry.tensor.name, from - begin, piece.subspan(from - at, to - from)});
      }
    }
    return parts;
  }
};

}  // namespace warproll::checkpoint_fixtures
