// Sequence: one sample on its way through the engine: its tokens, what is known of each of them,
// its KV blocks and the weights it runs under. Thread: the engine's only.
//
// State is in three numbers: size() tokens are known, the KV of [0, num_computed) is in `blocks`,
// and num_routed positions have their routes recorded.
//   waiting      weights null, no blocks
//   prefilling   num_computed + 1 < size(), nothing sampled yet
//   recomputing  something sampled, and an event tells that the next token needs all KV anew: the
//                pass restarts when weights flip, however far it got
//   decoding     num_computed + 1 == size(): one forwarded token gives the next one
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/sampling.h"
#include "protocol/records.h"
#include "rollout/model/weights.h"
#include "rollout/token_generator.h"

namespace warproll {

class SequenceText;

struct Sequence {
  explicit Sequence(SampleRequest sample_request);
  ~Sequence();

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(token_ids.size()); }
  [[nodiscard]] int32_t prompt_len() const {
    return static_cast<int32_t>(request.prompt_ids->size());
  }
  [[nodiscard]] int32_t num_sampled() const { return size() - prompt_len(); }
  [[nodiscard]] bool is_decoding() const { return num_computed + 1 == size(); }
  [[nodiscard]] bool is_recomputing() const {
    return !events.empty() && events.back().at_token == size() &&
           events.back().kind != EventKind::kFlipKeep;
  }
  [[nodiscard]] bool has_started() const { return weights != nullptr; }

  // The token at position size(), sampled under `weights`.
  void append(const SampledToken& token);
  // The routes of positions [first, first + count): [count, L * K]. A position keeps the routes it
  // was first forwarded with for tokens that were sampled.
  void record_routes(int32_t first, std::span<const uint16_t> routes, int32_t ids_per_token);
  // Something happened before token size(). One event for each at_token, with the last version: a
  // flip and a preemption together are a recompute under it (flip_recompute), in either order.
  void record_event(EventKind kind);
  // Forgets what a prefill without any sampled token recorded.
  void forget_routes();

  SampleRequest request;
  uint64_t admission_order = 0;  // of the first admission, from 1; 0 = never admitted
  WeightSetPtr weights;
  std::vector<int32_t> token_ids;  // prompt + sampled
  std::vector<int32_t> blocks;
  int32_t num_computed = 0;

  // Of each sampled token.
  std::vector<float> logprobs, raw_logprobs, support_logmass;
  std::vector<uint64_t> weight_versions;
  std::vector<VersionDigest> digests;  // of every version met, used or not
  std::vector<TrajectoryEvent> events;
  std::vector<uint16_t> routes;  // [num_routed, L * K]
  int32_t num_routed = 0;
  std::unique_ptr<SequenceText> text;  // null without a tokenizer
  int64_t admitted_ns = 0;             // Unix time
  int64_t first_token_ns = 0;

 private:
  void note_version();
};

// Why a sample ended.
struct SampleEnd {
  FinishReason reason = FinishReason::kStop;
  std::string error_type;  // with kAbort and kError
  std::string error_message;
};

// The finished sample; moves the sequence's arrays out.
GeneratedSample make_generated_sample(Sequence& sequence, const ModelConfig& config,
                                      const SampleEnd& end);

}  // namespace warproll
