#include "worker/config/yaml_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "worker/config/trainer_config.h"
#include "worker/config/worker_config.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;

Status parse(const std::string& yaml, WorkerConfig& config,
             const std::vector<std::string>& overrides = {}) {
  return parse_yaml_config(yaml, "w.yaml", overrides,
                           [&](ConfigVisitor& v) { describe(v, config); });
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(YamlConfig, ReadsEveryTypeOfValue) {
  WorkerConfig config;
  const Status status = parse(
      "worker:\n  name: node 7\nengine:\n  threads: 3\nlog:\n  compress: false\n"
      "weights:\n  transports: [directory]\n  swap: host_staged\n",
      config);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(config.name, "node 7");
  EXPECT_EQ(config.engine.threads, 3);
  EXPECT_FALSE(config.log.compress);
  EXPECT_EQ(config.weights.transports, std::vector<std::string>{"directory"});
  EXPECT_EQ(config.weights.swap, "host_staged");
}

TEST(YamlConfig, AnEmptyFileGivesTheDefaults) {
  WorkerConfig config;
  EXPECT_TRUE(parse("", config).ok());
  EXPECT_EQ(print(config), print(WorkerConfig{}));
}

struct BadCase {
  const char* yaml;
  const char* message;
};

TEST(YamlConfig, BadInputNamesFileLineKeyValueAndWhatWasWanted) {
  const BadCase cases[] = {
      {"worker:\n  nmae: x\n", "w.yaml:2: unknown key worker.nmae"},
      {"engin:\n  threads: 1\n", "w.yaml:1: unknown key engin"},
      {"engine:\n  threads: many\n",
       "w.yaml:2: engine.threads is 'many', wanted a whole number from 0 to 1024"},
      {"engine:\n  threads: 1.5\n", "engine.threads is '1.5', wanted a whole number"},
      {"engine:\n\n  threads: 5000\n",
       "w.yaml:3: engine.threads is '5000', wanted a value from 0 to 1024"},
      {"engine: 3\n", "w.yaml:1: engine is '3', wanted a section"},
      {"engine:\n  threads: [1]\n", "engine.threads is a list, wanted a whole number"},
      {"engine:\n  threads:\n", "engine.threads is nothing, wanted a whole number"},
      {"log:\n  compress: yes please\n", "log.compress is 'yes please', wanted true or false"},
      {"log:\n  durability: never\n", "log.durability is 'never', wanted one of each group os"},
      {"log:\n  directory: {a: 1}\n", "log.directory is a section, wanted text"},
      {"weights:\n  transports: tcp\n", "weights.transports is 'tcp', wanted a list"},
      {"weights:\n  transports: [[a]]\n", "weights.transports holds a list, wanted texts"},
      {"log:\n  keep_hours: 1\n  keep_hours: 2\n", "w.yaml:3: log.keep_hours is given twice"},
      {"- a\n- b\n", "w.yaml:1: is a list, wanted sections with keys"},
      {"just words\n", "w.yaml:1: is 'just words', wanted sections with keys"},
      {"worker: {name: [}\n", "w.yaml:1: is not YAML"},
      {"worker:\n\tname: x\n", "w.yaml:2: is not YAML"},
      {"worker: *nowhere\n", "is not YAML"},
      {"[a]: 3\n", "a key is a list, wanted text"},
  };
  for (const BadCase& bad : cases) {
    WorkerConfig config;
    const Status status = parse(bad.yaml, config);
    EXPECT_FALSE(status.ok()) << bad.yaml;
    EXPECT_THAT(status.message(), HasSubstr(bad.message)) << bad.yaml;
  }
}

TEST(YamlConfig, EveryProblemIsReportedNotOnlyTheFirst) {
  WorkerConfig config;
  const Status status = parse("engine:\n  threads: x\nlog:\n  nope: 1\n", config);
  EXPECT_THAT(status.message(), HasSubstr("w.yaml:2"));
  EXPECT_THAT(status.message(), HasSubstr("w.yaml:4"));
}

TEST(YamlConfig, AbsurdNestingIsRefusedBeforeTheParserRecurses) {
  WorkerConfig config;
  EXPECT_THAT(parse(std::string(100000, '['), config).message(), HasSubstr("nested too deeply"));
  std::string dashes;
  for (int i = 0; i < 100000; ++i) dashes += "- ";
  EXPECT_THAT(parse(dashes, config).message(), HasSubstr("nested too deeply"));
}

TEST(YamlConfig, AQuoteThatIsNotClosedDoesNotSwallowTheRestOfTheFile) {
  WorkerConfig config;
  for (const std::string open : {"worker:\n  name: 'open\nlog:\n  directory: x\n",
                                 "worker:\n  name: \"open\\\"\nlog:\n  directory: x\n",
                                 "worker:\n  'name: x\nlog:\n  directory: x\n",
                                 "worker:\n  name: 'it''s\nlog:\n  directory: x\n"}) {
    EXPECT_THAT(parse(open, config).message(), HasSubstr("w.yaml:2: a quote is not closed"));
  }
  const Status closed = parse(
      "worker:  # it's \"fine\n  name: 'it''s'\nlog:\n  directory: it's  # isn't it\n"
      "trainer:\n  endpoint: \"a\\\"b'c\"\nweights: {transports: ['tcp', \"directory\"]}\n",
      config);
  ASSERT_TRUE(closed.ok()) << closed.message();
  EXPECT_EQ(config.name, "it's");
  EXPECT_EQ(config.log.directory, "it's");
  EXPECT_EQ(config.trainer.endpoint, "a\"b'c");
}

TEST(YamlConfig, OverridesFromTheCommandLineWinAndAreCheckedAlike) {
  WorkerConfig config;
  EXPECT_TRUE(parse("engine:\n  threads: 1\n", config, {"engine.threads=2"}).ok());
  EXPECT_EQ(config.engine.threads, 2);
  EXPECT_THAT(parse("", config, {"engine.threads=x"}).message(),
              HasSubstr("--set engine.threads: engine.threads is 'x', wanted a whole number"));
  EXPECT_THAT(parse("", config, {"engine.thread=2"}).message(),
              HasSubstr("unknown key engine.thread, did you mean engine.threads?"));
  EXPECT_THAT(parse("", config, {"nothing"}).message(), HasSubstr("section.key=value"));
}

TEST(YamlConfig, AMissingFileIsNamed) {
  const Result<WorkerConfig> config = load_worker_config("/nowhere/w.yaml", {});
  EXPECT_EQ(config.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(config.status().message(), HasSubstr("/nowhere/w.yaml"));
}

TEST(YamlConfig, APrintedConfigReadsBackToTheSameConfig) {
  WorkerConfig config;
  config.name = "a \"quoted\" name: # with YAML in it";
  config.model.checkpoint = "12";
  config.weights.transports = {"tcp"};
  config.engine.threads = 7;
  WorkerConfig again;
  const Status status = parse(print(config), again);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(again.name, config.name);
  EXPECT_EQ(print(again), print(config));
}

TEST(WorkerConfig, TheShippedFileNamesEveryKeyWithItsDefault) {
  const std::string text = file_text(WARPROLL_SOURCE_DIR "/configs/worker.yaml");
  EXPECT_THAT(text, HasSubstr(print(WorkerConfig{})));
}

TEST(TrainerConfig, TheShippedFileNamesEveryKeyWithItsDefault) {
  const std::string text = file_text(WARPROLL_SOURCE_DIR "/configs/trainer.yaml");
  EXPECT_THAT(text, HasSubstr(print(TrainerConfig{})));
}

TEST(WorkerConfig, ChecksAcrossKeysNameTheKeys) {
  WorkerConfig config;
  EXPECT_THAT(validate(config).message(), HasSubstr("model.checkpoint is empty"));
  config.model.checkpoint = "c";
  EXPECT_TRUE(validate(config).ok());
  config.weights.transports = {"carrier pigeon"};
  EXPECT_THAT(validate(config).message(),
              HasSubstr("'carrier pigeon', wanted tcp, directory or nccl"));
  config.weights.transports = {"tcp"};
  config.trainer.curve.secret_key_file = "k";
  EXPECT_THAT(validate(config).message(), HasSubstr("trainer.server_public_key"));
}

TEST(TrainerConfig, ChecksAcrossKeysNameTheKeys) {
  TrainerConfig config;
  EXPECT_TRUE(validate(config).ok());
  config.checkpoints.nccl_stream = "arena";
  EXPECT_THAT(
      validate(config).message(),
      HasSubstr("checkpoints.nccl_stream is arena, wanted checkpoints.transport nccl, got tcp"));
  config.checkpoints.transport = "nccl";
  EXPECT_TRUE(validate(config).ok());
}

TEST(TrainerConfig, TheUnitOfTransferIsTheTransports) {
  TrainerConfig::Checkpoints checkpoints;
  EXPECT_EQ(checkpoints.bucket_bytes(), 16U << 20);
  checkpoints.transport = "nccl";
  EXPECT_EQ(checkpoints.bucket_bytes(), 256U << 20);
  checkpoints.bucket_mb = 3;
  EXPECT_EQ(checkpoints.bucket_bytes(), 3U << 20);
}

}  // namespace
}  // namespace warproll
