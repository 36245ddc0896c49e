// A worker's UpdateReceiver whose arenas are on a GPU: a cold start, then updates over a transport
// that has the bytes in device memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/stream_owner.h"
#include "tests/weights_sync/gpu/device_fill_support.h"
#include "tests/weights_sync/update_receiver_fixture.h"

namespace warproll {
namespace {

using namespace update_receiver_fixture;
using ::testing::HasSubstr;

// Brings buckets of the stream through two slots in device memory, as a broadcast between GPUs does.
class DeviceTransport final : public BroadcastTransport {
 public:
  [[nodiscard]] std::string_view name() const override { return "stepped"; }
  Status receive(const ReceiveRequest& request, const Manifest& manifest, const StreamSink&,
                 const Cancellation&) override {
    if (!request.device_sink) return internal_error("no sink for device memory");
    const StreamOnDevice stream(*checkpoint, manifest);
    const CudaStream mine;
    const DeviceBuffer<std::byte> slots(2 * manifest.bucket_bytes);
    for (uint64_t b = 0; b < manifest.num_buckets(); ++b) {
      const uint64_t at = b * manifest.bucket_bytes;
      const uint64_t bytes = std::min(manifest.bucket_bytes, stream.bytes.size() - at);
      std::byte* slot = slots.data() + b % 2 * manifest.bucket_bytes;
      WARPROLL_CUDA_CHECK(cudaMemcpyAsync(slot, stream.copy.data() + at, bytes,
                                          cudaMemcpyDeviceToDevice, mine.get()));
      if (b == damaged_bucket) {
        WARPROLL_CUDA_CHECK(cudaMemsetAsync(slot + bytes / 2, 0x11, 8, mine.get()));
      }
      WARPROLL_TRY(request.device_sink(at, {slot, bytes}, mine.get()));
    }
    mine.synchronize();  // before the slots go
    return ok_status();
  }
  std::shared_ptr<const Checkpoint> checkpoint;
  uint64_t damaged_bucket = ~uint64_t{0};
};

class ReceiverGpu : public Receiver {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    Receiver::SetUp();
    options.device = make_cuda_arena_device().value();
    options.layout = device_layout_function();
    options.transports = {&from_device};
    from_device.checkpoint = v2.checkpoint;
  }
  // Of a cold load on the CPU, packed there.
  static Digest wanted(int n) {
    const auto checkpoint = Checkpoint::open(golden("arith-v" + std::to_string(n)));
    const auto host = load_checkpoint(*checkpoint, model_layout());
    const auto layout = device_layout_function()(checkpoint->files(), checkpoint->tensors());
    return tensor_digest(
        device_arena_twin(config_of(host->files), host->layout, host->arena.span(), *layout));
  }
  Digest update(const OfferedCheckpoint& offered) {
    from_device.checkpoint = offered.checkpoint;
    return update_to(offered);
  }
  DeviceTransport from_device;
};

TEST_F(ReceiverGpu, AColdStartAndEveryReloadGiveTheSameArenaAsAColdLoad) {
  start();
  EXPECT_EQ(engine->layout_digest, wanted(1));
  EXPECT_EQ(update(v2), wanted(2));
  EXPECT_EQ(update(arith(3, 3)), wanted(3));
  EXPECT_EQ(update(arith(1, 4)), wanted(1));
  EXPECT_EQ(receiver->weight_status().serving_digest, arith(1, 4).manifest->weight_digest);
}

TEST_F(ReceiverGpu, ADamagedBucketFailsTheUpdateAndTheNextOneWorks) {
  start();
  from_device.damaged_bucket = 3;
  const UpdateId id = begin(v2);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("digest is"));
  EXPECT_EQ(receiver->weight_status().serving_version, 1u);
  from_device.damaged_bucket = ~uint64_t{0};
  EXPECT_EQ(update(v2), wanted(2));
}

}  // namespace
}  // namespace warproll
