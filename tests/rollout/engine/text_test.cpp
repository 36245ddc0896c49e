// Text and stop strings through the engine, with the arith model and its tokenizer.
#include <gtest/gtest.h>

#include "tests/golden_dir.h"
#include "tests/rollout/engine/real_model.h"

namespace warproll {
namespace {

class EngineText : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = golden_dir() + "/arith-v3";
    tokenizer_ = std::move(Tokenizer::from_file(folder + "/tokenizer.json")).value();
    EngineParts parts = real_parts(load_weights("arith-v3", 3), EngineConfig{});
    parts.tokenizer = tokenizer_;
    core_ = std::move(EngineCore::create(std::move(parts))).value();
  }
  GeneratedSample answer(const std::string& prompt, std::vector<std::string> stop_strings) {
    SampleRequest request;
    request.request_id = 1;
    request.prompt_ids =
        std::make_shared<const std::vector<int32_t>>(std::move(tokenizer_->encode(prompt)).value());
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = 8;
    request.sampling.stop_strings = std::move(stop_strings);
    EXPECT_TRUE(core_->submit(request).ok());
    return run_all(*core_).at(1);
  }
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<EngineCore> core_;
};

TEST_F(EngineText, TheTextIsTheAnswerWithoutTheEosToken) {
  const GeneratedSample sample = answer("123+456=", {});
  EXPECT_EQ(sample.text, "579");
  EXPECT_EQ(sample.token_ids.size(), 4u);
  EXPECT_EQ(sample.token_ids.back(), 256);
  EXPECT_EQ(sample.finish_reason, FinishReason::kStop);
}

TEST_F(EngineText, AStopStringCutsTheTextAndKeepsTheIds) {
  const GeneratedSample sample = answer("123+456=", {"79"});
  EXPECT_EQ(sample.text, "5");
  EXPECT_EQ(sample.token_ids, (std::vector<int32_t>{20, 22, 24}));
  EXPECT_EQ(sample.finish_reason, FinishReason::kStop);
  EXPECT_EQ(sample.logprobs.size(), 3u);
}

TEST_F(EngineText, HalfAStopStringAtTheEndIsText) {
  EXPECT_EQ(answer("123+456=", {"9x"}).text, "579");
}

}  // namespace
}  // namespace warproll
