// Well-formed random records and messages from a seeded generator.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "protocol/chunks.h"
#include "protocol/messages.h"
#include "protocol/records.h"

namespace warproll::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool flip() { return between(0, 1) == 1; }
  uint64_t bits() { return engine_(); }
  int32_t count(int32_t most) { return static_cast<int32_t>(between(0, most)); }
  float log_probability() { return -static_cast<float>(between(0, 1'000'000)) / 65536.0f; }

  std::string text(int32_t most) {  // ASCII, NUL, and 2 to 4 byte sequences
    static const std::vector<std::string> kPieces = {
        "a", "Z", "0", " ", "\n", std::string(1, '\0'), "é", "Ж", "€", "漢", "😀", "\U0010FFFF"};
    std::string result;
    for (int32_t i = count(most); i > 0; --i) result += kPieces[bits() % kPieces.size()];
    return result;
  }
  std::string name() { return "n" + text(12); }
  std::string opaque(int32_t most) {
    std::string result;
    for (int32_t i = count(most); i > 0; --i) result += static_cast<char>(bits());
    return result;
  }
  std::vector<std::string> texts(int32_t most) {
    std::vector<std::string> result;
    for (int32_t i = count(most); i > 0; --i) result.push_back(text(9));
    return result;
  }
  Digest digest() {
    Digest result;
    for (auto& byte : result) byte = static_cast<uint8_t>(bits());
    result[0] |= 1;  // never all zero
    return result;
  }
  std::vector<int32_t> ids(int32_t n) {
    std::vector<int32_t> result(static_cast<size_t>(n));
    for (auto& id : result) id = static_cast<int32_t>(between(0, 151'935));
    return result;
  }
  Bytes bytes(size_t n) {
    Bytes result(n);
    for (auto& byte : result) byte = static_cast<std::byte>(bits());
    return result;
  }
  template <typename Enum>
  Enum pick(Enum last) {
    return static_cast<Enum>(between(0, static_cast<int64_t>(last)));
  }

 private:
  std::mt19937_64 engine_;
};

inline SamplingParams random_sampling(Random& random) {
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(random.between(0, 200)) / 100.0f;
  sampling.top_p = static_cast<float>(random.between(1, 100)) / 100.0f;
  sampling.top_k = random.count(50);
  sampling.min_p = static_cast<float>(random.between(0, 100)) / 100.0f;
  sampling.max_tokens = static_cast<int32_t>(random.between(1, 4096));
  sampling.stop_token_ids = random.ids(random.count(3));
  for (int32_t i = random.count(3); i > 0; --i) sampling.stop_strings.push_back(random.name());
  sampling.ignore_eos = random.flip();
  sampling.seed = random.bits();
  return sampling;
}

inline Task random_task(Random& random) {
  Task task;
  task.task_id = random.name();
  if (random.flip()) task.group_id = random.name();
  task.group_size = static_cast<int32_t>(random.between(1, 32));
  switch (random.count(2)) {
    case 0:
      task.prompt_ids = random.ids(static_cast<int32_t>(random.between(1, 40)));
      break;
    case 1:
      task.prompt_text = random.name();
      break;
    default:
      for (int64_t i = random.between(1, 4); i > 0; --i) {
        task.messages.push_back({random.pick(Role::kTool), random.text(20)});
      }
  }
  task.sampling = random_sampling(random);
  task.in_flight = random.pick(InFlightPolicy::kPin);
  task.deadline_ms = static_cast<uint32_t>(random.bits());
  task.return_routes = random.flip();
  task.metadata = random.opaque(30);
  for (int32_t i = 0; i < task.group_size; ++i) {
    if (random.between(0, 3) == 0) task.sample_indices.push_back(i);
  }
  return task;
}

inline void random_versions(Random& random, Trajectory* t) {
  const int32_t total = static_cast<int32_t>(t->token_ids.size());
  uint64_t version = random.bits() >> 16;
  for (int32_t start = t->prompt_len; start < total;
       start += static_cast<int32_t>(random.between(1, 9))) {
    if (!t->version_runs.empty()) {
      ++version;
      t->events.push_back({start, random.pick(EventKind::kFlipRecompute), version});
    }
    t->version_runs.push_back({start, version});
    t->version_digests.push_back({version, random.digest()});
  }
  if (!t->version_runs.empty()) {
    t->events.push_back({total, EventKind::kPreemptRecompute, version});
  }
}

inline RoutedExperts random_routes(Random& random, int32_t num_tokens) {
  RoutedExperts routes;
  routes.num_tokens = num_tokens;
  routes.num_layers = static_cast<int32_t>(random.between(1, 3));
  routes.top_k = static_cast<int32_t>(random.between(1, 4));
  routes.bytes_per_id = static_cast<uint8_t>(random.between(1, 2));
  routes.data.resize(static_cast<size_t>(num_tokens) * static_cast<size_t>(routes.num_layers) *
                     static_cast<size_t>(routes.top_k) * routes.bytes_per_id);
  for (auto& byte : routes.data) byte = static_cast<uint8_t>(random.bits());
  return routes;
}

inline void random_tokens(Random& random, Trajectory* t) {
  const bool early =
      t->finish_reason == FinishReason::kAbort || t->finish_reason == FinishReason::kError;
  t->prompt_len = static_cast<int32_t>(random.between(1, 20));
  const int32_t total = t->prompt_len + static_cast<int32_t>(random.between(early ? 0 : 1, 40));
  t->token_ids = random.ids(total);
  for (int32_t i = 0; i < total; ++i) {
    const bool sampled = i >= t->prompt_len && random.between(0, 9) != 0;
    t->loss_mask.push_back(sampled ? 1 : 0);
    t->logprobs.push_back(sampled ? random.log_probability() : 0.0f);
    t->raw_logprobs.push_back(sampled ? random.log_probability() : 0.0f);
    t->support_logmass.push_back(sampled ? random.log_probability() : 0.0f);
  }
}

inline Trajectory random_trajectory(Random& random) {
  Trajectory t;
  t.producer_id = random.digest();
  t.epoch = random.bits();
  t.seq = static_cast<uint64_t>(random.between(1, int64_t{1} << 40));
  t.trajectory_id = to_hex(t.producer_id) + "-" + std::to_string(t.seq);
  t.task_id = random.name();
  t.group_id = random.name();
  t.sample_index = random.count(31);
  t.finish_reason = random.pick(FinishReason::kError);
  random_tokens(random, &t);
  random_versions(random, &t);
  if (random.flip()) {
    t.routed_experts = random_routes(random, static_cast<int32_t>(t.token_ids.size()) - 1);
  }
  t.role_spans = {{0, t.prompt_len, Role::kUser}};
  t.text = random.text(60);
  if (random.flip()) {
    t.reward = Reward{random.log_probability(), {}};
    for (int32_t i = random.count(3); i > 0; --i) {
      t.reward->components.emplace_back(random.name(), random.log_probability());
    }
  }
  if (t.finish_reason == FinishReason::kAbort || t.finish_reason == FinishReason::kError) {
    t.error_type = random.name();
    t.error_message = random.text(20);
  }
  t.sampling = random_sampling(random);
  t.in_flight = random.pick(InFlightPolicy::kPin);
  t.timings = {random.between(0, INT64_MAX), random.between(0, INT64_MAX),
               random.between(0, INT64_MAX), random.between(0, INT64_MAX)};
  t.model = random.name();
  t.activation_dtype = random.flip() ? "f32" : "bf16";
  t.tokenizer_digest = random.digest();
  t.engine_version = random.name();
  t.metadata = random.opaque(30);
  return t;
}

inline WeightStatus random_weights(Random& random) {
  return {random.bits(),
          random.digest(),
          random.pick(UpdateState::kAborted),
          random.bits(),
          static_cast<uint32_t>(random.bits()),
          random.flip(),
          random.bits()};
}

inline UpdateId random_id(Random& random) {
  return {random.bits(), random.bits(), static_cast<uint32_t>(random.bits())};
}

inline Hello random_hello(Random& random) {
  Hello hello;
  hello.worker_name = random.name();
  hello.engine_version = random.name();
  hello.model = random.name();
  hello.model_config_digest = random.digest();
  hello.tokenizer_digest = random.digest();
  hello.vocab_size = random.count(200'000);
  hello.max_context_tokens = random.count(1 << 20);
  hello.state = random.pick(WorkerState::kStopping);
  hello.weights = random_weights(random);
  hello.last_seq = random.bits();
  hello.commit_upto = random.bits();
  hello.lineage_id = random.text(9);
  hello.transports = random.texts(3);
  hello.open_task_ids = random.texts(40);
  for (int32_t i = random.count(3); i > 0; --i) {
    hello.environment.emplace_back(random.name(), random.text(9));
  }
  return hello;
}

// One of every kind, in the order of the variant.
inline std::vector<Message> random_messages(Random& random) {
  const auto u32 = [&] { return static_cast<uint32_t>(random.bits()); };
  const auto u64 = [&] { return random.bits(); };
  const auto text = [&] { return random.text(20); };
  Data data;
  (void)encode_trajectory(random_trajectory(random), &data.record, &data.tensors);
  data.replayed = random.flip();
  return {
      random_hello(random),
      Welcome{text(), u64(), u64(), u64(), u64(), {u64(), u32(), u32()}},
      Heartbeat{random.pick(WorkerState::kStopping), random_weights(random), u64(), u32(), u32(),
                u32(), u64()},
      Bye{text(), random.texts(9)},
      NeedHello{text()},
      Fenced{u64()},
      Pause{random.flip()},
      Drain{},
      TaskMessage{random_task(random), u64()},
      TaskAck{text(), u64(), random.pick(TaskAnswer::kBusy), text()},
      Cancel{text(), text()},
      data,
      Gap{u64() / 2 + 1, u64() / 2 + UINT64_MAX / 2, text()},
      Ack{text(), u64(), u64(), u64(), u64()},
      Nack{u64(), random.pick(NackCode::kRetry), text()},
      UpdateBegin{random_id(random), text(), text(), text(), random.opaque(50), u32()},
      UpdateAccept{random_id(random)},
      UpdateReject{random_id(random), text()},
      UpdateDefer{random_id(random), u32(), u32()},
      UpdateStart{random_id(random), random.texts(4), random.opaque(128)},
      UpdateReady{random_id(random), random.digest(), random.digest(), u64(), u32()},
      UpdateFailed{random_id(random), text()},
      UpdateCommit{random_id(random)},
      UpdateAbort{random_id(random), text()},
      UpdateCommitted{random_id(random), random.digest(), u64(), u32(), u32()},
      Rollback{random_id(random)},
      RollbackDone{random_id(random), random.flip(), text()},
  };
}

inline Envelope random_envelope(Random& random) {
  return {random.digest(), random.bits(), random.bits()};
}

}  // namespace warproll::testing
