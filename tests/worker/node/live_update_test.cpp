// Single updates through the whole receiving path into a running engine: golden answers after hot
// reloads, and weights that must never serve.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/worker/node/live_update_rig.h"
#include "weights_sync/digest.h"

namespace warproll {
namespace {

using checkpoint_fixtures::golden;
using checkpoint_fixtures::read_bytes;
using checkpoint_fixtures::TempDir;
using checkpoint_fixtures::write_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;
using update_fixtures::arith;
using update_fixtures::in_ms;

// Byte-level ids of the arith tokenizer.
int32_t arith_id(char c) {
  if (c >= '0' && c <= '9') return 15 + (c - '0');
  return c == '+' ? 10 : 28;
}

void expect_golden_answers(Engine& engine, int model) {
  SCOPED_TRACE("arith-v" + std::to_string(model));
  std::ifstream file(golden("arith-v" + std::to_string(model) + "_golden.json"));
  const auto problems = nlohmann::json::parse(file).at("problems");
  ASSERT_EQ(problems.size(), 256u);
  std::map<uint64_t, std::vector<int32_t>> answers;
  const auto poll = [&] {
    for (const GeneratedSample& sample : engine.poll(in_ms(100)))
      answers[sample.request_id] = sample.token_ids;
  };
  for (size_t i = 0; i < problems.size(); ++i) {
    SampleRequest request;
    request.request_id = i;
    std::vector<int32_t> ids;
    for (const char c : problems[i].at("prompt").get<std::string>()) ids.push_back(arith_id(c));
    request.prompt_ids = std::make_shared<const std::vector<int32_t>>(std::move(ids));
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = 16;
    Status status = engine.submit(request);
    for (; status.code() == StatusCode::kUnavailable; status = engine.submit(request)) poll();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  const auto give_up = in_ms(120'000);
  while (answers.size() < problems.size() && std::chrono::steady_clock::now() < give_up) poll();
  for (size_t i = 0; i < problems.size(); ++i) {
    ASSERT_EQ(answers[i], problems[i].at("greedy_ids").get<std::vector<int32_t>>())
        << problems[i].at("prompt");
  }
}

TEST(LiveUpdate, GreedyAnswersAreTheGoldenOnesFromAColdStartAndAfterEveryHotReload) {
  LiveUpdateRig rig(InFlightPolicy::kKeep);
  expect_golden_answers(rig.engine(), 1);
  uint64_t version = 1;
  for (const int model : {2, 3, 1}) {
    ASSERT_TRUE(rig.update(arith(model, ++version)));
    EXPECT_EQ(rig.engine().stats().weight_version, version);
    expect_golden_answers(rig.engine(), model);
  }
}

// arith-v2 with its last bytes, the last BF16 element of its last tensor, replaced.
OfferedCheckpoint with_last_element(const TempDir& folder, uint16_t bits) {
  std::filesystem::copy(golden("arith-v2"), folder.path(),
                        std::filesystem::copy_options::recursive);
  std::string bytes = read_bytes(folder / "model.safetensors");
  bytes[bytes.size() - 2] = static_cast<char>(bits & 0xff);
  bytes[bytes.size() - 1] = static_cast<char>(bits >> 8);
  write_bytes(folder / "model.safetensors", bytes);
  auto checkpoint = Checkpoint::open(folder.path());
  auto manifest = make_manifest(*checkpoint, 2, update_fixtures::kBucketBytes);
  return {std::make_shared<const Checkpoint>(std::move(*checkpoint)),
          std::make_shared<const Manifest>(std::move(*manifest))};
}

TEST(LiveUpdate, WeightsWithANanOrInfFailTheUpdateAndTheOldVersionServesOn) {
  LiveUpdateRig rig(InFlightPolicy::kKeep);
  const Digest before = layout_digest(rig.serving()->layout, rig.serving()->arena);
  rig.start_load(40);
  for (const uint16_t bits : {0x7fc0, 0xff80}) {  // NaN, -Inf
    const TempDir folder;
    const auto answer = rig.stage(with_last_element(folder, bits));
    ASSERT_TRUE(answer);
    const auto* failed = std::get_if<UpdateFailed>(&*answer);
    ASSERT_NE(failed, nullptr) << message_name(*answer);
    EXPECT_THAT(failed->reason, AllOf(HasSubstr("tensor 'model."), HasSubstr("is NaN or Inf")));
    EXPECT_EQ(rig.serving()->weight_version, 1u);
    EXPECT_EQ(layout_digest(rig.serving()->layout, rig.serving()->arena), before);
    EXPECT_EQ(rig.receiver().weight_status().serving_version, 1u);
    EXPECT_TRUE(rig.steps().wait_for(rig.steps().count() + 10, in_ms(60'000)))
        << "generation stopped";
  }
  EXPECT_TRUE(rig.update(arith(3, 3))) << "the worker is ready for the next update";
  const LiveLoad load = rig.stop();
  EXPECT_EQ(load.samples.size(), load.requests.size());
}

TEST(LiveUpdate, ANewVersionOfUnchangedWeightsServesAndRaisesTheAlarmWithItsDigest) {
  LiveUpdateRig rig(InFlightPolicy::kKeep);
  rig.start_load(40);
  const OfferedCheckpoint same = arith(1, 2);
  ASSERT_TRUE(rig.update(same));
  rig.stop();
  ASSERT_EQ(rig.alarms().size(), 1u);
  EXPECT_THAT(rig.alarms()[0],
              AllOf(HasSubstr("2"), HasSubstr(to_hex(same.manifest->weight_digest))));
}

}  // namespace
}  // namespace warproll
