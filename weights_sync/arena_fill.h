// ArenaFiller: the WeightFiller (weight_filler.h has the contract) of an arena in host memory, and
// the cold load of a checkpoint through any WeightFiller.
// A tensor is checked when its last byte is there. Lifetime: layout, arena and manifest must outlive
// the filler.
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
#include "weights_sync/weight_filler.h"

namespace warproll {

class ArenaFiller final : public WeightFiller {
 public:
  // Refuses a layout whose slots leave the arena, whose sources overlap, leave their slot or leave
  // bytes of it unfilled, one with tiles, and a manifest that lists other tensors than the layout
  // wants. manifest null = no expected digests.
  static Result<ArenaFiller> create(const ArenaLayout& layout, std::span<std::byte> arena,
                                    const Manifest* manifest = nullptr);
  ArenaFiller(ArenaFiller&&) noexcept;
  ArenaFiller& operator=(ArenaFiller&&) noexcept;
  ~ArenaFiller() override;

  Status put(std::string_view tensor_name, std::span<const std::byte> bytes) override;
  // Parts of a tensor that is quantised (or is an alias) wait in a buffer of that tensor's size.
  Status put_part(std::string_view tensor_name, uint64_t offset_bytes,
                  std::span<const std::byte> bytes) override;
  Status put_device(std::span<const DevicePart> parts, void* stream) override;
  Result<FilledArena> finish() override;

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
// Every tensor of the checkpoint through `filler`, and its finish().
Result<FilledArena> fill_from_checkpoint(const Checkpoint& checkpoint, WeightFiller& filler,
                                         const ByteProgress& progress = {}, int num_threads = 0);
// The same into host memory the caller owns: arena.size() >= layout.total_bytes.
Result<FilledArena> fill_from_checkpoint(const Checkpoint& checkpoint, const ArenaLayout& layout,
                                         std::span<std::byte> arena,
                                         const ByteProgress& progress = {}, int num_threads = 0);

}  // namespace warproll
