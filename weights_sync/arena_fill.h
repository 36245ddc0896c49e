// ArenaFiller: fills a weight arena from named tensors, whole or in parts, from a checkpoint or
// from the wire: one path, so a reload gives bit for bit what a cold start gives (W3).
//
// Every source tensor of the layout must come exactly once and whole; when its last byte is there
// it is scanned (NaN and Inf in float tensors, NaN codes in E4M3 and E8M0), digested as it lies in
// memory, compared with the manifest when there is one, and quantised if the layout says so. An
// alias tensor takes no room and must have the bytes of the tensor it is the same as.
// A failure leaves the arena half-filled: throw it away (it is the standby one).
//
// Lifetime: layout, arena and manifest must outlive the filler.
// Thread: put() and put_part() may run in several threads at once for different tensors; parts of
// one tensor come from one thread at a time. finish() after all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/arena.h"
#include "protocol/status.h"
#include "weights_sync/arena_buffer.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/digest.h"
#include "weights_sync/manifest.h"

namespace warproll {

struct FilledArena {
  // Of what the arena holds: the source checkpoint, or its quantised export (SGLang dialect names)
  // when the layout quantises.
  Digest weight_digest{};
  Digest source_digest{};  // of the tensors as they came
  uint64_t source_bytes = 0;
};

class ArenaFiller {
 public:
  // Refuses a layout whose slots leave the arena, whose sources overlap, leave their slot or leave
  // bytes of it unfilled, and a manifest that lists other tensors than the layout wants.
  // manifest null = no expected digests.
  static Result<ArenaFiller> create(const ArenaLayout& layout, std::span<std::byte> arena,
                                    const Manifest* manifest = nullptr);
  ArenaFiller(ArenaFiller&&) noexcept;
  ArenaFiller& operator=(ArenaFiller&&) noexcept;
  ~ArenaFiller();

  // A whole tensor. Errors: unknown name, came before, wrong number of bytes, NaN, wrong digest.
  Status put(std::string_view tensor_name, std::span<const std::byte> bytes);
  // Bytes [offset_bytes, + bytes.size()) of a tensor, in any order, each byte once. Parts of a
  // tensor that is quantised (or is an alias) wait in a buffer of that tensor's size.
  Status put_part(std::string_view tensor_name, uint64_t offset_bytes,
                  std::span<const std::byte> bytes);
  // All tensors came? Otherwise an error that counts and names the missing ones.
  Result<FilledArena> finish();

 private:
  struct Impl;
  explicit ArenaFiller(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct LoadedWeights {
  ArenaLayout layout;
  ArenaBuffer arena;
  Digest weight_digest{};
  Digest source_digest{};
  CheckpointFiles files;
};

// Cold load: layout, a fresh arena, every tensor put. Uses num_threads threads (0 = as many as the
// machine has).
Result<LoadedWeights> load_checkpoint(const Checkpoint& checkpoint, const LayoutFunction& layout,
                                      const ByteProgress& progress = {}, int num_threads = 0);
// The same into memory the caller owns: arena.size() >= layout.total_bytes.
Result<FilledArena> fill_from_checkpoint(const Checkpoint& checkpoint, const ArenaLayout& layout,
                                         std::span<std::byte> arena,
                                         const ByteProgress& progress = {}, int num_threads = 0);

}  // namespace warproll
