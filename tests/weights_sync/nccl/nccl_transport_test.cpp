#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/weights_sync/nccl/nccl_group.h"
#include "weights_sync/nccl/nccl_communicator.h"
#include "weights_sync/nccl/nccl_terms.h"
#include "weights_sync/nccl/staging_slots.h"
#include "weights_sync/offered_stream.h"

namespace warproll {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using update_fixtures::arith;
using update_fixtures::live_threads;
using update_fixtures::open_fds;
using update_fixtures::settled_threads;
using update_fixtures::wait_for_at_most;

std::string silent_at(const std::string& what) {
  return "nothing moved for " + std::to_string(kImpatient.silence.count()) + " ms at: " + what;
}

class NcclTransfer : public testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static bool on_device() { return GetParam(); }
  FakeFleet fleet{arith(2, 5)};
};

TEST_P(NcclTransfer, BringsEveryByteToEveryMemberAndLeavesNothing) {
  for (const int members : {1, 2, 5}) {
    fleet.start(members, members, on_device());
    fleet.join();
    for (const auto& member : fleet.members()) {
      ASSERT_TRUE(member->status.ok()) << member->status.to_string();
      EXPECT_TRUE(member->stream.holds(fleet.offered()));
      EXPECT_EQ(member->stream.received_bytes(), fleet.offered().manifest->stream_bytes());
    }
    const auto outcome = fleet.outcome();
    EXPECT_TRUE(outcome.ok() && *outcome);
  }
  EXPECT_EQ(fleet.cluster().broadcasts_of_registered(),
            3 * fleet.offered().manifest->num_buckets());
  EXPECT_EQ(fleet.left_over(), "");
}

