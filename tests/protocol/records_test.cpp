#include "protocol/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/protocol/random_records.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;

// Six tokens, prompt of two, a flip before token 4.
Trajectory good_trajectory() {
  Trajectory t;
  t.producer_id.fill(0xAB);
  t.seq = 7;
  t.trajectory_id = "abababababababababababababababab-7";
  t.task_id = "task";
  t.group_id = "group";
  t.token_ids = {1, 2, 3, 4, 5, 6};
  t.prompt_len = 2;
  t.loss_mask = {0, 0, 1, 1, 1, 1};
  t.logprobs = {0, 0, -1, -2, -3, -4};
  t.raw_logprobs = {0, 0, -1, -2, -3, -4};
  t.support_logmass = {0, 0, 0, -0.5f, 0, 0};
  t.version_runs = {{2, 10}, {4, 11}};
  t.version_digests = {{10, Digest{1}}, {11, Digest{2}}};
  t.events = {{4, EventKind::kFlipKeep, 11}};
  t.routed_experts = RoutedExperts{5, 2, 3, 1, std::vector<uint8_t>(30)};
  t.role_spans = {{0, 2, Role::kUser}, {2, 6, Role::kAssistant}};
  t.activation_dtype = "f32";
  return t;
}

struct Case {
  const char* what;
  std::function<void(Trajectory&)> spoil;
  const char* message;
};

