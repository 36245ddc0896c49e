// Golden data and checkpoints for the model's tests: what transformers computed, and a loaded
// model that can run sequences in any batch and chunking. Thread: one test.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "rollout/model/forward.h"
#include "rollout/model/weights.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/checkpoint.h"

namespace warproll::testing {

inline const std::vector<std::string> kTinyModels{
    "qwen3moe-tiny",          "qwen3moe-tiny-tied",
    "qwen3moe-tiny-sharded",  "qwen3moe-tiny-hf4",
    "qwen3moe-tiny-fused",    "qwen3moe-tiny-mxfp8",
    "qwen3moe-tiny-mxfp8-ct", "qwen3moe-tiny-mxfp8-modelopt",
    "qwen3moe-tiny-fp8block", "qwen3moe-tiny-fp8block-ragged"};

std::string golden_path(const std::string& name);
std::string read_file(const std::string& path);

// The tensors of one safetensors file that is known to be good.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name);
  [[nodiscard]] bool has(const std::string& tensor) const;
  [[nodiscard]] std::vector<float> floats(const std::string& tensor) const;
  [[nodiscard]] std::vector<int32_t> ints(const std::string& tensor) const;

 private:
  template <typename T>
  [[nodiscard]] std::vector<T> values(const std::string& tensor) const;
  std::string bytes_;
  std::map<std::string, std::pair<size_t, size_t>> ranges_;
};

struct LoadedModel {
  ModelConfig config;
  LoadedWeights loaded;
  ModelWeights weights;
};
// Throws std::runtime_error with the Status' text.
LoadedModel load_model(const std::string& name, bool quantise_to_mxfp8 = false);

// One token run: a sequence in the cache and what is still to be forwarded of it.
struct TestSequence {
  std::vector<int32_t> blocks;
  int32_t context = 0;  // tokens in the cache
};

// Runs sequences over one KvCache. Blocks are handed out in a shuffled order, so that no test
// passes because block tables happen to be 0, 1, 2.
class ModelRunner {
 public:
  ModelRunner(const LoadedModel& model, ActivationDtype dtype, int32_t num_blocks = 64,
              int32_t block_tokens = 16, uint32_t seed = 1);

  TestSequence new_sequence() { return {}; }
  struct Piece {
    TestSequence* sequence;
    std::vector<int32_t> token_ids;
    std::vector<uint16_t> given_routes{};  // [its T, L, K]
  };
  // One step; logits (and routes, router logits) of every token. Row t of piece p comes after all
  // rows of the pieces before it.
  ForwardOutput step(const std::vector<Piece>& pieces, bool all_logits = true);

 private:
  const LoadedModel& model_;
  ActivationDtype dtype_;
  KvCache kv_;
  std::vector<int32_t> free_blocks_;
};

// The whole prompt in chunks of `chunk` tokens (0 = at once): logits and router logits of all.
ForwardOutput prefill(ModelRunner& runner, TestSequence& sequence, const std::vector<int32_t>& ids,
                      int32_t chunk = 0);
int32_t argmax(const float* logits, int32_t size);  // ties to the lower id
// Prefills, then decodes token by token through the KV cache.
std::vector<int32_t> greedy(ModelRunner& runner, const std::vector<int32_t>& prompt,
                            int32_t max_tokens, int32_t vocab_size, int32_t stop_id = -1);

}  // namespace warproll::testing
