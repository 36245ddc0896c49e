// `warproll checkpoint quantize`: a BF16 checkpoint directory to its MXFP8 export in the SGLang
// dialect: selected "x.weight" become F8_E4M3 with "x.weight_scale_inv" U8 [.., cols / 32] beside
// them, everything else is copied, config.json gains quantization_config. Shards stay as they were.
// The export's bytes depend on the source's alone; load it cold or quantise on receive, the arena
// is the same (W3). Thread: uses several threads; call from one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/arena.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/digest.h"

namespace warproll {

struct QuantiseOptions {
  std::function<bool(const TensorInfo&)> select;  // which tensors; the model's side knows
  ByteProgress progress;                          // of source bytes
  int num_threads = 0;                            // 0 = as many as the machine has
};
struct QuantiseSummary {
  size_t num_quantised = 0;  // source tensors
  size_t num_copied = 0;
  uint64_t source_bytes = 0;
  uint64_t result_bytes = 0;
  Digest source_digest{};
  Digest weight_digest{};  // of the export
};

// target_directory must not exist; it appears whole or not at all. Refuses a source that is
// quantised already, a selection of nothing, and selected tensors that MXFP8 cannot hold (dtype,
// columns, NaN), by name.
Result<QuantiseSummary> quantise_checkpoint(const Checkpoint& source,
                                            const std::string& target_directory,
                                            const QuantiseOptions& options);

// config.json with the SGLang MXFP8 quantization_config added at its end.
Result<std::string> add_mxfp8_config(std::string_view config_json);

}  // namespace warproll
