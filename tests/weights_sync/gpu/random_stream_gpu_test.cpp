// A random stream: its manifest's digests are those of its bytes, and it is what load_random() loads.
#include <gtest/gtest.h>

#include "rollout/model/synthetic_tensors.h"
#include "tests/weights_sync/gpu/device_fill_support.h"
#include "weights_sync/cuda/random_stream.h"
#include "weights_sync/digest.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;

std::vector<std::byte> on_the_host(std::span<const std::byte> bytes) {
  std::vector<std::byte> copy(bytes.size());
  WARPROLL_CUDA_CHECK(cudaMemcpy(copy.data(), bytes.data(), bytes.size(), cudaMemcpyDefault));
  return copy;
}

TEST(RandomStreamGpu, is_what_its_manifest_says_and_what_a_cold_start_draws) {
  SKIP_WITHOUT_GPU();
  const CheckpointFiles files = Checkpoint::open(golden("qwen3moe-tiny")).value().files();
  for (const SyntheticFormat format : {SyntheticFormat::kBf16, SyntheticFormat::kMxfp8Experts}) {
    const RandomWeights weights = {files, synthetic_tensors(config_of(files), format), 7};
    WeightArenas arenas(0, make_cuda_arena_device().value());
    const auto cold = load_random(weights, 1, device_layout_function(), arenas);
    ASSERT_TRUE(cold.ok()) << cold.status().to_string();
    for (const bool on_host : {false, true}) {
      auto stream = RandomStream::make(weights, {.on_host = on_host, .bucket_bytes = 64 << 10});
      ASSERT_TRUE(stream.ok()) << stream.status().to_string();
      ASSERT_TRUE((*stream)->draw(1, 6).ok());  // is overwritten
      const auto manifest = (*stream)->draw(2, 7);
      ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();
      EXPECT_EQ((*manifest)->weight_version, 2U);
      EXPECT_EQ((*manifest)->weight_digest, (*cold)->weight_digest);
      EXPECT_TRUE(validate(**manifest).ok());
      const std::vector<std::byte> bytes = on_the_host((*stream)->bytes());
      for (const ManifestEntry& entry : (*manifest)->entries) {
        EXPECT_EQ(tensor_digest({bytes.data() + (*manifest)->stream_offset(entry),
                                 static_cast<size_t>(entry.tensor.bytes)}),
                  entry.digest)
            << entry.tensor.name;
      }
    }
  }
}

}  // namespace
}  // namespace warproll