const std::vector<Case>& trajectory_cases() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  static const std::vector<Case> kCases = {
      {"seq 0", [](auto& t) { t.seq = 0; }, "Trajectory.seq is 0, wanted >= 1"},
      {"foreign id", [](auto& t) { t.seq = 8; }, "-7, wanted abababababababababababababababab-8"},
      {"no task", [](auto& t) { t.task_id.clear(); }, "task_id has 0 bytes, wanted 1..256"},
      {"long group", [](auto& t) { t.group_id.assign(257, 'g'); }, "has 257 bytes, wanted 1..256"},
      {"sample", [](auto& t) { t.sample_index = -1; }, "sample_index is -1, wanted 0..65535"},
      {"mask length", [](auto& t) { t.loss_mask.pop_back(); },
       "Trajectory.loss_mask has 5 elements, wanted 6"},
      {"logprobs length", [](auto& t) { t.logprobs.push_back(0); },
       "Trajectory.logprobs has 7 elements, wanted 6"},
      {"raw length", [](auto& t) { t.raw_logprobs.clear(); }, "raw_logprobs has 0 elements"},
      {"support length", [](auto& t) { t.support_logmass.clear(); }, "support_logmass has 0"},
      {"no prompt", [](auto& t) { t.prompt_len = 0; }, "prompt_len is 0, wanted 1..5"},
      {"no response", [](auto& t) { t.prompt_len = 6; }, "prompt_len is 6, wanted 1..5"},
      {"negative id", [](auto& t) { t.token_ids[3] = -4; },
       "Trajectory.token_ids[3] is -4, wanted 0..99"},
      {"id of no token", [](auto& t) { t.token_ids[5] = 100; },
       "token_ids[5] is 100, wanted 0..99"},
      {"mask value", [](auto& t) { t.loss_mask[4] = 2; }, "loss_mask[4] is 2, wanted 0 or 1"},
      {"mask in prompt", [](auto& t) { t.loss_mask[1] = 1; },
       "loss_mask[1] is 1, wanted 0 (prompt)"},
      {"shifted logprobs", [](auto& t) { t.logprobs = {0, -1, -2, -3, -4, 0}; },
       "logprobs[1] is -1.000000, wanted 0 where loss_mask is 0"},
      {"nan", [](auto& t) { t.logprobs[2] = kNan; }, "logprobs[2] is nan, wanted finite and <= 0"},
      {"infinite", [](auto& t) { t.raw_logprobs[3] = -INFINITY; }, "raw_logprobs[3] is -inf"},
      {"positive", [](auto& t) { t.support_logmass[3] = 0.01f; }, "support_logmass[3] is 0.01"},
      {"no runs", [](auto& t) { t.version_runs.clear(); },
       "has 0 runs, wanted them to tile [2, 6)"},
      {"first run", [](auto& t) { t.version_runs[0].start = 3; },
       "version_runs[0].start is 3, wanted 2 (prompt_len)"},
      {"run order", [](auto& t) { t.version_runs[1].start = 2; },
       "version_runs[1].start is 2, wanted 3..5"},
      {"run past the end", [](auto& t) { t.version_runs[1].start = 6; },
       "version_runs[1].start is 6, wanted 3..5"},
      {"no event", [](auto& t) { t.events.clear(); },
       "version_runs[1] changes to weight_version 11 at token 4 without an event"},
      {"event in prompt", [](auto& t) { t.events[0].at_token = 1; },
       "events[0].at_token is 1, wanted 2..6"},
      {"event kind", [](auto& t) { t.events[0].kind = static_cast<EventKind>(3); },
       "events[0].kind is 3, wanted 0..2"},
      {"no digest", [](auto& t) { t.version_digests.pop_back(); },
       "version_runs[1] has weight_version 11 without a digest"},
      {"zero digest", [](auto& t) { t.version_digests[1].weight_digest = {}; },
       "version_digests[1].weight_digest is all zero"},
      {"digest twice",
       [](auto& t) {
         t.version_digests.push_back({10, Digest{3}});
       },
       "version_digests[2].weight_version is 10 again"},
      {"route tokens", [](auto& t) { t.routed_experts->num_tokens = 6; },
       "routed_experts.num_tokens is 6, wanted 5 (T - 1)"},
      {"route width", [](auto& t) { t.routed_experts->bytes_per_id = 4; },
       "bytes_per_id is 4, wanted 1 or 2"},
      {"route layers", [](auto& t) { t.routed_experts->num_layers = 0; }, "is 0 x 3, wanted >= 1"},
      {"route size", [](auto& t) { t.routed_experts->data.pop_back(); },
       "has 29 bytes, wanted 5 x 6"},
      {"route overflow",
       [](auto& t) { t.routed_experts->num_layers = t.routed_experts->top_k = INT32_MAX; },
       "has 30 bytes, wanted 5 x 4611686014132420609"},
      {"span overlap", [](auto& t) { t.role_spans[1].start = 1; },
       "role_spans[1] is [1, 6), wanted a non-empty span within [2, 6)"},
      {"finish", [](auto& t) { t.finish_reason = static_cast<FinishReason>(9); },
       "finish_reason is 9, wanted 0..3"},
      {"error of a stop", [](auto& t) { t.error_type = "oom"; },
       "error_type is 'oom' with finish_reason stop"},
      {"abort without reason", [](auto& t) { t.finish_reason = FinishReason::kAbort; },
       "error_type is '' with finish_reason abort"},
      {"text", [](auto& t) { t.text = "\xC0\x80"; }, "Trajectory.text (2 bytes) is not UTF-8"},
      {"reward",
       [](auto& t) {
         t.reward = Reward{NAN, {}};
       },
       "reward.total is nan, wanted finite"},
      {"reward part",
       [](auto& t) {
         t.reward = Reward{0, {{"len", INFINITY}}};
       },
       "reward component 'len' is inf, wanted finite"},
      {"sampling", [](auto& t) { t.sampling.top_p = 0; },
       "Trajectory.sampling: SamplingParams.top_p is 0.000000, wanted more than 0 and at most 1"},
      {"time", [](auto& t) { t.timings.sealed_ns = -5; }, "timings is -5 ns, wanted >= 0"},
      {"dtype", [](auto& t) { t.activation_dtype = "int8"; },
       "activation_dtype is 'int8', wanted f32, bf16 or f16"},
  };
  return kCases;
}

TEST(Records, AWellFormedTrajectoryIsValid) {
  EXPECT_EQ(validate(good_trajectory(), 100).to_string(), "OK");
  EXPECT_EQ(validate(good_trajectory(), 0).to_string(), "OK");
}

TEST(Records, EveryBrokenPromiseOfATrajectoryIsNamed) {
  for (const Case& c : trajectory_cases()) {
    Trajectory trajectory = good_trajectory();
    c.spoil(trajectory);
    const Status status = validate(trajectory, 100);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.what;
    EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.what;
  }
}

TEST(Records, ASampleThatFailedBeforeItsFirstTokenIsValid) {
  Trajectory t = good_trajectory();
  t.finish_reason = FinishReason::kAbort;
  t.error_type = "deadline";
  t.prompt_len = 6;
  t.loss_mask.assign(6, 0);
  t.logprobs = t.raw_logprobs = t.support_logmass = std::vector<float>(6);
  t.version_runs.clear();
  t.events.clear();
  EXPECT_EQ(validate(t, 100).to_string(), "OK");
}

