// PackedArena: weights that the trainer has laid out itself, exactly as its workers lay theirs out, so that they
// are received where they will serve and only have to be digested. The alternative to a stream of tensors,
// which every worker packs for itself. Both say the same of the weights: the manifest is that of the tensors.
//
// The layout of an arena follows from the manifest and from the worker (GPU or host, quantising or not), so
// both ends make it and compare keys. Thread: plain values and pure functions.
#pragma once

#include <cstdint>

#include "kernels/arena.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace warproll {

struct StagedWeights;

struct PackedArena {
  Digest layout{};     // layout_key()
  uint64_t bytes = 0;  // [0, bytes) of the arena are the stream
  Digest digest{};     // tensor_digest (digest.h) of them
  bool operator==(const PackedArena&) const = default;
};

// XXH3-128 of all that says which bytes of an arena mean what: slots, their sources and forms, tile regions,
// sizes. Two layouts of one key hold the same weights as the same bytes.
Digest layout_key(const ArenaLayout& layout);

// Of weights that lie in a device's memory.
PackedArena packed_arena_of(const StagedWeights& weights);

// Is it of this layout? kInvalidArgument with both keys or sizes.
Status check_packed_arena(const PackedArena& packed, const ArenaLayout& layout);

}  // namespace warproll
