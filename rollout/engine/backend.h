// ModelBackend: what the engine asks of whatever runs the model, a CPU or a GPU. The engine itself
// sees blocks, tokens and logits only, so its scheduling is tested with a small fake.
// Thread: called by the engine's one thread only, but for prepare().
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/sampling.h"
#include "rollout/engine/engine_config.h"
#include "rollout/model/forward.h"
#include "rollout/model/op_time.h"
#include "rollout/model/weights.h"

namespace warproll {

struct ModelBackend {
  // One batch under one weight set; a token's bits depend on its own sequence only.
  std::function<void(const ForwardBatch&, const WeightSet&, ForwardOutput&)> forward;
  std::function<void(int32_t from_block, int32_t to_block)> copy_block;  // copy on write
  // The same and a token from each logits row, without the logits coming to the host, in two halves so
  // that the host works while the device does: launch() puts a step there, whose token i is drawn as
  // rows[i] says; collect() waits for the oldest that was launched and gives its tokens (and its routes
  // when wanted). At most two are under way. `fed`: the batch's token t is not known yet, it is what
  // the step launched before samples for its row t. Null: forward(), then sample_tokens_cpu().
  std::function<void(const ForwardBatch&, const WeightSet&, std::span<const RowSampling> rows,
                     bool fed, bool want_routes)>
      launch;
  std::function<void(std::span<SampledToken> sampled, ForwardOutput&)> collect;
  // What each op took in the steps since the last call, of a backend made to measure it. Null: none is.
  std::function<std::vector<OpTime>()> take_op_times;
  // Whatever can be made ready for weights before the first step under them. From any thread while
  // the engine runs. Null: nothing.
  std::function<void(const WeightSet&)> prepare;
};

// The sizes a backend is made for.
struct BackendSizes {
  int32_t num_blocks = 0;    // of the KV cache
  int32_t block_tokens = 0;  // of one block
  int32_t max_batch_tokens = 0;
  int32_t max_sequences = 0;
  int32_t max_context_tokens = 0;
  int32_t max_logits = 0;  // rows of a step that want logits; 0 = one a sequence
};
BackendSizes backend_sizes(const EngineConfig& config, const ModelConfig& model);

// Makes the backend of one engine. Errors: out of memory, sizes that the device does not take.
using BackendFactory = std::function<ModelBackend(const ModelConfig&, const BackendSizes&)>;

// Which device runs the model, and in which activations: what engines are made with.
struct ModelRunner {
  std::string device;  // "cpu", "cuda"
  ActivationDtype activations = ActivationDtype::kF32;
  int32_t kv_value_bytes = 4;  // of a number in the KV cache
  BackendFactory make_backend;
};
ModelRunner cpu_runner(ActivationDtype activations);

// forward() on the CPU with a KvCache of its own, which lives as long as the backend's copies.
// Throws std::bad_alloc.
ModelBackend make_cpu_backend(const ModelConfig& config, int32_t num_blocks, int32_t block_tokens,
                              ActivationDtype activations);

}  // namespace warproll
