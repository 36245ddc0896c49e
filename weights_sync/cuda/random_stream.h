// RandomStream: random weights (random_weights.h) as the byte stream of a manifest, in a GPU's memory
// or in page-locked memory of the host: what a trainer has when it broadcasts, for benches.
// The same seed draws the same tensors as load_random() does.
// Memory: the stream, and while it draws what fill_random() takes.
// Thread: one. Errors: kResourceExhausted = no room for the stream; CudaError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/cuda/random_weights.h"
#include "weights_sync/manifest.h"

namespace warproll {

struct RandomStreamOptions {
  int device = 0;  // draws, and holds the stream unless
  bool on_host = false;
  uint64_t bucket_bytes = 0;
  QuantiseRecipe quantise = QuantiseRecipe::kNone;  // what the receiver is to do
};

class RandomStream {
 public:
  // weights.seed is not used.
  static Result<std::unique_ptr<RandomStream>> make(RandomWeights weights,
                                                    const RandomStreamOptions& options);
  virtual ~RandomStream() = default;
  // Overwrites the stream; digests are made on the device, of the bytes before they are stored.
  virtual Result<std::shared_ptr<const Manifest>> draw(uint64_t weight_version, uint64_t seed) = 0;
  [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;
};

}  // namespace warproll
