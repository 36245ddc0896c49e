// The JSON line of a trajectory, read back by Python's strict json as the independent reader.
#include "rollout/sample_log/trajectory_json.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include "tests/rollout/sample_log/fixture.h"

namespace warproll::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Runs Python code with the line in `line` and the parsed value in `t`; its output.
std::string python(const TempFolder& folder, const std::string& line, const std::string& code) {
  std::ofstream(folder.path("line.json")) << line;
  std::ofstream(folder.path("check.py")) << "import json, sys, base64, struct, math\n"
                                            "def refuse(name): raise ValueError(name)\n"
                                            "line = open(sys.argv[1], encoding='utf-8').read()\n"
                                            "t = json.loads(line, parse_constant=refuse)\n"
                                         << code;
  const std::string command = std::string(WARPROLL_TEST_PYTHON) + " " + folder.path("check.py") +
                              " " + folder.path("line.json") + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  char text[256];
  while (std::fgets(text, sizeof(text), pipe) != nullptr) out += text;
  return pclose(pipe) == 0 ? out : "failed: " + out;
}

Trajectory full_trajectory() {
  std::mt19937_64 rng(11);
  Trajectory t =
      make_trajectory({.task_id = "t", .group_id = "g", .response_tokens = 9, .routes = true}, rng);
  t.seq = 18446744073709551615ull;
  t.text = "a \"quote\" \\ \n\t\x01 caf\xc3\xa9 \xf0\x9f\x98\x80";
  t.reward = Reward{.total = 0.1, .components = {{"exact", 1.0}, {"length", -0.25}}};
  t.events = {{.at_token = 7, .kind = EventKind::kFlipKeep, .weight_version = 2}};
  t.role_spans = {{.start = 0, .end = 5, .role = Role::kUser}};
  t.sampling.stop_strings = {"END"};
  return t;
}

TEST(TrajectoryJson, IsOneStrictLineThatKeepsEveryFloatAndId) {
  TempFolder folder;
  const Trajectory t = full_trajectory();
  const std::string line = trajectory_to_json(t);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  const std::string out = python(folder, line,
                                 "print(t['seq'], t['text'] == 'a \"quote\" \\\\ \\n\\t\\x01 "
                                 "caf\\u00e9 \\U0001f600', t['reward']['total'])\n"
                                 "print(' '.join(str(i) for i in t['token_ids']))\n"
                                 "print(' '.join(struct.pack('<f', x).hex() for x in "
                                 "t['logprobs']))\n"
                                 "print(base64.b64decode(t['routed_experts']['base64']).hex())\n");
  std::string wanted = "18446744073709551615 True 0.1\n";
  for (size_t i = 0; i < t.token_ids.size(); ++i) {
    wanted += (i == 0 ? "" : " ") + std::to_string(t.token_ids[i]);
  }
  wanted += "\n";
  char hex[16];
  for (size_t i = 0; i < t.logprobs.size(); ++i) {
    uint8_t bytes[4];
    std::memcpy(bytes, &t.logprobs[i], 4);
    std::snprintf(hex, sizeof(hex), "%s%02x%02x%02x%02x", i == 0 ? "" : " ", bytes[0], bytes[1],
                  bytes[2], bytes[3]);
    wanted += hex;
  }
  wanted += "\n";
  for (uint8_t byte : t.routed_experts->data) {
    std::snprintf(hex, sizeof(hex), "%02x", byte);
    wanted += hex;
  }
  EXPECT_EQ(out, wanted + "\n");
}

TEST(TrajectoryJson, EqualTrajectoriesGiveEqualBytes) {
  EXPECT_EQ(trajectory_to_json(full_trajectory()), trajectory_to_json(full_trajectory()));
}

TEST(TrajectoryJson, NonFiniteValuesBecomeNullAndAreListed) {
  TempFolder folder;
  Trajectory t = full_trajectory();
  t.logprobs[6] = std::numeric_limits<float>::quiet_NaN();
  t.raw_logprobs[7] = -std::numeric_limits<float>::infinity();
  t.reward->total = std::numeric_limits<double>::infinity();
  const std::string out = python(folder, trajectory_to_json(t),
                                 "print(t['logprobs'][6], t['raw_logprobs'][7], "
                                 "t['reward']['total'], t['non_finite'])\n");
  EXPECT_EQ(out, "None None None [['logprobs', 6], ['raw_logprobs', 7], ['total']]\n");
}

TEST(TrajectoryJson, BytesThatAreNotUtf8AreReplacedAndTheFieldIsNamed) {
  TempFolder folder;
  Trajectory t = full_trajectory();
  t.metadata = "\xff\xfe\xed\xa0\x80 ok \xc3";
  const std::string out =
      python(folder, trajectory_to_json(t), "print(ascii(t['metadata']), t['invalid_utf8'])\n");
  EXPECT_EQ(out, "'\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd ok \\ufffd' ['metadata']\n");
}

TEST(TrajectoryJson, AnAbsentRewardIsNullAndCleanLinesListNoLosses) {
  TempFolder folder;
  Trajectory t = full_trajectory();
  t.reward.reset();
  t.routed_experts.reset();
  const std::string out =
      python(folder, trajectory_to_json(t),
             "print(t['reward'], t['routed_experts'], 'non_finite' in t, 'invalid_utf8' in t)\n");
  EXPECT_EQ(out, "None None False False\n");
}

}  // namespace
}  // namespace warproll::testing
