// FakeModel: a model of hashes in the shape of ModelBackend. The cache entry of a position is a hash
// of its token, its position, the version that computed it and of everything before it; logits and
// routes are hashes of the whole cache. So a stale, mixed up or wrongly shared block shows in every
// later number, and runs cost microseconds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rollout/engine/backend.h"
#include "rollout/engine/engine_core.h"
#include "tests/rollout/engine/overlapping.h"
#include "tests/rollout/engine/record_replay.h"

namespace warproll {

inline constexpr int32_t kFakeVocab = 40;
inline constexpr int32_t kFakeLayers = 2;
inline constexpr int32_t kFakeTopK = 2;
inline constexpr int32_t kFakeEos = 1;

inline uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
inline uint64_t fake_entry(uint64_t before, int32_t token, int32_t position, uint64_t version) {
  return mix(before ^ mix(static_cast<uint64_t>(token) << 32 | static_cast<uint32_t>(position)) ^
             mix(version * 77));
}
inline void append_fake_logits(uint64_t state, std::vector<float>& logits) {
  for (uint64_t id = 0; id < kFakeVocab; ++id)
    logits.push_back(static_cast<float>(mix(state + id * 31) >> 40) * 0x1.0p-24f * 6.0f - 3.0f);
}
inline void append_fake_routes(uint64_t state, std::vector<uint16_t>& routes) {
  for (uint64_t i = 0; i < kFakeLayers * kFakeTopK; ++i)
    routes.push_back(static_cast<uint16_t>(mix(state + 1000 + i) % 8));
}

inline ModelConfig fake_config() {
  ModelConfig config;
  config.architecture = "Fake";
  config.hidden_size = 8;
  config.vocab_size = kFakeVocab;
  config.num_layers = kFakeLayers;
  config.num_heads = config.num_kv_heads = 1;
  config.head_dim = 8;
  config.num_experts = 8;
  config.num_experts_per_tok = kFakeTopK;
  config.max_position_embeddings = 256;
  config.is_moe_layer = {true, true};
  config.eos_token_ids = {kFakeEos};
  return config;
}

inline WeightSetPtr fake_weights(uint64_t version) {
  auto weights = std::make_shared<WeightSet>();
  weights->weight_version = version;
  weights->weight_digest[0] = static_cast<uint8_t>(version);
  weights->weight_digest[15] = 1;
  weights->config = fake_config();
  return weights;
}

// The paged cache and a count of what was forwarded.
struct FakeModel {
  explicit FakeModel(const EngineConfig& config)
      : block_tokens(config.block_tokens),
        cache(static_cast<size_t>(config.num_blocks * config.block_tokens), 0xDEADu) {}

  void forward(const ForwardBatch& batch, const WeightSet& weights, ForwardOutput& out) {
    std::vector<uint64_t> states;
    for (size_t b = 0; b + 1 < batch.cu_seqlens_q.size(); ++b) {
      const auto slot = [&](int32_t position) {
        const size_t row = b * static_cast<size_t>(batch.blocks_per_sequence);
        const int32_t block = batch.block_table[row + static_cast<size_t>(position / block_tokens)];
        return static_cast<size_t>(block * block_tokens + position % block_tokens);
      };
      for (auto t = static_cast<size_t>(batch.cu_seqlens_q[b]);
           t < static_cast<size_t>(batch.cu_seqlens_q[b + 1]); ++t) {
        const int32_t position = batch.positions[t];
        if (static_cast<size_t>(batch.slot_mapping[t]) != slot(position))
          throw std::logic_error("slot_mapping and block_table disagree");
        uint64_t state = 0;
        for (int32_t p = 0; p < position; ++p) state = mix(state ^ cache[slot(p)]);
        const uint64_t entry =
            fake_entry(state, batch.token_ids[t], position, weights.weight_version);
        cache[slot(position)] = entry;
        states.push_back(mix(state ^ entry));
      }
    }
    forwarded_tokens += states.size();
    out.logits.clear();
    for (const int32_t row : batch.logits_rows)
      append_fake_logits(states[static_cast<size_t>(row)], out.logits);
    out.routes.clear();
    if (!out.want_routes) return;
    for (const uint64_t state : states) append_fake_routes(state, out.routes);
  }

