#include "worker/commands/replay_to_trainer.h"

#include <chrono>
#include <cstdio>

#include "protocol/sockets.h"
#include "rollout/sample_log/log_reader.h"
#include "rollout/stream/replay_source.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/progress.h"
#include "worker/terminal/stop_signal.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kRound(5);
constexpr int kByeLingerMs = 1000;

Result<WorkerSocket> connect(ZmqContext& context, const ReplayToTrainerOptions& options) {
  SocketOptions socket_options;
  if (!options.secret_key_file.empty()) {
    WARPROLL_TRY_ASSIGN(keys, read_keypair(options.secret_key_file));
    socket_options.curve_client = CurveClient{keys, options.server_public_key};
  }
  return WorkerSocket::connect(context, options.endpoint, socket_options);
}

Status receive(WorkerSocket& socket, ReplaySource& source, Clock::time_point deadline) {
  for (;;) {
    WARPROLL_TRY_ASSIGN(received, socket.receive(deadline));
    if (!received.has_value()) return ok_status();
    deadline = Clock::now();
    WARPROLL_TRY(received->message.status());
    const Message message = std::move(received->message).value();
    if (const auto* welcome = std::get_if<Welcome>(&message)) {
      socket.set_peer_max_message_bytes(welcome->limits.max_message_bytes);
    }
    WARPROLL_TRY(source.on_message(message, deadline));
  }
}

Status send(WorkerSocket& socket, ReplaySource& source) {
  for (;;) {
    WARPROLL_TRY_ASSIGN(outgoing, source.next_outgoing(Clock::now()));
    if (!outgoing.has_value()) return ok_status();
    const Status sent = socket.send(outgoing->envelope, outgoing->message);
    if (sent.ok()) continue;
    source.send_failed(std::move(*outgoing), sent);
    if (sent.code() == StatusCode::kUnavailable) return ok_status();
  }
}

// Until everything is acknowledged; an error when nothing moves for the deadline.
Status run_loop(WorkerSocket& socket, ReplaySource& source, const ReplayToTrainerOptions& options,
                StopSignal& stop, Progress& progress) {
  Clock::time_point last_progress = Clock::now();
  uint64_t last_committed = 0;
  uint64_t last_read = 0;
  while (!source.done()) {
    if (stop.wait_until(Clock::now())) return aborted("replay stopped by a signal");
    WARPROLL_TRY(receive(socket, source, Clock::now() + kRound));
    const Clock::time_point now = Clock::now();
    source.tick(now);
    if (source.reconnect_due(now)) {
      WARPROLL_TRY(socket.reconnect());
      source.on_reconnected(now);
    }
    WARPROLL_TRY(send(socket, source));
    WARPROLL_TRY(source.stopped_because());
    const ReplayStats& stats = source.stats();
    progress.update(stats.committed);
    if (stats.committed != last_committed || stats.read != last_read) last_progress = now;
    last_committed = stats.committed;
    last_read = stats.read;
    if (now - last_progress > std::chrono::seconds(options.deadline_s)) {
      return deadline_exceeded(options.endpoint + ": no progress for " +
                               std::to_string(options.deadline_s) + " s, " +
                               std::to_string(stats.committed) + " of " +
                               std::to_string(stats.read) + " samples acknowledged so far");
    }
  }
  source.bye("replay is done");
  WARPROLL_TRY(send(socket, source));
  socket.close(kByeLingerMs);
  return ok_status();
}

Status replay(const std::string& directory, const LogSelection& selection,
              const ReplayToTrainerOptions& options, StopSignal& stop, ReplayStats* stats,
              std::vector<ReplayRefusal>* refusals) {
  WARPROLL_TRY_ASSIGN(cursor, open_selection(directory, selection));
  ReplayOptions replay_options;
  replay_options.mode = options.as_new ? ReplayMode::kAsNew : ReplayMode::kDedupe;
  replay_options.samples_per_s = options.samples_per_s;
  const auto hello = [] {
    Hello hello;  // no transports and no task slots: it takes no weights and no tasks
    hello.worker_name = "replay";
    hello.engine_version = "warproll " WARPROLL_VERSION;
    return hello;
  };
  ReplaySource source([&] { return cursor.next(); }, replay_options,
                      {hello, [] { return Heartbeat{}; }});
  ZmqContext context;
  WARPROLL_TRY_ASSIGN(socket, connect(context, options));
  Progress progress("replay", 0, ProgressUnit::kItems);
  const Status status = run_loop(socket, source, options, stop, progress);
  *stats = source.stats();
  *refusals = source.refusals();
  return status;
}

}  // namespace

int replay_to_trainer(const std::string& directory, const LogSelection& selection,
                      const ReplayToTrainerOptions& options, CommandContext& context) {
  ReplayStats stats;
  std::vector<ReplayRefusal> refusals;
  const Status status = replay(directory, selection, options, context.stop, &stats, &refusals);
  for (const ReplayRefusal& refusal : refusals) {
    std::printf("seq %llu refused (%s): %s\n", static_cast<unsigned long long>(refusal.source_seq),
                std::string(to_string(refusal.code)).c_str(), refusal.reason.c_str());
  }
  std::printf("%llu samples replayed, %llu acknowledged, %llu refused, %s sent\n",
              static_cast<unsigned long long>(stats.read),
              static_cast<unsigned long long>(stats.committed - stats.refused),
              static_cast<unsigned long long>(stats.refused),
              format_bytes(static_cast<double>(stats.sent_bytes)).c_str());
  if (!status.ok()) return report_failure(status);
  return refusals.empty() ? kExitOk : kExitFailed;
}

}  // namespace warproll
