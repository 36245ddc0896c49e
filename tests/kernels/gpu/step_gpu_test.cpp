// Ops of the step one after the other, where every kernel may start before the one it reads from has ended.
#include "kernels/step/add_rmsnorm.h"
#include "kernels/step/embed.h"
#include "kernels/step/qkv_finish.h"
#include "step_support.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h, step_support.h

constexpr int32_t kMaxPositions = 4000;
constexpr double kTheta = 1e6;

// A chain in which every kernel may start before the one it reads from has ended.
TEST(StepGpu, AReplayedChainHasTheBitsOfOpsRunOneByOne) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(86);
  constexpr int32_t kTokens = 64, kHidden = 2048, kVocab = 300, kHeads = 12, kKvHeads = 2;
  static_assert((kHeads + 2 * kKvHeads) * 128 == kHidden);  // normed is taken for qkv
  const size_t size = count_of(kTokens, kHidden);
  const auto weight = random_weights(count_of(kVocab, kHidden), Dtype::kBf16, rng, 0.0f, 1.0f);
  std::vector<float> cos(count_of(kMaxPositions, 64)), sin(cos.size());
  fill_rope_tables(kMaxPositions, 128, kTheta, cos.data(), sin.data());
  const Guarded<std::byte> table_data(weight),
      norm(random_weights(kHidden, Dtype::kBf16, rng, 1.0f, 0.3f));
  const Guarded<float> device_cos(cos), device_sin(sin);
  std::vector<int32_t> positions, slots;
  for (int32_t t = 0; t < kTokens; ++t) {
    positions.push_back(static_cast<int32_t>(rng() % kMaxPositions));
    slots.push_back(kTokens - 1 - t);
  }
  const Guarded<int32_t> ids(static_cast<size_t>(kTokens)), device_positions(positions),
      device_slots(slots);
  const Guarded<uint16_t> hidden(size), normed(size), tile(size), q(count_of(kTokens, kHeads, 128)),
      k_cache(count_of(kTokens, kKvHeads, 128)), v_cache(count_of(kTokens, kKvHeads, 128));
  const Guarded<float> scales(static_cast<size_t>(kTokens));
  const auto step = [&](cudaStream_t stream, bool wait) {
    const auto done = [&] {
      if (wait) WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream));
    };
    embed({.token_ids = ids.data(),
           .weight = table(WeightFormat::kBf16, table_data.data(), kVocab, kHidden),
           .hidden = hidden.data(),
           .num_tokens = kTokens},
          stream);
    done();
    for (int layer = 0; layer < 6; ++layer) {
      AddRmsNormParams p;
      p.hidden = hidden.data();
      p.addend = layer == 0 ? nullptr : normed.data();
      p.weight = norm.data();
      p.normed = normed.data();
      p.normed_tile = {tile.data(), scales.data()};
      p.num_tokens = kTokens;
      p.hidden_size = kHidden;
      add_rmsnorm(p, stream);
      done();
      QkvFinishParams f;
      f.qkv = normed.data();
      f.q_norm = f.k_norm = norm.data();
      f.cos = device_cos.data();
      f.sin = device_sin.data();
      f.positions = device_positions.data();
      f.slot_mapping = device_slots.data();
      f.q = q.data();
      f.k_cache = k_cache.data();
      f.v_cache = v_cache.data();
      f.num_slots = kTokens;
      f.max_positions = kMaxPositions;
      f.num_tokens = kTokens;
      f.num_heads = kHeads;
      f.num_kv_heads = kKvHeads;
      f.head_dim = 128;
      f.indices_are_older = true;
      qkv_finish(f, stream);
      done();
    }
  };
  const auto set_ids = [&](int32_t first) {
    std::vector<int32_t> values;
    for (int32_t t = 0; t < kTokens; ++t) values.push_back((first + 7 * t) % kVocab);
    WARPROLL_CUDA_CHECK(cudaMemcpy(ids.data(), values.data(), values.size() * sizeof(int32_t),
                                   cudaMemcpyHostToDevice));
  };
  const Replay replay([&](cudaStream_t stream) { step(stream, false); });
  for (int32_t run = 0; run < 20; ++run) {
    set_ids(run);
    step(nullptr, true);
    const Bits want_hidden = hidden.read(), want_normed = normed.read(), want_tile = tile.read(),
               want_q = q.read(), want_k = k_cache.read(), want_v = v_cache.read();
    for (int i = 0; i < 3; ++i) replay.launch();  // back to back: the last one counts
    replay.wait();
    ASSERT_EQ(hidden.read(), want_hidden) << "replay " << run;
    ASSERT_EQ(normed.read(), want_normed);
    ASSERT_EQ(tile.read(), want_tile);
    ASSERT_EQ(q.read(), want_q);
    ASSERT_EQ(k_cache.read(), want_k);
    ASSERT_EQ(v_cache.read(), want_v);
  }
}

}  // namespace
}  // namespace warproll
