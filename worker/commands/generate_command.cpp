#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "rollout/engine/engine_core.h"
#include "rollout/engine/score.h"
#include "worker/commands/command.h"
#include "worker/commands/device_options.h"
#include "worker/node/serving_model.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/stop_signal.h"
#include "worker/trainer/task_json.h"

namespace warproll {
namespace {

constexpr int32_t kBlockTokens = 16;
constexpr const char* kExamples =
    "  warproll generate --checkpoint ckpt/arith-v3 --prompt '123+456='\n"
    "  warproll generate --checkpoint ckpt/m --prompt-ids 1,2,3 --max-tokens 24 --ignore-eos "
    "--json\n"
    "  warproll generate --checkpoint ckpt/m --chat messages.json --temperature 0.7 --top-p 0.9 "
    "--seed 7\n"
    "  warproll generate --checkpoint ckpt/m --prompt 'Hello' --json --echo-logprobs\n"
    "messages.json: [{\"role\": \"user\", \"content\": \"...\"}]. The same seed gives the same "
    "tokens.\n";

struct Options {
  std::string checkpoint;
  std::string tokenizer;
  std::vector<int32_t> prompt_ids;
  std::string prompt;
  std::string chat;
  ModelDeviceOptions device;
  SamplingParams sampling;
  bool quantise = false;
  bool json = false;
  bool echo_logprobs = false;
};

Result<Task> task_of(const Options& options) {
  Task task;
  if (!options.chat.empty()) {
    std::ifstream file(options.chat);
    if (!file) return not_found("--chat " + options.chat + ": cannot be opened for reading");
    std::ostringstream text;
    text << file.rdbuf();
    Result<Task> parsed = task_from_json("{\"messages\": " + text.str() + "}", task);
    if (!parsed.ok()) return parsed.status().with_context("--chat " + options.chat);
    task = std::move(parsed).value();
  }
  task.task_id = "generate";
  task.prompt_ids = options.prompt_ids;
  task.prompt_text = options.prompt;
  task.sampling = options.sampling;
  WARPROLL_TRY(validate(task));
  return task;
}

Result<GeneratedSample> run_engine(const WeightSetPtr& weights, const TextParts& text,
                                   const std::vector<int32_t>& prompt_ids, const Options& options,
                                   const ModelRunner& runner, StopSignal& stop) {
  EngineParts parts;
  parts.config.num_blocks = static_cast<int32_t>(
      (prompt_ids.size() + static_cast<size_t>(options.sampling.max_tokens)) / kBlockTokens + 2);
  parts.config.num_blocks =
      std::min(parts.config.num_blocks, weights->config.max_position_embeddings / kBlockTokens + 2);
  parts.config.block_tokens = kBlockTokens;
  parts.config.max_running_sequences = 1;
  parts.backend =
      runner.make_backend(weights->config, backend_sizes(parts.config, weights->config));
  parts.weights = weights;
  parts.tokenizer = text.tokenizer;
  WARPROLL_TRY_ASSIGN(engine, EngineCore::create(std::move(parts)));
  SampleRequest request;
  request.request_id = 1;
  request.prompt_ids = std::make_shared<const std::vector<int32_t>>(prompt_ids);
  request.sampling = options.sampling;
  WARPROLL_TRY(engine->submit(std::move(request)));
  for (;;) {
    engine->step(std::chrono::steady_clock::now());
    std::vector<GeneratedSample> finished = engine->take_finished();
    if (!finished.empty()) return std::move(finished.front());
    if (stop.wait_until(std::chrono::steady_clock::now())) return aborted("stopped by a signal");
  }
}

nlohmann::ordered_json floats(const std::vector<float>& values) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const float value : values) {
    // Not a number in JSON: null. Widening keeps every bit of the float.
    list.push_back(std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json());
  }
  return list;
}