  const int32_t block_tokens;
  std::vector<uint64_t> cache;
  uint64_t forwarded_tokens = 0;
  uint64_t copied_blocks = 0;
};

inline ModelBackend fake_backend(const std::shared_ptr<FakeModel>& model) {
  ModelBackend backend;
  backend.forward = [model](const ForwardBatch& batch, const WeightSet& weights,
                            ForwardOutput& out) { model->forward(batch, weights, out); };
  backend.copy_block = [model](int32_t from, int32_t to) {
    const auto n = static_cast<ptrdiff_t>(model->block_tokens);
    std::copy_n(model->cache.begin() + from * n, n, model->cache.begin() + to * n);
    ++model->copied_blocks;
  };
  return backend;
}

class FakeReplay : public ReplayModel {
 public:
  void clear_cache() override {
    state_ = 0;
    position_ = 0;
  }
  void forward(std::span<const int32_t> tokens, uint64_t version, std::vector<float>& logits,
               std::vector<uint16_t>& routes) override {
    routes.clear();
    logits.clear();
    for (const int32_t token : tokens) {
      state_ = mix(state_ ^ fake_entry(state_, token, position_++, version));
      append_fake_routes(state_, routes);
    }
    append_fake_logits(state_, logits);
  }

 private:
  uint64_t state_ = 0;
  int32_t position_ = 0;
};

inline EngineConfig small_config() {
  EngineConfig config;
  config.max_batch_tokens = 32;
  config.prefill_chunk_tokens = 8;
  config.max_running_sequences = 8;
  config.max_queued_requests = 64;
  config.block_tokens = 4;
  config.num_blocks = 64;
  return config;
}

// A core over a fake model, and what tests do with it.
struct FakeEngine {
  explicit FakeEngine(const EngineConfig& config = small_config(), uint64_t version = 1,
                      bool overlap = false)
      : model(std::make_shared<FakeModel>(config)) {
    EngineParts parts;
    parts.config = config;
    parts.backend = fake_backend(model);
    if (overlap) parts.backend = overlapping(parts.backend, &overlapping_steps);
    parts.weights = fake_weights(version);
    core = std::move(EngineCore::create(std::move(parts))).value();
  }
  // Submits and keeps the request for the oracle.
  Status submit(SampleRequest request) {
    const Status status = core->submit(request);
    if (status.ok()) requests[request.request_id] = request;
    return status;
  }
  void step(int count = 1) {
    for (int i = 0; i < count; ++i) {
      core->step(std::chrono::steady_clock::now());
      collect();
    }
  }
  void run_to_end() {
    for (int i = 0; core->num_live() > 0; ++i) {
      ASSERT_LT(i, 100000) << core->num_live() << " samples never end";
      step();
    }
    collect();
  }
  void collect() {
    for (GeneratedSample& sample : core->take_finished()) {
      const uint64_t id = sample.request_id;
      ASSERT_TRUE(samples.emplace(id, std::move(sample)).second) << "sample " << id << " twice";
    }
  }
  const GeneratedSample& sample(uint64_t request_id) const { return samples.at(request_id); }
  void expect_replays(uint64_t request_id) const {
    FakeReplay replay;
    expect_record_replays(requests.at(request_id), samples.at(request_id), replay);
  }

  std::shared_ptr<FakeModel> model;
  std::shared_ptr<OverlappingSteps> overlapping_steps;  // with overlap
  std::unique_ptr<EngineCore> core;
  std::map<uint64_t, SampleRequest> requests;
  std::map<uint64_t, GeneratedSample> samples;
};

inline std::shared_ptr<const std::vector<int32_t>> fake_prompt(int32_t length, uint64_t seed = 5) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>(mix(seed * 1000 + static_cast<uint64_t>(i)) % kFakeVocab));
  return std::make_shared<const std::vector<int32_t>>(std::move(ids));
}

inline SampleRequest fake_request(uint64_t request_id,
                                  std::shared_ptr<const std::vector<int32_t>> prompt,
                                  int32_t max_tokens = 10) {
  SampleRequest request;
  request.request_id = request_id;
  request.prompt_ids = std::move(prompt);
  request.sample_index = static_cast<int32_t>(request_id % 16);
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 11;
  request.return_routes = true;
  return request;
}

}  // namespace warproll