// One of another make: it sends what the protocol says, out of memory that it has not registered.
TEST_P(NcclTransfer, SlotsAreNotRegisteredForATrainerThatSaysNothingOfIt) {
  const OfferedCheckpoint offered = arith(2, 5);
  const Manifest& manifest = *offered.manifest;
  const auto stream = OfferedStream::make(offered).value();
  FakeCluster cluster;
  const auto api = std::make_shared<FakeNccl>(cluster);
  const HelloEnvironment terms = without_slots(nccl_terms(api->version(), 4, {}));
  FakeMember member(cluster, manifest.stream_bytes(), {});
  ReceiveRequest request{{1, 5, 1}, encode_nccl_terms(terms), "", in_ms(10'000 * kSlow)};
  request.participants = {"worker"};
  request.nccl_unique_id = api->make_unique_id().value();
  request.rank = 1;
  member.receive(offered, request, on_device());
  {
    const auto group = NcclCommunicator::form(api, {request.nccl_unique_id, 0, 2, 4}, "foreign",
                                              {in_ms(10'000 * kSlow)});
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    const auto slots = StagingSlots::make(api, manifest.bucket_bytes, false).value();
    for (uint64_t i = 0; i < manifest.num_buckets(); ++i) {
      std::byte* const slot = slots->slot_of(i).device;
      stream->copy(i * manifest.bucket_bytes, {slot, manifest.bytes_of_bucket(i)});
      ASSERT_TRUE(
          (*group)->broadcast(slot, manifest.bytes_of_bucket(i), slots->communication(), "b").ok());
      ASSERT_TRUE(api->record(slots->ended(), slots->communication()).ok());
      ASSERT_TRUE((*group)->await(slots->ended(), "b").ok());
    }
    ASSERT_TRUE((*group)->meet(slots->word(), slots->communication()).ok());
    member.thread.join();
    EXPECT_TRUE(member.status.ok()) << member.status.to_string();
    EXPECT_TRUE(member.stream.holds(offered));
    (*group)->close();
  }
  member.transport.reset();
  EXPECT_EQ(cluster.broadcasts_of_registered(), 0u);
  EXPECT_EQ(cluster.left_over(), "");
}

TEST_P(NcclTransfer, AMemberThatNeverComesEndsTheWaitOfTheOthers) {
  fleet.set(kImpatient);
  fleet.start(2, 1, on_device());
  fleet.join();
  EXPECT_EQ(fleet.member(0).status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(fleet.member(0).status.message(),
              AllOf(HasSubstr("nccl group of version 5, attempt 1, rank 1 of 3"),
                    testing::AnyOf(HasSubstr(silent_at("forming the group")),
                                   HasSubstr("remote process exited"))));
  EXPECT_FALSE(fleet.outcome().ok());
  EXPECT_EQ(fleet.left_over(), "");  // the id nobody used up is forgotten too
}

TEST_P(NcclTransfer, AnErrorOfNcclEndsItWithItsText) {
  fleet.cluster().set({.error_from = 3});
  fleet.start(2, 2, on_device());
  fleet.join();
  for (const auto& member : fleet.members()) {
    EXPECT_EQ(member->status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(member->status.message(), HasSubstr("unhandled system error (connection refused)"));
    EXPECT_THAT(member->status.message(), HasSubstr("bucket "));
    EXPECT_LT(member->stream.received_bytes(), fleet.offered().manifest->stream_bytes());
  }
  EXPECT_THAT(fleet.outcome().status().message(), HasSubstr("rank 0 of 3"));
  EXPECT_EQ(fleet.left_over(), "");
}

TEST_P(NcclTransfer, AGroupThatHangsInSilenceIsGivenUp) {
  fleet.set(kImpatient);
  fleet.cluster().set({.death_is_noticed = false, .hold_from = 4});
  fleet.start(2, 2, on_device());
  fleet.join();
  for (const auto& member : fleet.members()) {
    EXPECT_EQ(member->status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(member->status.message(), HasSubstr(silent_at("bucket 4")));
  }
  EXPECT_FALSE(fleet.outcome().ok());
  EXPECT_EQ(fleet.left_over(), "");
}

TEST_P(NcclTransfer, ACancelledMemberReturnsAtOnceAndTheOthersSee) {
  fleet.cluster().set({.hold_from = 4});
  fleet.start(2, 2, on_device());
  ASSERT_TRUE(fleet.cluster().wait_for_collectives(4, milliseconds(5'000 * kSlow)));
  fleet.member(1).cancellation.cancel();
  fleet.join();
  EXPECT_EQ(fleet.member(1).status.code(), StatusCode::kAborted);
  EXPECT_EQ(fleet.member(0).status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(fleet.member(0).status.message(), HasSubstr("remote process exited"));
  EXPECT_FALSE(fleet.outcome().ok());
  fleet.cluster().set({});
  fleet.start(1, 1, on_device());  // the rest, in a new group
  fleet.join();
  EXPECT_TRUE(fleet.member(0).status.ok()) << fleet.member(0).status.to_string();
  EXPECT_EQ(fleet.left_over(), "");
}

TEST_P(NcclTransfer, StoppingOrWithdrawingEndsTheRootAtOnce) {
  fleet.set(kImpatient);  // of a member whose root stopped before it joined
  for (const bool withdraw : {false, true}) {
    fleet.cluster().set({.hold_from = 2});
    fleet.start(1, 1, on_device());
    if (withdraw) {
      fleet.source().withdraw(5);
    } else {
      fleet.route().group->stop(fleet.id());
    }
    EXPECT_EQ(fleet.route().group->progress(fleet.id()).status().code(), StatusCode::kNotFound);
    fleet.join();
    EXPECT_FALSE(fleet.member(0).status.ok());
  }
  EXPECT_THAT(fleet.route().group->start({1, 5, 9}, {"w"}, 100).status().message(),
              HasSubstr("weight version 5 is not offered"));
  EXPECT_EQ(fleet.left_over(), "");
  EXPECT_THAT(fleet.route().group->start({1, 5, 9}, {"w"}, 100).status().message(),
              HasSubstr("closed"));
}

TEST_P(NcclTransfer, TheDeadlineOfTheRootEndsIt) {
  fleet.cluster().set({.hold_from = 0});
  fleet.start(1, 0, on_device());
  fleet.route().group->stop(fleet.id());
  const auto id = fleet.route().group->start({1, 5, 77}, {"w"}, 50);
  ASSERT_TRUE(id.ok());
  Result<bool> progress = false;
  for (const auto end = in_ms(5'000 * kSlow); Clock::now() < end && progress.ok() && !*progress;) {
    progress = fleet.route().group->progress({1, 5, 77});
  }
  EXPECT_EQ(progress.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(fleet.left_over(), "");
}

TEST_P(NcclTransfer, AnAbortThatHangsIsLeftToItself) {
  fleet.set(kImpatient);
  fleet.cluster().set({.death_is_noticed = false, .hold_from = 1, .abort_hangs = true});
  fleet.start(1, 1, on_device());
  const auto begun = Clock::now();
  fleet.join();
  EXPECT_FALSE(fleet.outcome().ok());
  EXPECT_LT(Clock::now() - begun, milliseconds(5'000 * kSlow));
  EXPECT_FALSE(fleet.member(0).status.ok());
  // What the device may still write to is not freed.
  EXPECT_GT(fleet.member(0).transport->stats().abandoned_bytes, 0u);
  EXPECT_THAT(fleet.cluster().left_over(), HasSubstr("allocations"));
  fleet.cluster().release();
  for (const auto end = in_ms(5'000 * kSlow); Clock::now() < end;) {
    if (fleet.cluster().left_over().find("communicators") == std::string::npos) break;
  }
}

TEST_P(NcclTransfer, AFinalizeThatHangsIsAborted) {
  fleet.set(kImpatient);
  fleet.cluster().set({.finalize_hangs = true});
  fleet.start(2, 2, on_device());
  fleet.join();
  for (const auto& member : fleet.members()) EXPECT_TRUE(member->status.ok());
  const auto outcome = fleet.outcome();
  EXPECT_TRUE(outcome.ok() && *outcome);
  EXPECT_EQ(fleet.left_over(), "");
}

TEST_P(NcclTransfer, AFullGpuIsSaid) {
  fleet.cluster().set({.memory_bytes = 1024});
  fleet.start(1, 1, on_device());
  fleet.join();
  EXPECT_EQ(fleet.member(0).status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(fleet.member(0).status.message(), HasSubstr("two staging slots of 65536 bytes"));
  EXPECT_EQ(fleet.outcome().status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(fleet.left_over(), "");
}

TEST_P(NcclTransfer, ManyGroupsLeaveNoDescriptorOrThread) {
  size_t fds = 0, threads = 0;
  for (int i = 0; i < 60; ++i) {
    fleet.cluster().set({.error_from = i % 3 == 0 ? 2 : -1});
    fleet.start(2, 2, on_device());
    fleet.join();
    (void)fleet.outcome();
    fleet.route().group->stop(fleet.id());
    while (fleet.source().num_groups() != 0) std::this_thread::yield();
    if (i == 10) {
      fds = open_fds();
      threads = settled_threads();
    }
  }
  wait_for_at_most(fds, threads);
  EXPECT_EQ(open_fds(), fds);
  EXPECT_EQ(live_threads(), threads);
  EXPECT_EQ(fleet.left_over(), "");
}

INSTANTIATE_TEST_SUITE_P(Sinks, NcclTransfer, testing::Bool(),
                         [](const auto& on_device) { return on_device.param ? "Device" : "Host"; });

TEST(NcclTransport, AFailingSinkEndsTheGroup) {
  FakeFleet fleet(arith(1, 3));
  fleet.start(2, 1);
  FakeMember bad(fleet.cluster(), 1);  // its collector is too small
  ReceiveRequest request{fleet.id(), fleet.route().source, "", in_ms(10'000 * kSlow)};
  request.participants = {"worker 0", "worker 1"};
  request.nccl_unique_id = "id 1";
  request.rank = 2;
  bad.receive(fleet.offered(), request, false);
  bad.thread.join();
  fleet.join();
  EXPECT_EQ(bad.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(fleet.member(0).status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(fleet.outcome().ok());
  bad.transport.reset();
  EXPECT_EQ(fleet.left_over(), "");
}

TEST(NcclTransport, KeepsItsStagingSlotsFromOneReceiveToTheNext) {
  FakeFleet fleet(arith(1, 3));
  FakeMember member(fleet.cluster(), fleet.offered().manifest->stream_bytes());
  std::set<const std::byte*> places;
  for (int i = 0; i < 3; ++i) {
    fleet.start(1, 0);
    ReceiveRequest request{fleet.id(), fleet.route().source, "", in_ms(10'000 * kSlow)};
    request.participants = {"worker 0"};
    request.nccl_unique_id = "id " + std::to_string(i + 1);
    request.rank = 1;
    request.device_sink = [&](uint64_t, std::span<const std::byte> bytes, void*) {
      places.insert(bytes.data());
      return ok_status();
    };
    const Status status =
        member.transport->receive(request, *fleet.offered().manifest, {}, member.cancellation);
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(fleet.outcome().ok());
  }
  EXPECT_EQ(places.size(), 2u);
  member.transport.reset();
  EXPECT_EQ(fleet.left_over(), "");
}

TEST(NcclTransport, SendsFromDeviceMemory) {
  FakeFleet fleet(arith(1, 3));
  const OfferedCheckpoint& offered = fleet.offered();
  fleet.route() = fleet.source().offer_device(
      offered.manifest, [&offered](const ManifestEntry& entry) -> Result<const void*> {
        const auto tensors = offered.checkpoint->tensors();
        for (size_t i = 0; i < tensors.size(); ++i) {
          if (tensors[i].name == entry.tensor.name) return offered.checkpoint->bytes(i).data();
        }
        return not_found(entry.tensor.name);
      });
  fleet.start(2, 2, true);
  fleet.join();
  for (const auto& member : fleet.members()) {
    EXPECT_TRUE(member->status.ok()) << member->status.to_string();
    EXPECT_TRUE(member->stream.holds(offered));
  }
  EXPECT_EQ(fleet.left_over(), "");
}

TEST(NcclTransport, AStartWithoutAGroupIsRefused) {
  FakeCluster cluster;
  FakeMember member(cluster, 1);
  const OfferedCheckpoint offered = arith(1, 3);
  ReceiveRequest request{{1, 3, 1}, "", "", in_ms(1'000)};
  const auto sink = member.stream.sink();
  EXPECT_THAT(
      member.transport->receive(request, *offered.manifest, sink, member.cancellation).message(),
      HasSubstr("the Start has no NCCL id"));
  request.nccl_unique_id = "x";
  EXPECT_THAT(
      member.transport->receive(request, *offered.manifest, sink, member.cancellation).message(),
      HasSubstr("rank 0 in a group of 0 workers"));
  EXPECT_EQ(member.transport->stats().failed, 2u);
}

TEST(OpenNccl, SaysWhatIsMissing) {
  const auto opened = open_nccl(1000);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(
      opened.status().message(),
      testing::AnyOf(HasSubstr("this build has no nccl transport: it was made without CUDA"),
                     HasSubstr("GPU 1000: this machine has ")));
}

}  // namespace
}  // namespace warproll
