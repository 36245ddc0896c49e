// TokenGenerator: what the collector needs of an engine, and nothing else; so that collector, log
// and publisher are tested with a scripted fake. The real one is rollout/engine.
// Thread: submit, cancel and poll from any thread; an implementation says where it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "protocol/status.h"

namespace warproll {

struct SampleRequest {
  uint64_t request_id = 0;  // unique among live requests
  // Requests with the same prompt object share one prefilled prompt.
  std::shared_ptr<const std::vector<int32_t>> prompt_ids;
  int32_t sample_index = 0;
  SamplingParams sampling;
  InFlightPolicy in_flight = InFlightPolicy::kKeep;
  bool return_routes = false;
  int64_t deadline_ns = 0;  // steady clock, 0 = none; past it the sample ends as kAbort
};

// A finished sample: everything of a Trajectory that generation decides. Aborted and failed samples
// come too, with what they have so far.
struct GeneratedSample {
  uint64_t request_id = 0;
  std::vector<int32_t> token_ids;         // [n] sampled tokens only
  std::vector<float> logprobs;            // [n]
  std::vector<float> raw_logprobs;        // [n]
  std::vector<float> support_logmass;     // [n]
  std::vector<uint64_t> weight_versions;  // [n]
  std::vector<VersionDigest> version_digests;
  std::vector<TrajectoryEvent> events;  // at_token counts from the start of the prompt
  std::optional<RoutedExperts> routed_experts;
  std::string text;  // decoded, cut at the stop string
  FinishReason finish_reason = FinishReason::kStop;
  std::string error_type;  // with kError and kAbort: "deadline", "cancelled", "weights_changed" ...
  std::string error_message;
  int64_t admitted_ns = 0;  // Unix time
  int64_t first_token_ns = 0;
};

class TokenGenerator {
 public:
  virtual ~TokenGenerator() = default;
  // Refuses bad requests (empty prompt, ids out of range, prompt longer than the context) with a
  // clear Status; kUnavailable when its queue is full.
  virtual Status submit(SampleRequest request) = 0;
  // The sample ends as kAbort with this reason and comes out of poll(). Unknown ids are ignored.
  virtual void cancel(uint64_t request_id, const std::string& reason) = 0;
  // Finished samples, in finishing order; waits until `deadline` for the first one. Empty = none.
  virtual std::vector<GeneratedSample> poll(std::chrono::steady_clock::time_point deadline) = 0;
  // Not ok once it can make nothing any more, and why. What it had under way then comes out of poll() as
  // kError "engine_failure"; that is said of the generator, not of the sample.
  [[nodiscard]] virtual Status failure() const { return ok_status(); }
};

inline constexpr const char* kEngineFailure = "engine_failure";  // GeneratedSample::error_type

}  // namespace warproll
