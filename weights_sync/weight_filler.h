// WeightFiller: fills a weight arena from named tensors, whole or in parts, from a checkpoint or from
// the wire: one path for every way in, so a reload gives bit for bit what a cold start gives (W3).
// In host memory: ArenaFiller (arena_fill.h); in a GPU's: made by an ArenaDevice (arena_device.h).
//
// Every source tensor of the layout must come exactly once and whole; it is scanned (NaN and Inf in
// float tensors, NaN codes in E4M3 and E8M0), digested as it came, compared with the manifest when
// there is one, and quantised if the layout says so. An alias tensor takes no room and must have the
// bytes of the tensor it is the same as.
// A failure leaves the arena half-filled: throw it away (it is the standby one). What a device finds
// (NaN, a wrong digest) may be told by a later call or by finish().
// Thread: put, put_part and put_device may run in several threads at once for different tensors;
// parts of one tensor come from one thread at a time. finish() after all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/records.h"
#include "protocol/status.h"

namespace warproll {

struct FilledArena {
  // Of what the arena holds: the source checkpoint, or its quantised export (SGLang dialect names)
  // when the layout quantises.
  Digest weight_digest{};
  Digest source_digest{};  // of the tensors as they came
  uint64_t source_bytes = 0;
};

// Bytes [offset_bytes, + bytes.size()) of a tensor, in device memory.
struct DevicePart {
  std::string_view tensor_name;
  uint64_t offset_bytes = 0;
  std::span<const std::byte> bytes;
};

class WeightFiller {
 public:
  virtual ~WeightFiller() = default;
  // A whole tensor. Errors: unknown name, came before, wrong number of bytes, NaN, wrong digest.
  virtual Status put(std::string_view tensor_name, std::span<const std::byte> bytes) = 0;
  // Bytes [offset_bytes, + bytes.size()) of a tensor, in any order, each byte once.
  virtual Status put_part(std::string_view tensor_name, uint64_t offset_bytes,
                          std::span<const std::byte> bytes) = 0;
  // The same for device memory: reads it by work that `stream` (a cudaStream_t) waits for, so it may
  // be overwritten by what is enqueued there later. kFailedPrecondition: the arena is host memory.
  virtual Status put_device(std::span<const DevicePart> parts, void* stream) = 0;
  // All tensors came? Otherwise an error that counts and names the missing ones.
  virtual Result<FilledArena> finish() = 0;
};

}  // namespace warproll
