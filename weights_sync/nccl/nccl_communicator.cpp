#include "weights_sync/nccl/nccl_communicator.h"

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kFirstPause(20);
constexpr std::chrono::microseconds kLongestPause(500);

bool is_failure(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

// The call on a thread of its own, awaited for at most `limit`; then the thread is left to itself.
bool returns_within(std::chrono::milliseconds limit, std::function<void()> call) {
  std::promise<void> promise;
  std::future<void> returned = promise.get_future();
  std::thread thread([call = std::move(call), promise = std::move(promise)]() mutable {
    call();
    promise.set_value_at_thread_exit();
  });
  if (returned.wait_for(limit) == std::future_status::ready) {
    thread.join();
    return true;
  }
  thread.detach();
  return false;
}

}  // namespace

Status NcclCommunicator::failure(const std::string& what, NcclResult result) const {
  return unavailable(name_ + ": " + what + ": " + api_->explain(result, comm_));
}

Status NcclCommunicator::limit_passed(Clock::time_point since, const std::string& what) const {
  if (limits_.cancellation != nullptr && limits_.cancellation->cancelled()) {
    return aborted(name_ + ": cancelled at: " + what);
  }
  const Clock::time_point now = Clock::now();
  if (now >= limits_.deadline) {
    return deadline_exceeded(name_ + ": the deadline passed at: " + what);
  }
  if (now >= since + limits_.silence) {
    return unavailable(name_ + ": nothing moved for " + std::to_string(limits_.silence.count()) +
                       " ms at: " + what + "; NCCL reports no error");
  }
  return ok_status();
}

Status NcclCommunicator::poll(const std::string& what,
                              const std::function<Result<bool>()>& is_done) {
  const Clock::time_point since = Clock::now();
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const Result<bool> done = is_done();
    if (!done.ok()) return done.status().with_context(name_ + ": " + what);
    if (*done) return ok_status();
    if (const NcclResult state = api_->async_error(comm_); is_failure(state)) {
      return failure(what, state);
    }
    WARPROLL_TRY(limit_passed(since, what));
    std::this_thread::sleep_for(pause);
  }
}

Status NcclCommunicator::finished(NcclResult result, const std::string& what) {
  if (is_failure(result)) return failure(what, result);
  if (result == NcclResult::kSuccess) return ok_status();
  return poll(
      what, [this]() -> Result<bool> { return api_->async_error(comm_) == NcclResult::kSuccess; });
}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::form(std::shared_ptr<NcclApi> api,
                                                                 const NcclMembership& membership,
                                                                 const std::string& name,
                                                                 const NcclLimits& limits) {
  const std::string ranks =
      "rank " + std::to_string(membership.rank) + " of " + std::to_string(membership.num_ranks);
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(std::move(api), "nccl group of " + name + ", " + ranks, limits));
  WARPROLL_TRY(made->limit_passed(Clock::now(), "forming the group"));
  const NcclResult begun = made->api_->init(membership, &made->comm_);
  WARPROLL_TRY(made->finished(begun, "forming the group"));
  return made;
}

NcclCommunicator::~NcclCommunicator() { abort(); }

Status NcclCommunicator::register_buffer(void* buffer, uint64_t bytes) {
  NcclRegistration registration = nullptr;
  const NcclResult result = api_->register_buffer(comm_, buffer, bytes, &registration);
  if (registration != nullptr) registrations_.push_back(registration);
  return finished(result, "registering " + std::to_string(bytes) + " bytes");
}

Status NcclCommunicator::broadcast(void* buffer, uint64_t bytes, GpuStream stream,
                                   const std::string& what) {
  return finished(api_->broadcast(comm_, buffer, bytes, stream), what);
}

Status NcclCommunicator::meet(void* word, GpuStream stream) {
  WARPROLL_TRY(finished(api_->reduce(comm_, word, stream), "the closing reduce"));
  return broadcast(word, sizeof(uint32_t), stream, "the closing broadcast");
}

Status NcclCommunicator::await(GpuEvent event, const std::string& what) {
  return poll(what, [this, event] { return api_->done(event); });
}

void NcclCommunicator::close() {
  if (comm_ == nullptr) return;
  const bool deregistered =  // which waits for an answer of others
      registrations_.empty() ||
      returns_within(limits_.ending, [api = api_, comm = comm_, all = registrations_] {
        if (!api->bind_thread().ok()) return;
        for (NcclRegistration const each : all) (void)api->deregister_buffer(comm, each);
      });
  if (!deregistered) return abort();
  const Clock::time_point until = Clock::now() + limits_.ending;
  NcclResult state = api_->finalize(comm_);
  while (state == NcclResult::kInProgress && Clock::now() < until) {
    std::this_thread::sleep_for(kLongestPause);
    state = api_->async_error(comm_);
  }
  if (state != NcclResult::kSuccess) return abort();
  NcclComm const comm = std::exchange(comm_, nullptr);
  (void)returns_within(limits_.ending, [api = api_, comm] {
    if (api->bind_thread().ok()) (void)api->destroy(comm);
  });
}

void NcclCommunicator::abort() {
  NcclComm const comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return;
  (void)returns_within(limits_.ending, [api = api_, comm] {
    if (api->bind_thread().ok()) (void)api->abort(comm);
  });
}

}  // namespace warproll
