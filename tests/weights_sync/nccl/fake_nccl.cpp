#include "tests/weights_sync/nccl/fake_nccl.h"

#include <chrono>
#include <cstring>
#include <utility>

namespace warproll {

void FakeCluster::set(const FakeFaults& faults) {
  const std::lock_guard lock(mutex_);
  faults_ = faults;
}

void FakeCluster::release() {
  const std::lock_guard lock(mutex_);
  released_ = true;
  changed_.notify_all();
}

bool FakeCluster::wait_for_collectives(uint64_t count, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return most_done_ >= count; });
}

bool FakeCluster::Comm::has_registered(const std::byte* buffer, uint64_t bytes) const {
  for (const auto& [begin, size] : registered) {
    if (buffer >= begin && buffer + bytes <= begin + size) return true;
  }
  return false;
}

uint64_t FakeCluster::broadcasts_of_registered() {
  const std::lock_guard lock(mutex_);
  return registered_done_;
}

std::string FakeCluster::left_over() {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto count = [&text](const char* what, size_t number) {
    if (number != 0) text += std::to_string(number) + " " + what + " ";
  };
  count("communicators", comms_.size());
  count("registrations", registrations_left_);
  count("allocations", memory_.size());
  count("streams", streams_.size());
  count("events", events_.size());
  count("ids", waiting_ids_.size());
  return text;
}

NcclResult FakeCluster::state_of(const Comm& comm) const {
  const Group& group = *comm.group;
  if (faults_.error_from >= 0 && group.done >= static_cast<uint64_t>(faults_.error_from)) {
    return NcclResult::kSystemError;
  }
  if (group.mixed) return NcclResult::kInvalidUsage;
  if (group.broken && faults_.death_is_noticed) return NcclResult::kRemoteError;
  if (static_cast<int32_t>(group.joined.size()) < group.num_ranks) return NcclResult::kInProgress;
  if (comm.finalizing &&
      (faults_.finalize_hangs || static_cast<int32_t>(group.finalized.size()) < group.num_ranks)) {
    return NcclResult::kInProgress;
  }
  return NcclResult::kSuccess;
}

// Done when it is the head of every rank's queue; of an aborted rank: dropped.
bool FakeCluster::run_collective(Work& work) {
  Group& group = *work.comm->group;
  if (work.comm->gone) return !faults_.kernels_outlive_abort || released_;
  if (group.broken) return false;
  if (faults_.hold_from >= 0 && group.done >= static_cast<uint64_t>(faults_.hold_from)) {
    return false;
  }
  group.at_head[work.comm->rank] = work.buffer;
  if (work.comm->has_registered(work.buffer, work.bytes))
    group.registered_at_head.insert(work.comm->rank);
  if (static_cast<int32_t>(group.at_head.size()) < group.num_ranks) return false;
  const auto num_registered = static_cast<int32_t>(group.registered_at_head.size());
  group.mixed = group.mixed || (num_registered != 0 && num_registered != group.num_ranks);
  if (group.mixed) return false;
  if (num_registered != 0) ++registered_done_;
  group.registered_at_head.clear();
  for (const auto& [rank, buffer] : group.at_head) {
    if (rank != 0) std::memcpy(buffer, group.at_head[0], work.bytes);
  }
  group.at_head.clear();
  ++group.done;
  most_done_ = std::max(most_done_, group.done);
  changed_.notify_all();
  for (auto& [handle, stream] : streams_) {  // it leaves the other ranks' queues too
    if (stream->queue.empty() || &stream->queue.front() == &work) continue;
    const auto& head = stream->queue.front();
    if (head.comm && head.comm->group == work.comm->group) stream->queue.pop_front();
  }
  return true;
}

void FakeCluster::pump() {
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& [handle, stream] : streams_) {
      while (!stream->queue.empty()) {
        Work& head = stream->queue.front();
        if (!(head.comm ? run_collective(head) : head.run())) break;
        stream->queue.pop_front();
        moved = true;
      }
    }
  }
}

Result<std::string> FakeNccl::make_unique_id() {
  const std::lock_guard lock(cluster_.mutex_);
  const std::string id = "id " + std::to_string(++cluster_.next_id_);
  cluster_.waiting_ids_.insert(id);
  return id;
}

void FakeNccl::forget_unique_id(const std::string& unique_id) {
  const std::lock_guard lock(cluster_.mutex_);
  cluster_.waiting_ids_.erase(unique_id);
}

