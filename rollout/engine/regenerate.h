// regenerate(): runs a stored sample again, alone, from what its record says (digests, seed, token
// ids of the prompt, events), and compares bit for bit. Stops, deadlines and aborts of the stored
// run do not matter: as many tokens are made as were stored, whatever they are.
// Thread: any; uses OpenMP inside.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "protocol/records.h"
#include "protocol/status.h"
#include "rollout/engine/backend.h"
#include "rollout/model/weights.h"
#include "rollout/token_generator.h"

namespace warproll {

// The weights that a record names, or why there are none.
using WeightLookup =
    std::function<Result<WeightSetPtr>(uint64_t weight_version, const Digest& weight_digest)>;

struct SampleDifference {
  int32_t position = 0;             // index into the trajectory's token_ids
  std::string field;                // "token_ids", "logprobs", "raw_logprobs", "support_logmass",
                                    // "weight_version", "routed_experts"
  std::string stored, regenerated;  // floats with their bits
};

struct Regeneration {
  GeneratedSample sample;  // what was made now
  // Empty = equal bit for bit. The lowest position; at one position in the order of fields above.
  std::optional<SampleDifference> first_difference;
};

// kInvalidArgument: the record contradicts itself. kNotFound and others: as `lookup` says, and when
// it gives weights of another digest. kFailedPrecondition: the runner's activations are not the record's.
Result<Regeneration> regenerate(const Trajectory& stored, const WeightLookup& lookup,
                                const ModelRunner& runner);

}  // namespace warproll
