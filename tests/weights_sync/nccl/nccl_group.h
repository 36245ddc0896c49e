// A trainer's NcclSource and the receives of some workers, on threads, over a FakeCluster.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/weights_sync/nccl/fake_nccl.h"
#include "tests/weights_sync/update_fixtures.h"
#include "weights_sync/nccl/nccl_source.h"
#include "weights_sync/nccl/nccl_transport.h"

namespace warproll {

using std::chrono::milliseconds;
using update_fixtures::Clock;
using update_fixtures::in_ms;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlow = 10;  // everything takes longer, so patience does
#else
inline constexpr int kSlow = 1;
#endif
// How long nothing may move, and ending may take. A hang is what few tests are about; the others are not
// to fail because a thread gets no CPU for a moment.
struct Patience {
  milliseconds silence{10'000 * kSlow};
  milliseconds ending{5'000 * kSlow};
};
inline constexpr Patience kImpatient{milliseconds(400 * kSlow), milliseconds(200 * kSlow)};

// Of one that knows nothing of registered slots.
inline HelloEnvironment without_slots(HelloEnvironment terms) {
  std::erase_if(terms, [](const auto& term) { return term.first == "nccl.slots"; });
  return terms;
}

struct FakeMember {
  explicit FakeMember(FakeCluster& cluster, uint64_t stream_bytes, const Patience& patience = {})
      : transport(std::make_unique<NcclTransport>(
            std::make_shared<FakeNccl>(cluster),
            NcclTransportOptions{
                .max_ctas = 4, .silence = patience.silence, .ending = patience.ending})),
        stream(stream_bytes) {}
  std::unique_ptr<NcclTransport> transport;  // keeps its staging slots
  update_fixtures::StreamCollector stream;
  Cancellation cancellation;
  Status status = internal_error("did not run");
  std::thread thread;

  // From `source`, into the collector; by the device's way or the host's.
  void receive(const OfferedCheckpoint& offered, ReceiveRequest request, bool on_device) {
    if (on_device) {
      request.device_sink = [this](uint64_t offset, std::span<const std::byte> bytes, void*) {
        return stream.take(offset, bytes);  // memory of the fake GPU is the host's
      };
    }
    thread = std::thread([this, offered, request = std::move(request)] {
      status = transport->receive(request, *offered.manifest, stream.sink(), cancellation);
    });
  }
};

class FakeFleet {
 public:
  explicit FakeFleet(OfferedCheckpoint offered) : offered_(std::move(offered)) { set({}); }
  ~FakeFleet() {
    cluster_.release();
    join();
  }

  // Before the first start.
  void set(const Patience& patience) {
    patience_ = patience;
    source_ = std::make_unique<NcclSource>(
        std::make_shared<FakeNccl>(cluster_),
        NcclSourceOptions{.max_ctas = 4, .silence = patience.silence, .ending = patience.ending});
  }

  // A group of num_members, of which `joining` really come.
  void start(int num_members, int joining, bool on_device = false) {
    if (route_.transport.empty()) route_ = source_->offer(offered_).value();
    id_ = {1, offered_.manifest->weight_version, ++attempt_};
    std::vector<std::string> names;
    for (int i = 0; i < num_members; ++i) names.push_back("worker " + std::to_string(i));
    const auto unique_id = route_.group->start(id_, names, 10'000 * kSlow);
    ASSERT_TRUE(unique_id.ok()) << unique_id.status().to_string();
    members_.clear();
    for (int i = 0; i < joining; ++i) {
      members_.push_back(
          std::make_unique<FakeMember>(cluster_, offered_.manifest->stream_bytes(), patience_));
      ReceiveRequest request{id_, route_.source, "", in_ms(10'000 * kSlow)};
      request.participants = names;
      request.nccl_unique_id = *unique_id;
      request.rank = i + 1;
      members_.back()->receive(offered_, request, on_device);
    }
  }

  void join() {
    for (auto& member : members_) {
      if (member->thread.joinable()) member->thread.join();
      if (member->transport) member->transport->settle();
    }
  }

  // The root's part, when it has ended.
  Result<bool> outcome() {
    for (const auto end = in_ms(10'000 * kSlow); Clock::now() < end;) {
      const Result<bool> progress = route_.group->progress(id_);
      if (!progress.ok() || *progress) return progress;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return deadline_exceeded("the root's part does not end");
  }

  // Nothing is left once the source has ended its groups and the members are gone.
  std::string left_over() {
    join();
    for (auto& member : members_) member->transport.reset();
    source_.reset();
    return cluster_.left_over();
  }

  FakeCluster& cluster() { return cluster_; }
  NcclSource& source() { return *source_; }
  TransportRoute& route() { return route_; }
  [[nodiscard]] const UpdateId& id() const { return id_; }
  [[nodiscard]] const OfferedCheckpoint& offered() const { return offered_; }
  FakeMember& member(int i) { return *members_[i]; }
  [[nodiscard]] const std::vector<std::unique_ptr<FakeMember>>& members() const { return members_; }

 private:
  FakeCluster cluster_;
  const OfferedCheckpoint offered_;
  Patience patience_;
  std::unique_ptr<NcclSource> source_;
  TransportRoute route_;
  UpdateId id_;
  uint32_t attempt_ = 0;
  std::vector<std::unique_ptr<FakeMember>> members_;
};

}  // namespace warproll