int print_json(const GeneratedSample& sample, const WeightSet& weights,
               const std::vector<int32_t>& prompt_ids, const std::vector<SampledToken>& echo) {
  nlohmann::ordered_json out = {{"prompt_ids", prompt_ids},
                                {"token_ids", sample.token_ids},
                                {"text", sample.text},
                                {"logprobs", floats(sample.logprobs)},
                                {"raw_logprobs", floats(sample.raw_logprobs)},
                                {"support_logmass", floats(sample.support_logmass)},
                                {"finish_reason", to_string(sample.finish_reason)},
                                {"weight_digest", to_hex(weights.weight_digest)}};
  if (!echo.empty()) {
    // The first token has nothing before it, so no probability.
    std::vector<float> raw = {0.0f};
    for (const SampledToken& token : echo) raw.push_back(token.raw_logprob);
    out["prompt_raw_logprobs"] = floats(raw);
    out["prompt_raw_logprobs"][0] = nullptr;
  }
  std::puts(out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  return kExitOk;
}

int print_text(const GeneratedSample& sample, bool has_text, const std::vector<SampledToken>& echo,
               const std::vector<int32_t>& prompt_ids) {
  for (size_t i = 0; i < echo.size(); ++i) {
    std::printf("prompt token %zu  id %d  raw_logprob %.6f\n", i + 1, prompt_ids[i + 1],
                echo[i].raw_logprob);
  }
  if (has_text) {
    std::puts(sample.text.c_str());
    return kExitOk;
  }
  for (size_t i = 0; i < sample.token_ids.size(); ++i) {
    std::printf("%s%d", i == 0 ? "" : ",", sample.token_ids[i]);
  }
  std::puts("");
  return kExitOk;
}

int run(const Options& options, CommandContext& context) {
  const Result<Task> task = task_of(options);
  if (!task.ok()) return report_config_failure(task.status());
  const Result<ModelDevice> device = open_model_device(options.device);
  if (!device.ok()) return report_failure(device.status());
  const Result<WeightSetPtr> weights =
      load_weight_set(options.checkpoint, 1, options.quantise, *device);
  if (!weights.ok()) return report_failure(weights.status());
  const Result<TextParts> text = load_text_parts(options.checkpoint, options.tokenizer);
  if (!text.ok()) return report_failure(text.status());
  const Result<EncodedPrompt> prompt = text->encoder.encode(*task);
  if (!prompt.ok()) {
    if (text->tokenizer) return report_failure(invalid_argument(prompt.status().message()));
    return report_failure(not_found(prompt.status().message() + "; " + text->note));
  }
  const Result<GeneratedSample> sample =
      run_engine(*weights, *text, prompt->ids, options, device->runner, context.stop);
  if (!sample.ok()) return report_failure(sample.status());
  if (sample->finish_reason == FinishReason::kError) {
    return report_failure(data_loss(sample->error_type + ": " + sample->error_message));
  }
  std::vector<SampledToken> echo;
  if (options.echo_logprobs && prompt->ids.size() > 1) {
    Result<std::vector<SampledToken>> scores =
        score_tokens(**weights, device->runner, prompt->ids, 1, options.sampling);
    if (!scores.ok()) return report_failure(scores.status());
    echo = std::move(scores).value();
  }
  return options.json ? print_json(*sample, **weights, prompt->ids, echo)
                      : print_text(*sample, text->tokenizer != nullptr, echo, prompt->ids);
}

}  // namespace

void add_generate_command(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("generate", "Run one prompt on a checkpoint");
  command->footer(footer_with_examples(kExamples));
  auto options = std::make_shared<Options>();
  options->sampling.temperature = 0;
  options->sampling.max_tokens = 64;
  command->add_option("--checkpoint", options->checkpoint, "checkpoint directory")->required();
  command->add_option("--tokenizer", options->tokenizer,
                      "tokenizer.json; default: beside the checkpoint");
  CLI::Option_group* prompt = command->add_option_group("prompt", "exactly one of");
  prompt->add_option("--prompt-ids", options->prompt_ids, "token ids: 1,2,3")->delimiter(',');
  prompt->add_option("--prompt", options->prompt, "text");
  prompt->add_option("--chat", options->chat, "JSON file with messages");
  prompt->require_option(1);
  SamplingParams& sampling = options->sampling;
  command->add_option("--max-tokens", sampling.max_tokens, "sampled tokens at most")
      ->capture_default_str();
  command->add_option("--temperature", sampling.temperature, "0 = greedy")->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "1 = off")->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "0 = off")->capture_default_str();
  command->add_option("--min-p", sampling.min_p, "0 = off")->capture_default_str();
  command->add_option("--seed", sampling.seed, "of the random numbers")->capture_default_str();
  command->add_option("--stop", sampling.stop_strings, "end at this text; repeatable");
  command->add_flag("--ignore-eos", sampling.ignore_eos, "go on past the end-of-text token");
  add_device_options(*command, options->device);
  command->add_flag("--quantise-mxfp8", options->quantise, "quantise BF16 linear weights on load");
  command->add_flag("--json", options->json, "ids, logprobs, digest as one JSON object");
  command->add_flag("--echo-logprobs", options->echo_logprobs, "score the prompt's tokens too");
  command->callback([&context, options] { context.exit_code = run(*options, context); });
}

}  // namespace warproll