TEST(Records, ASampleThatFailedBeforeItsPromptWasTokenizedIsValid) {
  Trajectory t = good_trajectory();
  t.finish_reason = FinishReason::kError;
  t.error_type = "tokenizer";
  t.prompt_len = 0;
  t.token_ids.clear();
  t.loss_mask.clear();
  t.logprobs = t.raw_logprobs = t.support_logmass = {};
  t.version_runs.clear();
  t.events.clear();
  t.routed_experts.reset();
  t.role_spans.clear();
  EXPECT_EQ(validate(t, 100).to_string(), "OK");
}

std::string task_refusal(const std::function<void(Task&)>& spoil) {
  Task task;
  task.task_id = "t";
  task.group_size = 4;
  task.prompt_ids = {1, 2};
  spoil(task);
  return validate(task).to_string();
}

TEST(Records, AWellFormedTaskIsValid) {
  EXPECT_EQ(task_refusal([](Task&) {}), "OK");
  EXPECT_EQ(task_refusal([](Task& t) { t.sample_indices = {3, 0}; }), "OK");
}

TEST(Records, EveryBrokenPromiseOfATaskIsNamed) {
  const auto expect = [](const char* message, const std::function<void(Task&)>& spoil) {
    EXPECT_THAT(task_refusal(spoil), HasSubstr(message));
  };
  expect("unknown env 'chess', known: single_turn", [](Task& t) { t.env = "chess"; });
  expect("Task has 0 prompts, wanted exactly one", [](Task& t) { t.prompt_ids.clear(); });
  expect("Task has 2 prompts, wanted exactly one", [](Task& t) { t.prompt_text = "x"; });
  expect("Task.prompt_ids[1] is -2, wanted >= 0", [](Task& t) { t.prompt_ids[1] = -2; });
  expect("Task.task_id has 0 bytes", [](Task& t) { t.task_id.clear(); });
  expect("Task.group_size is 0, wanted 1..65536", [](Task& t) { t.group_size = 0; });
  expect("Task.group_size is 65537", [](Task& t) { t.group_size = 65537; });
  expect("Task.sample_indices has 4, wanted 0..3", [](Task& t) { t.sample_indices = {0, 4}; });
  expect("Task.sample_indices has 2 twice", [](Task& t) { t.sample_indices = {2, 1, 2}; });
  expect("temperature is -1.0", [](Task& t) { t.sampling.temperature = -1; });
  expect("temperature is nan", [](Task& t) { t.sampling.temperature = NAN; });
  expect("top_p is nan", [](Task& t) { t.sampling.top_p = NAN; });
  expect("top_k is -1", [](Task& t) { t.sampling.top_k = -1; });
  expect("min_p is 1.5", [](Task& t) { t.sampling.min_p = 1.5f; });
  expect("max_tokens is 0, wanted >= 1", [](Task& t) { t.sampling.max_tokens = 0; });
  expect("stop_strings[0] has 0 bytes", [](Task& t) { t.sampling.stop_strings = {""}; });
  expect("stop_strings[0] has 1025 bytes, wanted 1..1024",
         [](Task& t) { t.sampling.stop_strings = {std::string(1025, 's')}; });
  expect("stop_token_ids[0] is -1", [](Task& t) { t.sampling.stop_token_ids = {-1}; });
  expect("in_flight is 4, wanted 0..3",
         [](Task& t) { t.in_flight = static_cast<InFlightPolicy>(4); });
}

TEST(Records, DigestsGoToHexAndBack) {
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(i * 17);
  EXPECT_EQ(to_hex(digest), "00112233445566778899aabbccddeeff");
  EXPECT_EQ(*digest_from_hex(to_hex(digest)), digest);
  EXPECT_EQ(*digest_from_hex("00112233445566778899AABBCCDDEEFF"), digest);
}

TEST(Records, HexThatIsNoDigestIsNamed) {
  EXPECT_THAT(digest_from_hex("00").status().message(), HasSubstr("2 characters, wanted 32"));
  EXPECT_THAT(digest_from_hex("0011223344556677889gaabbccddeeff").status().message(),
              HasSubstr("at 19 that is no hex digit"));
}

TEST(Records, PoliciesAreReadByName) {
  for (const auto policy : {InFlightPolicy::kKeep, InFlightPolicy::kRecompute,
                            InFlightPolicy::kAbort, InFlightPolicy::kPin}) {
    EXPECT_EQ(*in_flight_policy_from(to_string(policy)), policy);
  }
  EXPECT_EQ(in_flight_policy_from("Keep").status().message(),
            "in_flight is 'Keep', wanted keep, recompute, abort or pin");
}

}  // namespace
}  // namespace warproll
