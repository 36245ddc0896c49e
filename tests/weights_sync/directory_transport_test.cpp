#include "weights_sync/directory_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tests/weights_sync/update_fixtures.h"

namespace warproll {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint_fixtures;
using namespace update_fixtures;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PublishedVersions : public testing::Test {
 protected:
  Status receive(const OfferedCheckpoint& offered, const TransportRoute& route,
                 const StreamSink& sink) {
    return transport.receive(request_for(offered, route), *offered.manifest, sink, cancellation);
  }
  std::string weights_file(uint64_t version) {
    return versions.path_of(version) + "/model.safetensors";
  }

  TempDir root;
  VersionDirectory versions = std::move(*VersionDirectory::open(root / "versions"));
  DirectorySource source{versions};
  DirectoryTransport transport;
  Cancellation cancellation;
};

TEST_F(PublishedVersions, AReaderGetsEveryByteOfThePublishedCheckpoint) {
  const OfferedCheckpoint offered = arith(1, 1);
  const auto route = source.offer(offered);
  ASSERT_TRUE(route.ok()) << route.status().to_string();
  StreamCollector stream(offered.manifest->stream_bytes());
  const Status status = receive(offered, *route, stream.sink());
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
}

TEST_F(PublishedVersions, AShardedCheckpointIsPublishedWithItsIndexAndRead) {
  auto checkpoint = Checkpoint::open(golden("qwen3moe-tiny-sharded"));
  auto manifest = make_manifest(*checkpoint, 4, kBucketBytes);
  const OfferedCheckpoint offered{std::make_shared<const Checkpoint>(std::move(*checkpoint)),
                                  std::make_shared<const Manifest>(std::move(*manifest))};
  const auto route = source.offer(offered);
  ASSERT_TRUE(route.ok()) << route.status().to_string();
  StreamCollector stream(offered.manifest->stream_bytes());
  const Status status = receive(offered, *route, stream.sink());
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
}

TEST_F(PublishedVersions, VersionsAreListedInOrderAndTheNewestIsFound) {
  EXPECT_FALSE(versions.newest()->has_value());
  for (const int version : {10, 2, 1000001}) {
    ASSERT_TRUE(source.offer(arith(1, version)).ok());
  }
  EXPECT_THAT(*versions.versions(), ElementsAre(2u, 10u, 1000001u));
  EXPECT_EQ(**versions.newest(), 1000001u);
  EXPECT_EQ(versions.manifest(10)->weight_version, 10u);
}

TEST_F(PublishedVersions, AnUnfinishedVersionIsInvisibleAndRemovedByTheNextPublish) {
  const std::string unfinished = versions.path_of(1) + ".tmp-123";
  fs::create_directories(unfinished);
  write_bytes(unfinished + "/model.safetensors", "half");
  fs::create_directories(root / "versions/vault");
  EXPECT_THAT(*versions.versions(), IsEmpty());
  ASSERT_TRUE(source.offer(arith(1, 1)).ok());
  EXPECT_FALSE(fs::exists(unfinished));
  EXPECT_TRUE(fs::exists(root / "versions/vault"));
}

TEST_F(PublishedVersions, PublishingTheSameAgainIsFineAndOtherWeightsUnderItsVersionAreNot) {
  ASSERT_TRUE(source.offer(arith(1, 1)).ok());
  EXPECT_TRUE(source.offer(arith(1, 1)).ok());
  const auto other = source.offer(arith(2, 1));
  EXPECT_EQ(other.status().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(other.status().message(), HasSubstr("v000001 holds weights with digest"));
}

TEST_F(PublishedVersions, PruningKeepsTheNewest) {
  for (int version = 1; version <= 4; ++version) ASSERT_TRUE(source.offer(arith(1, version)).ok());
  ASSERT_TRUE(versions.prune(2).ok());
  EXPECT_THAT(*versions.versions(), ElementsAre(3u, 4u));
  EXPECT_EQ(count_entries((root / "versions").c_str()), 2u);
}

TEST_F(PublishedVersions, AMissingVersionIsNotFoundByName) {
  const OfferedCheckpoint offered = arith(1, 1);
  StreamCollector stream(offered.manifest->stream_bytes());
  const Status status = receive(offered, {"directory", versions.path_of(9), ""}, stream.sink());
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("v000009/manifest.json"));
}

TEST_F(PublishedVersions, AFileCutBeforeTheReadIsAnErrorThatNamesIt) {
  const OfferedCheckpoint offered = arith(1, 1);
  const auto route = source.offer(offered);
  fs::resize_file(weights_file(1), fs::file_size(weights_file(1)) / 2);
  StreamCollector stream(offered.manifest->stream_bytes());
  const Status status = receive(offered, *route, stream.sink());
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors"));
}

TEST_F(PublishedVersions, AFileCutDuringTheReadIsAnErrorAndNoCrash) {
  const OfferedCheckpoint offered = arith(1, 1);
  const auto route = source.offer(offered);
  bool cut = false;
  const Status status = receive(offered, *route, [&](uint64_t, std::span<const std::byte>) {
    if (!cut) fs::resize_file(weights_file(1), 100);
    cut = true;
    return ok_status();
  });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors ends at byte"));
}

TEST_F(PublishedVersions, AReaderKeepsWhatItOpenedWhenTheVersionIsPruned) {
  const OfferedCheckpoint offered = arith(1, 1);
  const auto route = source.offer(offered);
  StreamCollector stream(offered.manifest->stream_bytes());
  const Status status = receive(offered, *route, [&](uint64_t offset, auto bytes) {
    fs::remove_all(versions.path_of(1));
    return stream.take(offset, bytes);
  });
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
}

TEST_F(PublishedVersions, OtherWeightsThanTheManifestWantsAreRefusedBeforeReading) {
  const auto route = source.offer(arith(1, 1));
  const OfferedCheckpoint other = arith(2, 1);
  StreamCollector stream(other.manifest->stream_bytes());
  const Status status = receive(other, *route, stream.sink());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(stream.received_bytes(), 0u);
}

TEST_F(PublishedVersions, CancellingEndsTheReceive) {
  const OfferedCheckpoint offered = arith(1, 1);
  const auto route = source.offer(offered);
  int parts = 0;
  const Status status = receive(offered, *route, [&](uint64_t, std::span<const std::byte>) {
    if (++parts == 3) cancellation.cancel();
    return ok_status();
  });
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(parts, 3);
}

TEST_F(PublishedVersions, ThePastDeadlineEndsTheReceive) {
  const OfferedCheckpoint offered = arith(1, 1);
  const auto route = source.offer(offered);
  StreamCollector stream(offered.manifest->stream_bytes());
  const Status status = transport.receive(request_for(offered, *route, in_ms(-1)),
                                          *offered.manifest, stream.sink(), cancellation);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(PublishedVersions, AWorkerWithAnotherMountPointLooksThere) {
  const OfferedCheckpoint offered = arith(1, 1);
  const auto route = source.offer(offered);
  fs::create_directories(root / "elsewhere");
  fs::rename(versions.path_of(1), root / "elsewhere/v000001");
  DirectoryTransport mounted(root / "elsewhere");
  StreamCollector stream(offered.manifest->stream_bytes());
  const Status status =
      mounted.receive(request_for(offered, *route), *offered.manifest, stream.sink(), cancellation);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(stream.holds(offered));
}

TEST_F(PublishedVersions, AFailureOfTheSinkEndsTheReceiveWithItsReason) {
  const OfferedCheckpoint offered = arith(1, 1);
  const auto route = source.offer(offered);
  const Status status = receive(offered, *route, [](uint64_t, std::span<const std::byte>) {
    return data_loss("tensor 'x' has a NaN");
  });
  EXPECT_EQ(status.message(), "tensor 'x' has a NaN");
}

}  // namespace
}  // namespace warproll
