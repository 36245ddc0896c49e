#include "weights_sync/update_receiver.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "protocol/bounded_queue.h"
#include "weights_sync/update_work.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kEventCapacity = 256;
constexpr size_t kJobCapacity = 1024;
// With more jobs than this waiting, messages are dropped: the trainer restates them.
constexpr size_t kBusyJobs = 256;
constexpr auto kIdleWait = std::chrono::seconds(3600);

auto installed(const UpdateId& id) {
  return [id](UpdateStateMachine& to, const Result<InstallReport>& report, int64_t) {
    return to.on_installed(id, report);
  };
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
      .count();
}
Clock::time_point time_of(int64_t ms) { return Clock::time_point(std::chrono::milliseconds(ms)); }

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

struct UpdateReceiver::Impl {
  using Event = std::function<UpdateActions(UpdateStateMachine& machine, int64_t now)>;
  using Job = std::function<void()>;

  explicit Impl(UpdateReceiverOptions given)
      : options(std::move(given)),
        arenas(options.max_arena_bytes, options.device),
        work(options, arenas) {}

  const UpdateReceiverOptions options;
  WeightArenas arenas;
  UpdateWork work;
  BoundedQueue<Event> events{kEventCapacity};
  BoundedQueue<Job> jobs{kJobCapacity};
  std::optional<UpdateStateMachine> machine;  // of the protocol thread, once started
  // Of the update that is being worked on. Protocol thread.
  UpdateId working_on;
  std::shared_ptr<Cancellation> cancellation;

  mutable std::mutex mutex;
  WeightStatus status;
  UpdateReceiverStats statistics;

  std::thread protocol_thread;
  std::thread work_thread;

  void run_protocol();
  void run_jobs();
  void perform(UpdateActions actions);
  void perform(const UpdateAction& action);
  void send(const Message& message);
  void begin_check(const UpdateBegin& begin);
  void discard(const UpdateId& id);
  void enqueue(Job job);
  void report(Event event);  // work thread: a job's result
  // On the work thread; then tell(machine, what it returned or threw, now).
  template <class Step, class Tell>
  void work_on(Step step, Tell tell);
  void publish_status();
};

void UpdateReceiver::Impl::run_protocol() {
  while (true) {
    const int64_t next = machine->next_tick_ms();
    const Clock::time_point idle = Clock::now() + kIdleWait;
    auto event = events.pop(next == INT64_MAX ? idle : std::min(idle, time_of(next)));
    if (!event && events.closed()) break;
    if (event) perform((*event)(*machine, now_ms()));
    perform(machine->tick(now_ms()));
    publish_status();
  }
  if (cancellation) cancellation->cancel();
}

void UpdateReceiver::Impl::run_jobs() {
  while (true) {
    auto job = jobs.pop(Clock::now() + kIdleWait);
    if (!job && jobs.closed()) return;
    if (job) (*job)();
  }
}

void UpdateReceiver::Impl::enqueue(Job job) {
  const QueueResult result = jobs.try_push(job);
  WARPROLL_CHECK(result != QueueResult::kTimeout, "the queue of update jobs is full");
}

void UpdateReceiver::Impl::report(Event event) {
  // Only a closed queue refuses it: the protocol thread never waits for this one.
  QueueResult result = QueueResult::kTimeout;
  while (result == QueueResult::kTimeout) result = events.push(event, Clock::now() + kIdleWait);
}

template <class Step, class Tell>
void UpdateReceiver::Impl::work_on(Step step, Tell tell) {
  enqueue([this, step = std::move(step), tell = std::move(tell)] {
    report([tell, result = attempt(step)](UpdateStateMachine& to, int64_t now) {
      return tell(to, result, now);
    });
  });
}

void UpdateReceiver::Impl::publish_status() {
  const std::lock_guard lock(mutex);
  status = machine->weight_status();
  statistics.protocol = machine->stats();
}

void UpdateReceiver::Impl::perform(UpdateActions actions) {
  if (actions.empty()) return;
  publish_status();  // so that whoever gets a message sees the state that goes with it
  for (const UpdateAction& action : actions) perform(action);
}

void UpdateReceiver::Impl::send(const Message& message) {
  const std::string* reason = nullptr;
  if (const auto* rejected = std::get_if<UpdateReject>(&message)) reason = &rejected->reason;
  if (const auto* failed = std::get_if<UpdateFailed>(&message)) reason = &failed->reason;
  if (reason != nullptr) {
    const std::lock_guard lock(mutex);
    statistics.last_failure = *reason;
  }
  options.send(message);
}

void UpdateReceiver::Impl::begin_check(const UpdateBegin& begin) {
  working_on = begin.id;
  cancellation = std::make_shared<Cancellation>();
  work_on([this, begin] { return work.check(begin); },
          [id = begin.id](UpdateStateMachine& to, const Status& checked, int64_t) {
            return to.on_checked(id, checked);
          });
}

void UpdateReceiver::Impl::discard(const UpdateId& id) {
  if (cancellation && working_on == id) cancellation->cancel();
  enqueue([this, id] { work.discard(id); });
}

