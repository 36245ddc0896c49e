// What all ranks of a group must agree on, told before it forms: a worker's in HELLO.environment,
// the trainer's in UpdateBegin.source of an nccl route. Ranks that differ in these hang or corrupt
// each other without a word; here they are refused with both values.
// Thread: plain functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/status.h"
#include "weights_sync/broadcast_transport.h"
#include "weights_sync/packed_arena.h"

namespace warproll {

// `environment`: the process's NCCL_* variables, all of them.
HelloEnvironment nccl_terms(const std::string& version, int32_t max_ctas,
                            const HelloEnvironment& environment);

std::string encode_nccl_terms(const HelloEnvironment& terms);  // lines "key=value"
HelloEnvironment decode_nccl_terms(std::string_view source);   // untrusted; odd lines are left out
// What the stream of this offer is, among the trainer's terms: an arena it has packed.
void add_packed_arena(HelloEnvironment& terms, const PackedArena& packed);
// Null: it is the manifest's tensors. kInvalidArgument: said, but not whole.
Result<std::optional<PackedArena>> packed_arena_in(const HelloEnvironment& terms);
bool with_registered_slots(const HelloEnvironment& terms);  // all ranks register their slots
int32_t max_ctas_of(const HelloEnvironment& terms);         // 0 = not said

// Can they be in one group? The versions are equal, and the variables that shape a collective
// (NCCL_ALGO, NCCL_PROTO ...); the group takes the trainer's max_ctas, which is at most the worker's,
// and registers its slots if the trainer says so, which the worker then has to know, as it has to know
// packed arenas if the trainer sends one.
Status check_nccl_terms(const HelloEnvironment& trainer, const HelloEnvironment& worker);

}  // namespace warproll
