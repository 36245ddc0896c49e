#include "rollout/engine/sequence.h"

#include <algorithm>
#include <utility>

#include "rollout/engine/sequence_text.h"

namespace warproll {

Sequence::Sequence(SampleRequest sample_request)
    : request(std::move(sample_request)), token_ids(*request.prompt_ids) {}

Sequence::~Sequence() = default;

void Sequence::append(const SampledToken& token) {
  token_ids.push_back(token.token_id);
  logprobs.push_back(token.logprob);
  raw_logprobs.push_back(token.raw_logprob);
  support_logmass.push_back(token.support_logmass);
  weight_versions.push_back(weights->weight_version);
  note_version();
}

void Sequence::record_routes(int32_t first, std::span<const uint16_t> chunk_routes,
                             int32_t ids_per_token) {
  const auto count = static_cast<int32_t>(chunk_routes.size()) / ids_per_token;
  WARPROLL_CHECK(first <= num_routed, "a position's routes were skipped");
  if (first + count <= num_routed) return;
  const auto known = static_cast<ptrdiff_t>(num_routed - first) * ids_per_token;
  routes.insert(routes.end(), chunk_routes.begin() + known, chunk_routes.end());
  num_routed = first + count;
}

void Sequence::record_event(EventKind kind) {
  note_version();
  const TrajectoryEvent event{size(), kind, weights->weight_version};
  if (events.empty() || events.back().at_token != size()) {
    events.push_back(event);
    return;
  }
  TrajectoryEvent& last = events.back();
  last.weight_version = event.weight_version;
  if (last.kind != kind) last.kind = EventKind::kFlipRecompute;
}

void Sequence::forget_routes() {
  routes.clear();
  num_routed = 0;
}

void Sequence::note_version() {
  const VersionDigest met{weights->weight_version, weights->weight_digest};
  if (std::find(digests.begin(), digests.end(), met) == digests.end()) digests.push_back(met);
}

namespace {

std::optional<RoutedExperts> pack_routes(const Sequence& sequence, const ModelConfig& config) {
  RoutedExperts packed;
  packed.num_tokens = sequence.size() - 1;
  packed.num_layers = config.num_moe_layers();
  packed.top_k = config.num_experts_per_tok;
  packed.bytes_per_id = config.num_experts <= 256 ? 1 : 2;
  // A sample that ended before its prompt was forwarded has none.
  if (!sequence.request.return_routes || sequence.num_routed < packed.num_tokens) return {};
  packed.data.reserve(sequence.routes.size() * packed.bytes_per_id);
  for (const uint16_t expert_id : sequence.routes) {
    packed.data.push_back(static_cast<uint8_t>(expert_id));
    if (packed.bytes_per_id == 2) packed.data.push_back(static_cast<uint8_t>(expert_id >> 8));
  }
  return packed;
}

}  // namespace

GeneratedSample make_generated_sample(Sequence& sequence, const ModelConfig& config,
                                      const SampleEnd& end) {
  GeneratedSample sample;
  sample.request_id = sequence.request.request_id;
  sample.routed_experts = pack_routes(sequence, config);
  sample.token_ids.assign(sequence.token_ids.begin() + sequence.prompt_len(),
                          sequence.token_ids.end());
  // An event before a token that never came changed nothing.
  for (const TrajectoryEvent& event : sequence.events) {
    if (event.at_token < sequence.size()) sample.events.push_back(event);
  }
  for (const VersionDigest& digest : sequence.digests) {
    const auto is_event = [&](const auto& e) { return e.weight_version == digest.weight_version; };
    const auto& versions = sequence.weight_versions;
    if (std::find(versions.begin(), versions.end(), digest.weight_version) != versions.end() ||
        std::any_of(sample.events.begin(), sample.events.end(), is_event))
      sample.version_digests.push_back(digest);
  }
  sample.logprobs = std::move(sequence.logprobs);
  sample.raw_logprobs = std::move(sequence.raw_logprobs);
  sample.support_logmass = std::move(sequence.support_logmass);
  sample.weight_versions = std::move(sequence.weight_versions);
  if (sequence.text != nullptr) sample.text = sequence.text->finish();
  sample.finish_reason = end.reason;
  sample.error_type = end.error_type;
  sample.error_message = end.error_message;
  sample.admitted_ns = sequence.admitted_ns;
  sample.first_token_ns = sequence.first_token_ns;
  return sample;
}

}  // namespace warproll