void UpdateReceiver::Impl::perform(const UpdateAction& action) {
  std::visit(
      Overloaded{
          [this](const SendMessage& to_send) { send(to_send.message); },
          [this](const CheckManifest& check) { begin_check(check.begin); },
          [this](const AcquireStandby& acquire) {
            work_on([this, id = acquire.id]() -> Result<StandbyAnswer> { return work.acquire(id); },
                    [id = acquire.id](UpdateStateMachine& to, const Result<StandbyAnswer>& answer,
                                      int64_t now) {
                      return to.on_standby(
                          id, answer.ok() ? *answer : StandbyAnswer{.failure = answer.status()},
                          now);
                    });
          },
          [this](const ReceiveWeights& receive) {
            work_on([this, start = receive.start, by = time_of(receive.deadline_ms),
                     token = cancellation] { return work.receive(start, by, *token); },
                    [id = receive.start.id](UpdateStateMachine& to, const Status& received,
                                            int64_t) { return to.on_received(id, received); });
          },
          [this](const VerifyWeights& verify) {
            work_on(
                [this, id = verify.id] { return work.verify(id); },
                [id = verify.id](UpdateStateMachine& to, const Result<VerifiedWeights>& verified,
                                 int64_t) { return to.on_verified(id, verified); });
          },
          [this](const InstallWeights& install) {
            work_on([this, id = install.id] { return work.install(id); }, installed(install.id));
          },
          [this](const RollBack& roll_back) {
            work_on([this] { return work.roll_back(); }, installed(roll_back.id));
          },
          [this](const DiscardUpdate& discarded) { discard(discarded.id); },
          [this](const PinFallback& fallback) {
            if (options.pin_fallback) options.pin_fallback(fallback.weight_version);
          },
          [this](const RaiseAlarm& alarm) {
            if (options.alarm) options.alarm(alarm.text);
          }},
      action);
}

UpdateReceiver::UpdateReceiver(UpdateReceiverOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

UpdateReceiver::~UpdateReceiver() {
  impl_->events.close();
  if (impl_->protocol_thread.joinable()) impl_->protocol_thread.join();
  impl_->jobs.close();
  if (impl_->work_thread.joinable()) impl_->work_thread.join();
}

Result<StagedWeightsPtr> UpdateReceiver::load_initial(const std::string& directory,
                                                      uint64_t weight_version,
                                                      const ByteProgress& progress) {
  return load_initial([&](WeightArenas& arenas) -> Result<StagedWeightsPtr> {
    WARPROLL_TRY_ASSIGN(checkpoint, Checkpoint::open(directory));
    return load_staged(checkpoint, weight_version, impl_->options.layout, arenas, progress);
  });
}

Result<StagedWeightsPtr> UpdateReceiver::load_initial(const InitialLoad& load) {
  WARPROLL_CHECK(!impl_->machine, "load_initial() after start()");
  WARPROLL_TRY_ASSIGN(staged, load(impl_->arenas));
  impl_->arenas.set_serving(staged);
  // On a device while nobody decodes yet. Host memory is there once it is written.
  if (impl_->options.device && !impl_->options.transports.empty()) {
    WARPROLL_TRY(impl_->arenas.reserve_standby(staged->layout.total_bytes));
  }
  return staged;
}

void UpdateReceiver::start() {
  Impl& impl = *impl_;
  WARPROLL_CHECK(!impl.machine, "start() twice");
  VersionName serving;
  if (const StagedWeightsPtr weights = impl.arenas.serving()) {
    serving = {weights->weight_version, weights->weight_digest};
  }
  impl.machine.emplace(impl.options.protocol, serving);
  impl.publish_status();
  impl.work_thread = std::thread([&impl] { impl.run_jobs(); });
  impl.protocol_thread = std::thread([&impl] { impl.run_protocol(); });
}

void UpdateReceiver::handle(const Message& message) {
  Impl::Event event = [message](UpdateStateMachine& machine, int64_t now) {
    return machine.on_message(message, now);
  };
  if (impl_->jobs.size() < kBusyJobs && impl_->events.try_push(event) == QueueResult::kOk) return;
  const std::lock_guard lock(impl_->mutex);
  ++impl_->statistics.dropped_messages;
}

void UpdateReceiver::set_trainer_epoch(uint64_t trainer_epoch) {
  Impl::Event event = [trainer_epoch](UpdateStateMachine& machine, int64_t now) {
    return machine.on_trainer_epoch(trainer_epoch, now);
  };
  (void)impl_->events.try_push(event);  // every heartbeat says it again
}

WeightStatus UpdateReceiver::weight_status() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->status;
}

UpdateProgress UpdateReceiver::progress() const { return impl_->work.progress(); }

UpdateReceiverStats UpdateReceiver::stats() const {
  UpdateReceiverStats stats;
  {
    const std::lock_guard lock(impl_->mutex);
    stats = impl_->statistics;
  }
  stats.received_bytes = impl_->work.received_bytes();
  stats.arena_bytes = impl_->arenas.allocated_bytes();
  return stats;
}

StagedWeightsPtr UpdateReceiver::serving() const { return impl_->arenas.serving(); }

std::vector<std::string> UpdateReceiver::transport_names() const {
  std::vector<std::string> names;
  for (const BroadcastTransport* transport : impl_->options.transports) {
    names.emplace_back(transport->name());
  }
  return names;
}

}  // namespace warproll