NcclResult FakeNccl::init(const NcclMembership& membership, NcclComm* comm) {
  const std::lock_guard lock(cluster_.mutex_);
  if (cluster_.faults_.init_fails) return NcclResult::kInvalidUsage;
  auto& group = cluster_.groups_[membership.unique_id];
  if (!group) group = std::make_shared<FakeCluster::Group>();
  group->num_ranks = membership.num_ranks;
  group->joined.insert(membership.rank);
  if (static_cast<int32_t>(group->joined.size()) == group->num_ranks) {
    cluster_.waiting_ids_.erase(membership.unique_id);
  }
  auto made = std::make_shared<FakeCluster::Comm>();
  made->group = group;
  made->rank = membership.rank;
  *comm = made.get();
  cluster_.comms_[*comm] = std::move(made);
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::async_error(NcclComm comm) {
  const std::lock_guard lock(cluster_.mutex_);
  return cluster_.state_of(*cluster_.comms_.at(comm));
}

void FakeNccl::enqueue(GpuStream stream, FakeCluster::Work work) {
  cluster_.streams_.at(stream)->queue.push_back(std::move(work));
}

NcclResult FakeNccl::collective(NcclComm comm, void* buffer, uint64_t bytes, GpuStream stream) {
  const std::lock_guard lock(cluster_.mutex_);
  const auto& state = cluster_.comms_.at(comm);
  enqueue(stream, {state, static_cast<std::byte*>(buffer), bytes, {}});
  return NcclResult::kInProgress;  // as NCCL may; async_error() then says kSuccess
}

NcclResult FakeNccl::broadcast(NcclComm comm, void* buffer, uint64_t bytes, GpuStream stream) {
  return collective(comm, buffer, bytes, stream);
}

NcclResult FakeNccl::reduce(NcclComm comm, void* word, GpuStream stream) {
  return collective(comm, word, 0, stream);
}

NcclResult FakeNccl::register_buffer(NcclComm comm, void* buffer, uint64_t bytes,
                                     NcclRegistration* registration) {
  const std::lock_guard lock(cluster_.mutex_);
  cluster_.comms_.at(comm)->registered[static_cast<std::byte*>(buffer)] = bytes;
  *registration = buffer;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::deregister_buffer(NcclComm comm, NcclRegistration registration) {
  const std::lock_guard lock(cluster_.mutex_);
  const size_t erased =
      cluster_.comms_.at(comm)->registered.erase(static_cast<std::byte*>(registration));
  return erased == 1 ? NcclResult::kSuccess : NcclResult::kInvalidArgument;
}

NcclResult FakeNccl::finalize(NcclComm comm) {
  const std::lock_guard lock(cluster_.mutex_);
  FakeCluster::Comm& state = *cluster_.comms_.at(comm);
  state.finalizing = true;
  state.group->finalized.insert(state.rank);
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::destroy(NcclComm comm) {
  const std::lock_guard lock(cluster_.mutex_);
  cluster_.comms_.at(comm)->gone = true;
  cluster_.registrations_left_ += cluster_.comms_.at(comm)->registered.size();
  cluster_.comms_.erase(comm);
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::abort(NcclComm comm) {
  std::unique_lock lock(cluster_.mutex_);
  if (cluster_.faults_.abort_hangs) {
    cluster_.changed_.wait(lock, [this] { return cluster_.released_; });
  }
  FakeCluster::Comm& state = *cluster_.comms_.at(comm);
  state.gone = true;
  state.group->broken = true;
  state.group->at_head.erase(state.rank);
  state.group->registered_at_head.erase(state.rank);
  cluster_.comms_.erase(comm);
  cluster_.pump();
  return NcclResult::kSuccess;
}

std::string FakeNccl::explain(NcclResult result, NcclComm) {
  switch (result) {
    case NcclResult::kRemoteError:
      return "remote process exited or there was a network error";
    case NcclResult::kSystemError:
      return "unhandled system error (connection refused)";
    default:
      return "result " + std::to_string(static_cast<int>(result));
  }
}

Result<void*> FakeNccl::allocate(uint64_t bytes) {
  const std::lock_guard lock(cluster_.mutex_);
  if (bytes > cluster_.faults_.memory_bytes) {
    return resource_exhausted(std::to_string(bytes) + " bytes of GPU memory: out of memory");
  }
  std::vector<std::byte> memory(std::max<uint64_t>(1, bytes), std::byte{0xee});
  void* const at = memory.data();
  cluster_.memory_[at] = std::move(memory);
  return at;
}

void FakeNccl::free(void* memory) {
  const std::lock_guard lock(cluster_.mutex_);
  cluster_.memory_.erase(memory);
}

Result<GpuStream> FakeNccl::make_stream(StreamPriority) {
  const std::lock_guard lock(cluster_.mutex_);
  auto stream = std::make_unique<FakeCluster::Stream>();
  void* const at = stream.get();
  cluster_.streams_[at] = std::move(stream);
  return at;
}

void FakeNccl::destroy_stream(GpuStream stream) {
  const std::lock_guard lock(cluster_.mutex_);
  cluster_.streams_.erase(stream);
}

Result<GpuEvent> FakeNccl::make_event() {
  const std::lock_guard lock(cluster_.mutex_);
  auto event = std::make_unique<FakeCluster::Event>();
  void* const at = event.get();
  cluster_.events_[at] = std::move(event);
  return at;
}

void FakeNccl::destroy_event(GpuEvent event) {
  const std::lock_guard lock(cluster_.mutex_);
  cluster_.events_.erase(event);
}

Status FakeNccl::record(GpuEvent event, GpuStream stream) {
  const std::lock_guard lock(cluster_.mutex_);
  FakeCluster::Event* const at = cluster_.events_.at(event).get();
  const uint64_t number = ++at->wanted;
  enqueue(stream, {nullptr, nullptr, 0, [at, number] { return at->done = number, true; }});
  return ok_status();
}

Status FakeNccl::wait(GpuStream stream, GpuEvent event) {
  const std::lock_guard lock(cluster_.mutex_);
  FakeCluster::Event* const at = cluster_.events_.at(event).get();
  const uint64_t number = at->wanted;
  enqueue(stream, {nullptr, nullptr, 0, [at, number] { return at->done >= number; }});
  return ok_status();
}

Result<bool> FakeNccl::done(GpuEvent event) {
  const std::lock_guard lock(cluster_.mutex_);
  cluster_.pump();
  const FakeCluster::Event& at = *cluster_.events_.at(event);
  return at.done >= at.wanted;
}

Status FakeNccl::copy(void* to, const void* from, uint64_t bytes, GpuStream stream) {
  const std::lock_guard lock(cluster_.mutex_);
  enqueue(stream, {nullptr, nullptr, 0, [=] { return std::memcpy(to, from, bytes), true; }});
  return ok_status();
}

}  // namespace warproll
