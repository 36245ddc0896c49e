// The cold load: every tensor of a checkpoint through a WeightFiller.
#include <atomic>
#include <mutex>
#include <utility>

#include "weights_sync/arena_fill.h"
#include "weights_sync/parallel.h"

namespace warproll {

Result<FilledArena> fill_from_checkpoint(const Checkpoint& checkpoint, const ArenaLayout& layout,
                                         std::span<std::byte> arena, const ByteProgress& progress,
                                         int num_threads) {
  WARPROLL_TRY_ASSIGN(filler, ArenaFiller::create(layout, arena));
  return fill_from_checkpoint(checkpoint, filler, progress, num_threads);
}

Result<FilledArena> fill_from_checkpoint(const Checkpoint& checkpoint, WeightFiller& filler,
                                         const ByteProgress& progress, int num_threads) {
  const auto tensors = checkpoint.tensors();
  uint64_t total_bytes = 0;
  for (const TensorInfo& tensor : tensors) total_bytes += tensor.bytes;
  std::atomic<uint64_t> done_bytes{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  Status failure;  // guarded by mutex: of the first tensor in name order that failed
  size_t failed_index = tensors.size();
  for_each_index(
      tensors.size(), num_threads,
      [&](size_t i) {
        if (stop) return;
        const Status status = filler.put(tensors[i].name, checkpoint.bytes(i));
        done_bytes += tensors[i].bytes;
        if (status.ok()) return;
        stop = true;
        const std::lock_guard lock(mutex);
        if (i < failed_index) {
          failed_index = i;
          failure = status;
        }
      },
      [&] {
        if (progress) progress(done_bytes, total_bytes);
      });
  WARPROLL_TRY(failure.with_context(checkpoint.directory()));
  Result<FilledArena> filled = filler.finish();
  if (!filled.ok()) return filled.status().with_context(checkpoint.directory());
  if (progress) progress(total_bytes, total_bytes);
  return filled;
}

Result<LoadedWeights> load_checkpoint(const Checkpoint& checkpoint, const LayoutFunction& layout,
                                      const ByteProgress& progress, int num_threads) {
  LoadedWeights loaded;
  loaded.files = checkpoint.files();
  Result<ArenaLayout> made = layout(loaded.files, checkpoint.tensors());
  if (!made.ok()) return made.status().with_context(checkpoint.directory());
  loaded.layout = std::move(made).value();
  WARPROLL_TRY_ASSIGN(arena, ArenaBuffer::allocate(loaded.layout.total_bytes));
  loaded.arena = std::move(arena);
  WARPROLL_TRY_ASSIGN(filled, fill_from_checkpoint(checkpoint, loaded.layout, loaded.arena.span(),
                                                   progress, num_threads));
  loaded.weight_digest = filled.weight_digest;
  loaded.source_digest = filled.source_digest;
  return loaded;
}

}  // namespace warproll
