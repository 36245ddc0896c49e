// trajectory_to_json: one trajectory as one line of JSON (JSONL of the trainer, `log show`,
// `log export`). Strict JSON in UTF-8, keys always in the same order, floats in the shortest form
// that reads back to the same float: equal trajectories give equal bytes.
//   NaN and infinities -> null, and their places in "non_finite": [["logprobs", 3], ...].
//   Bytes that are not UTF-8 -> U+FFFD, and the field's name in "invalid_utf8".
//   u64 values and digests -> numbers and lower-case hex; routed experts -> shape and base64.
// Thread: any. Errors: none.
#pragma once

#include <string>

#include "protocol/records.h"

namespace warproll {

std::string trajectory_to_json(const Trajectory& trajectory);  // no newline

}  // namespace warproll
