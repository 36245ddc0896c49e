// Weights come while an engine captures step graphs: nothing that they do may be forbidden meanwhile, as
// waiting for the whole device is.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "kernels/cuda/graph.h"
#include "rollout/model/synthetic_tensors.h"
#include "tests/weights_sync/gpu/device_fill_support.h"
#include "weights_sync/cuda/random_stream.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;

// Captures one graph after the other, and is capturing nearly all the time.
class Capturer {
 public:
  Capturer() { started_.wait(0); }
  ~Capturer() { stop(); }
  // How many graphs; a capture that failed fails the test.
  int stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    EXPECT_EQ(error_, "");
    return started_;
  }

 private:
  void run() {
    const DeviceBuffer<std::byte> memory(1 << 16);
    try {
      while (!stop_) {
        const CudaGraph graph = CudaGraph::capture([&](cudaStream_t stream) {
          ++started_;
          started_.notify_all();
          WARPROLL_CUDA_CHECK(cudaMemsetAsync(memory.data(), 1, memory.size(), stream));
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        });
        const CudaStream stream;
        graph.launch(stream.get());
        stream.synchronize();
      }
    } catch (const std::exception& error) {
      error_ = error.what();
      ++started_;  // nobody waits for it in vain
      started_.notify_all();
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<int> started_{0};
  std::string error_;
  std::thread thread_{[this] { run(); }};  // behind what it uses
};

TEST(CaptureGpu, fills_cold_loads_and_digests_go_on_beside_it) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  Capturer capturer;
  for (const bool quantise : {false, true, false, true}) {
    const Golden golden("qwen3moe-tiny", quantise);
    ArenaBuffer arena = ArenaBuffer::allocate(golden.layout.total_bytes, device).value();
    const auto bytes = arena.span().first(golden.layout.total_bytes);
    auto filler = device->make_filler(golden.layout, bytes, nullptr);
    ASSERT_TRUE(filler.ok()) << filler.status().to_string();
    const auto filled = fill_from_checkpoint(golden.checkpoint, **filler);
    ASSERT_TRUE(filled.ok()) << filled.status().to_string();
    EXPECT_EQ(to_hex(device->digest(bytes)), to_hex(tensor_digest(golden.wanted)));
    WeightArenas arenas(0, device);
    const auto cold = load_staged(golden.checkpoint, 1, device_layout_function(quantise), arenas);
    ASSERT_TRUE(cold.ok()) << cold.status().to_string();
  }
  EXPECT_GT(capturer.stop(), 3);
}

TEST(CaptureGpu, random_weights_and_streams_are_drawn_beside_it) {
  SKIP_WITHOUT_GPU();
  const CheckpointFiles files = Checkpoint::open(golden("qwen3moe-tiny")).value().files();
  const RandomWeights weights = {
      files, synthetic_tensors(config_of(files), SyntheticFormat::kMxfp8Experts), 7};
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  Capturer capturer;
  for (int i = 0; i < 5; ++i) {
    WeightArenas arenas(0, device);
    const auto cold = load_random(weights, 1, device_layout_function(), arenas);
    ASSERT_TRUE(cold.ok()) << cold.status().to_string();
    for (const bool on_host : {false, true}) {
      auto stream = RandomStream::make(weights, {.on_host = on_host, .bucket_bytes = 64 << 10});
      ASSERT_TRUE(stream.ok()) << stream.status().to_string();
      const auto manifest = (*stream)->draw(2, 7);
      ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();
      EXPECT_EQ((*manifest)->weight_digest, (*cold)->weight_digest);
    }
  }
  EXPECT_GT(capturer.stop(), 3);
}

}  // namespace
}  // namespace warproll
