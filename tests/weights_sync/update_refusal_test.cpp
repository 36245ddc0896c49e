// What an UpdateReceiver refuses, and that it says why: bytes, manifests, golden prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/weights_sync/update_receiver_fixture.h"

namespace warproll {
namespace {

using namespace update_receiver_fixture;
using testing::HasSubstr;

TEST_F(Receiver, OtherBytesThanTheManifestNamesFailWithTheTensor) {
  start();
  transport.bring(arith(3, 2).checkpoint);
  EXPECT_THAT(failure_of_update(), HasSubstr("tensor '"));
  EXPECT_EQ(receiver->weight_status().serving_version, 1u);
  EXPECT_THAT(receiver->stats().last_failure, HasSubstr("tensor '"));
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
}

TEST_F(Receiver, AManifestWithoutOneTensorIsRejectedAndMovesNothing) {
  start();
  Manifest manifest = *v2.manifest;
  const std::string name = manifest.entries[3].tensor.name;
  manifest.entries.erase(manifest.entries.begin() + 3);
  ASSERT_TRUE(seal_manifest(manifest).ok());
  begin(manifest);
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr(name));
  EXPECT_EQ(receiver->stats().received_bytes, 0u);
}

TEST_F(Receiver, AManifestOfAnotherArchitectureIsRejectedByName) {
  start();
  Manifest manifest = *v2.manifest;
  const auto at = manifest.files.config_json.find("Qwen3MoeForCausalLM");
  ASSERT_NE(at, std::string::npos);
  manifest.files.config_json.replace(at, 19, "LlamaForCausalLM");
  ASSERT_TRUE(seal_manifest(manifest).ok());
  begin(manifest);
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr("LlamaForCausalLM"));
}

TEST_F(Receiver, AManifestThatIsNoManifestIsRejected) {
  start();
  receiver->handle(UpdateBegin{{1, 2, 1}, "stepped", "", "", "garbage", 1000});
  EXPECT_TRUE(next<UpdateReject>());
}

TEST_F(Receiver, ATransportTheWorkerDoesNotHaveIsRejectedByName) {
  start();
  receiver->handle(UpdateBegin{{1, 2, 1}, "nccl", "", "", encode_manifest(*v2.manifest), 1000});
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr("transport 'nccl', this worker has stepped"));
}

TEST_F(Receiver, AManifestOfAnotherVersionThanItsUpdateIsRejected) {
  start();
  receiver->handle(UpdateBegin{{1, 9, 1}, "stepped", "", "", encode_manifest(*v2.manifest), 1000});
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr("it is of version 2, the update of version 9"));
}

TEST_F(Receiver, GoldenPromptsDecideBeforeReady) {
  std::atomic<bool> reproduced{false};
  options.golden_gate = [&](const StagedWeightsPtr& weights, const GoldenGate& gate) -> Status {
    EXPECT_EQ(weights->weight_version, 2u);
    EXPECT_EQ(gate.prompts.size(), 1u);
    return reproduced ? ok_status() : data_loss("prompt 0: logprob -3.5, wanted -0.1");
  };
  start();
  Manifest manifest = *v2.manifest;
  manifest.gate = GoldenGate{{GoldenPrompt{{1, 2}, {3}, {-0.1f}}}, 0.01f};
  UpdateId id = begin(manifest);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("prompt 0: logprob -3.5"));
  reproduced = true;
  id = begin(manifest);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  EXPECT_TRUE(next<UpdateReady>());
}

TEST_F(Receiver, AGateThatNobodyCanRunIsRejectedNotSkipped) {
  start();
  Manifest manifest = *v2.manifest;
  manifest.gate = GoldenGate{{GoldenPrompt{{1, 2}, {3}, {-0.1f}}}, 0.01f};
  begin(manifest);
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr("golden prompts"));
}

}  // namespace
}  // namespace warproll
