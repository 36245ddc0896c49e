// How a Trainer is put together; the loop is in trainer.cpp.
#include <filesystem>

#include "worker/trainer/trainer.h"

namespace warproll {
namespace {

// A worker's uncommitted messages must stay below half of the receive queue (S4).
int receive_hwm(const TrainerConfig& config) {
  return static_cast<int>(std::max<int64_t>(1000, 2 * config.credit_messages + 100));
}

BroadcasterOptions broadcaster_options(const TrainerConfig& config, uint64_t trainer_epoch) {
  BroadcasterOptions options;
  options.trainer_epoch = trainer_epoch;
  options.rule = config.checkpoints.quorum == 0 ? CommitRule::kAll : CommitRule::kQuorum;
  options.quorum = static_cast<uint32_t>(std::max<int64_t>(1, config.checkpoints.quorum));
  options.deadline_ms = static_cast<uint32_t>(config.checkpoints.deadline_ms);
  options.liveness_ms = static_cast<uint32_t>(config.liveness_ms);
  return options;
}

TrainerStreamOptions stream_options(const TrainerConfig& config) {
  TrainerStreamOptions options;
  options.receiver.store.directory = config.state_directory + "/store";
  options.receiver.receive_hwm_messages = static_cast<uint64_t>(receive_hwm(config));
  options.receiver.credit_messages = static_cast<uint64_t>(config.credit_messages);
  options.receiver.limits = {.max_message_bytes = static_cast<uint64_t>(config.max_message_mb)
                                                  << 20,
                             .heartbeat_ms = static_cast<uint32_t>(config.heartbeat_ms),
                             .liveness_ms = static_cast<uint32_t>(config.liveness_ms)};
  options.receiver.credit_bytes = std::max(static_cast<uint64_t>(config.credit_mb) << 20,
                                           options.receiver.limits.max_message_bytes);
  options.leases.adopt_grace_ms = static_cast<uint32_t>(config.liveness_ms);
  options.jsonl =
      TrajectoryJsonlOptions{.path = config.trajectories, .annotate = [](Trajectory& trajectory) {
                               trajectory.reward = exact_match_reward(trajectory);
                             }};
  return options;
}

}  // namespace

Trainer::Trainer(const TrainerConfig& config, Logger logger)
    : config_(config), logger_(std::move(logger)), started_(std::chrono::steady_clock::now()) {}

Status Trainer::open_socket() {
  const CurveConfig& curve = config_.curve;
  if (!curve.secret_key_file.empty()) {
    WARPROLL_TRY_ASSIGN(keys, read_keypair(curve.secret_key_file));
    WARPROLL_TRY_ASSIGN(allowed, read_allow_list(curve.allowed_clients_file));
    WARPROLL_TRY_ASSIGN(allow_list, CurveAllowList::start(context_, allowed));
    allow_list_ = std::move(allow_list);
    curve_ = CurveServer{keys, allow_list_.get()};
  }
  const Status allowed = check_endpoint(config_.bind, curve_.has_value(), config_.curve.insecure);
  WARPROLL_TRY(allowed.with_context("trainer.bind"));
  SocketOptions options;
  options.max_message_bytes = static_cast<uint64_t>(config_.max_message_mb) << 20;
  options.receive_hwm_messages = receive_hwm(config_);
  options.curve_server = curve_;
  WARPROLL_TRY_ASSIGN(socket, TrainerSocket::bind(context_, config_.bind, options));
  socket_.emplace(std::move(socket));
  return ok_status();
}

Status Trainer::open_parts() {
  std::error_code error;
  std::filesystem::create_directories(config_.state_directory, error);
  if (error) {
    return unavailable("trainer.state_directory " + config_.state_directory + ": " +
                       error.message());
  }
  WARPROLL_TRY_ASSIGN(stream, TrainerStream::open(stream_options(config_), started_));
  stream_ = std::move(stream);
  const uint64_t epoch = stream_->receiver().store().trainer_epoch();
  broadcaster_ = std::make_unique<Broadcaster>(broadcaster_options(config_, epoch));
  WARPROLL_TRY_ASSIGN(publisher, CheckpointPublisher::open(config_, context_, curve_));
  publisher_ = std::move(publisher);
  WARPROLL_TRY_ASSIGN(adopted, publisher_->adopt_current(*broadcaster_, now_ms(started_)));
  if (!adopted) logger_.warn("checkpoints.publish is empty: the workers keep what they serve");
  WARPROLL_TRY(count_taken());
  tokens_before_ = statistics_.tokens();
  if (config_.tasks.source != "none") {
    WARPROLL_TRY_ASSIGN(source, make_task_source(config_));
    WARPROLL_TRY_ASSIGN(
        feeder, TaskFeeder::open(std::move(source), config_.state_directory + "/issued.jsonl"));
    feeder_ = std::move(feeder);
  }
  return ok_status();
}

Result<std::unique_ptr<Trainer>> Trainer::create(const TrainerConfig& config, Logger logger) {
  std::unique_ptr<Trainer> trainer(new Trainer(config, std::move(logger)));
  WARPROLL_TRY(trainer->open_parts());
  WARPROLL_TRY(trainer->open_socket());
  const TrajectoryStore& store = trainer->stream_->receiver().store();
  trainer->logger_.info("listening on " + trainer->endpoint() + ", epoch " +
                        std::to_string(store.trainer_epoch()) + ", lineage " + store.lineage_id() +
                        ", " + std::to_string(store.num_taken()) + " trajectories taken so far");
  return trainer;
}

}  // namespace warproll
