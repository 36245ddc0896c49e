// 100 updates through the whole receiving path - manifest, transport, standby arena, verification,
// flip - while a real engine generates. The flips alone are tests/rollout/engine/flips_test.cpp's.
#include <gtest/gtest.h>

#include <set>

#include "kernels/parallel.h"
#include "rollout/engine/score.h"
#include "tests/rollout/engine/real_model.h"
#include "tests/rollout/engine/record_replay.h"
#include "tests/worker/node/live_update_rig.h"
#include "weights_sync/digest.h"
#include "worker/node/serving_model.h"

namespace warproll {
namespace {

using update_fixtures::arith;

constexpr int kUpdates = 100;
constexpr int32_t kTokens = 40;  // of each sample
constexpr float kLogprobTolerance = 1e-4f;

// Sanitizers look for races and bad memory here; the numbers are checked in full without them.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kCheckEvery = 8;
#else
constexpr uint64_t kCheckEvery = 1;
#endif

// Version v is arith-v(1 + (v - 1) % 3), as the rig starts with arith-v1 as version 1.
int model_of(uint64_t version) { return 1 + static_cast<int>((version - 1) % 3); }

class UpdatesUnderLoad : public ::testing::TestWithParam<InFlightPolicy> {
 protected:
  // The weights of a version, loaded cold and never through an update.
  static const std::vector<WeightSetPtr>& cold_versions() {
    static const std::vector<WeightSetPtr> versions = [] {
      const std::vector<WeightSetPtr> models = load_arith();
      std::vector<WeightSetPtr> result;
      for (uint64_t version = 1; version <= 1 + kUpdates; ++version) {
        auto weights = std::make_shared<WeightSet>(*models[model_of(version) - 1]);
        weights->weight_version = version;
        result.push_back(std::move(weights));
      }
      return result;
    }();
    return versions;
  }
  static Digest cold_layout_digest(int model) {
    const auto checkpoint =
        Checkpoint::open(checkpoint_fixtures::golden("arith-v" + std::to_string(model)));
    const auto loaded = load_checkpoint(*checkpoint, make_layout_function(false, std::nullopt));
    return layout_digest(loaded->layout, loaded->arena.span());
  }
};

void expect_clean_forward_agrees(const SampleRequest& request, const GeneratedSample& sample,
                                 const std::vector<WeightSetPtr>& versions) {
  SCOPED_TRACE(describe(request, sample));
  std::vector<int32_t> tokens = *request.prompt_ids;
  const auto prompt_len = static_cast<int32_t>(tokens.size());
  tokens.insert(tokens.end(), sample.token_ids.begin(), sample.token_ids.end());
  const std::set<uint64_t> met(sample.weight_versions.begin(), sample.weight_versions.end());
  for (const uint64_t version : met) {
    const auto scores = score_tokens(*versions.at(version - 1), cpu_runner(ActivationDtype::kF32),
                                     tokens, prompt_len, request.sampling);
    ASSERT_TRUE(scores.ok()) << scores.status().to_string();
    for (size_t i = 0; i < sample.token_ids.size(); ++i) {
      if (sample.weight_versions[i] != version) continue;
      ASSERT_NEAR(sample.logprobs[i], (*scores)[i].logprob, kLogprobTolerance);
      ASSERT_NEAR(sample.raw_logprobs[i], (*scores)[i].raw_logprob, kLogprobTolerance);
    }
  }
}

// Sequences that began before the last flip; the others, made while the load ran out, can meet none.
size_t num_under_load(const LiveLoad& load) {
  size_t count = 0;
  for (const auto& [id, sample] : load.samples)
    count += sample.weight_versions.front() <= kUpdates ? 1 : 0;
  return count;
}

// Sequences that had sampled under one version and lived into the next.
size_t num_spanning(const LiveLoad& load, InFlightPolicy policy) {
  // A pinned arena defers the next update, so no sequence is in flight at two flips.
  if (policy == InFlightPolicy::kPin) return load.in_flight_at_flips;
  size_t count = 0;
  for (const auto& [id, sample] : load.samples) {
    const bool is_cut = sample.error_type == "weights_changed";
    const auto& versions = sample.weight_versions;
    if (is_cut || (!versions.empty() && versions.front() != versions.back())) ++count;
  }
  return count;
}

TEST_P(UpdatesUnderLoad, AHundredLeaveTheArenaOfAColdLoadAndLogprobsOfTheTaggedVersion) {
  const InFlightPolicy policy = GetParam();
  const std::array<Digest, 3> cold = {cold_layout_digest(1), cold_layout_digest(2),
                                      cold_layout_digest(3)};
  std::vector<OfferedCheckpoint> offers;  // made before the load, so that flips come fast
  for (uint64_t version = 2; version <= 1 + kUpdates; ++version)
    offers.push_back(arith(model_of(version), version));
  LiveUpdateRig rig(policy);
  rig.start_load(kTokens);
  for (const OfferedCheckpoint& offered : offers) {
    const uint64_t version = offered.manifest->weight_version;
    const int model = model_of(version);
    const auto ready = rig.update(offered);
    ASSERT_TRUE(ready) << "version " << version;
    ASSERT_EQ(ready->layout_digest, cold[model - 1]) << "version " << version;
    const StagedWeightsPtr serving = rig.serving();
    ASSERT_EQ(serving->weight_version, version);
    ASSERT_EQ(layout_digest(serving->layout, serving->arena), cold[model - 1])
        << "version " << version;
  }
  const LiveLoad load = rig.stop();
  EXPECT_TRUE(rig.alarms().empty()) << rig.alarms().front();
  EXPECT_EQ(load.samples.size(), load.requests.size()) << "each sample exactly once";
  EXPECT_EQ(load.steps_with_empty_queue, 0u) << "of " << load.steps << " steps";
  EXPECT_GE(load.steps_during_transfers, kUpdates * StandingTransport::kSteps);
  for (const auto& [id, sample] : load.samples)
    ASSERT_FALSE(sample.token_ids.empty()) << sample.error_type << " " << sample.error_message;
  const size_t spanning = num_spanning(load, policy);
  EXPECT_GE(2 * spanning, num_under_load(load)) << "too few span a flip";
  EXPECT_EQ(load.defers > 0, policy == InFlightPolicy::kPin);
  RecordProperty("samples", static_cast<int>(num_under_load(load)));
  RecordProperty("spanning", static_cast<int>(spanning));

  set_kernel_threads(1);  // a model this small is slower on more
  RealReplay replay(cold_versions(), 64);
  for (const auto& [id, sample] : load.samples) {
    ASSERT_NE(sample.finish_reason, FinishReason::kError) << sample.error_message;
    if (id % kCheckEvery != 0) continue;
    if (policy == InFlightPolicy::kKeep) {
      expect_record_replays(load.requests.at(id), sample, replay);
    } else {
      expect_clean_forward_agrees(load.requests.at(id), sample, cold_versions());
    }
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(EachPolicy, UpdatesUnderLoad,
                         ::testing::Values(InFlightPolicy::kKeep, InFlightPolicy::kRecompute,
                                           InFlightPolicy::kAbort, InFlightPolicy::kPin),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace warproll
