// NCCL and GPUs as a toy in host memory, with every failure that the transport has to survive.
// A FakeCluster holds the state of all ranks; each rank has a FakeNccl. Streams are queues of work
// that is done, in order, whenever somebody asks for an event; a broadcast is done when it is the
// head of every rank's queue. Thread: any; one mutex.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "weights_sync/nccl/nccl_api.h"

namespace warproll {

struct FakeFaults {
  bool death_is_noticed = true;        // an aborted rank shows as kRemoteError at the others
  int64_t hold_from = -1;              // collectives from this one on never end; -1 = none
  int64_t error_from = -1;             // from this one on: kSystemError at every rank
  bool abort_hangs = false;            // until release()
  bool finalize_hangs = false;         // stays kInProgress
  bool init_fails = false;             // returns kInvalidUsage at once
  bool kernels_outlive_abort = false;  // their streams stay busy
  uint64_t memory_bytes = UINT64_MAX;  // of one GPU
};

class FakeCluster {
 public:
  void set(const FakeFaults& faults);
  void release();  // calls that hang return
  // The `count`-th collective of a group has been done at all ranks.
  bool wait_for_collectives(uint64_t count, std::chrono::milliseconds limit);
  uint64_t broadcasts_of_registered();
  // Communicators, registrations, memory, streams, events and ids that are not given back.
  std::string left_over();

 private:
  friend class FakeNccl;
  struct Group {
    int32_t num_ranks = 0;
    std::set<int32_t> joined;
    std::set<int32_t> finalized;
    bool broken = false;
    uint64_t done = 0;  // collectives
    std::map<int32_t, std::byte*> at_head;
    std::set<int32_t> registered_at_head;  // ranks of at_head whose buffer is registered
    bool mixed = false;  // registered buffers met some that were not: no result is defined
  };
  struct Comm {
    std::shared_ptr<Group> group;
    int32_t rank = 0;
    bool finalizing = false;
    bool gone = false;                          // aborted or destroyed
    std::map<std::byte*, uint64_t> registered;  // bytes from there on
    [[nodiscard]] bool has_registered(const std::byte* buffer, uint64_t bytes) const;
  };
  struct Event {
    uint64_t wanted = 0;  // records enqueued
    uint64_t done = 0;
  };
  struct Work {
    std::shared_ptr<Comm> comm;  // of a collective
    std::byte* buffer = nullptr;
    uint64_t bytes = 0;
    std::function<bool()> run;  // of other work: false = not yet
  };
  struct Stream {
    std::deque<Work> queue;
  };
  void pump();
  bool run_collective(Work& work);
  NcclResult state_of(const Comm& comm) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  FakeFaults faults_;
  bool released_ = false;
  uint64_t next_id_ = 0;
  uint64_t most_done_ = 0;
  uint64_t registered_done_ = 0;
  uint64_t registrations_left_ = 0;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  std::set<std::string> waiting_ids_;
  std::map<void*, std::shared_ptr<Comm>> comms_;
  std::map<void*, std::unique_ptr<Stream>> streams_;
  std::map<void*, std::unique_ptr<Event>> events_;
  std::map<void*, std::vector<std::byte>> memory_;
};

class FakeNccl final : public NcclApi {
 public:
  explicit FakeNccl(FakeCluster& cluster, std::string version = "2.28.9")
      : cluster_(cluster), version_(std::move(version)) {}

  std::string version() const override { return version_; }
  Result<std::string> make_unique_id() override;
  void forget_unique_id(const std::string& unique_id) override;
  NcclResult init(const NcclMembership& membership, NcclComm* comm) override;
  NcclResult async_error(NcclComm comm) override;
  NcclResult broadcast(NcclComm comm, void* buffer, uint64_t bytes, GpuStream stream) override;
  NcclResult reduce(NcclComm comm, void* word, GpuStream stream) override;
  NcclResult register_buffer(NcclComm comm, void* buffer, uint64_t bytes,
                             NcclRegistration* registration) override;
  NcclResult deregister_buffer(NcclComm comm, NcclRegistration registration) override;
  NcclResult finalize(NcclComm comm) override;
  NcclResult destroy(NcclComm comm) override;
  NcclResult abort(NcclComm comm) override;
  std::string explain(NcclResult result, NcclComm comm) override;
  Status bind_thread() override { return ok_status(); }
  Result<void*> allocate(uint64_t bytes) override;
  void free(void* memory) override;
  Result<void*> allocate_pinned(uint64_t bytes) override { return allocate(bytes); }
  void free_pinned(void* memory) override { free(memory); }
  Result<GpuStream> make_stream(StreamPriority priority) override;
  void destroy_stream(GpuStream stream) override;
  Result<GpuEvent> make_event() override;
  void destroy_event(GpuEvent event) override;
  Status record(GpuEvent event, GpuStream stream) override;
  Status wait(GpuStream stream, GpuEvent event) override;
  Result<bool> done(GpuEvent event) override;
  Status copy(void* to, const void* from, uint64_t bytes, GpuStream stream) override;

 private:
  void enqueue(GpuStream stream, FakeCluster::Work work);  // locked
  NcclResult collective(NcclComm comm, void* buffer, uint64_t bytes, GpuStream stream);

  FakeCluster& cluster_;
  const std::string version_;
};

}  // namespace warproll
