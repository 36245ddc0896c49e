// The forward pass on a GPU against the CPU's on every golden checkpoint, and what it promises of
// bits: the same in any batch, chunking, graph and block placement.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/rollout/engine/gpu/gpu_model.h"

namespace warproll::testing {
namespace {

const std::vector<std::string> kModels{"qwen3moe-tiny",
                                       "qwen3moe-tiny-tied",
                                       "qwen3moe-tiny-sharded",
                                       "qwen3moe-tiny-hf4",
                                       "qwen3moe-tiny-fused",
                                       "qwen3moe-tiny-mxfp8",
                                       "qwen3moe-tiny-mxfp8-ct",
                                       "qwen3moe-tiny-mxfp8-modelopt",
                                       "qwen3moe-tiny-fp8block",
                                       "qwen3moe-tiny-fp8block-ragged",
                                       "arith-v3"};

// Sequences over one backend, in blocks handed out in a shuffled order.
class Sequences {
 public:
  struct Sequence {
    std::vector<int32_t> blocks;
    int32_t context = 0;
  };
  struct Piece {
    Sequence* sequence;
    std::vector<int32_t> ids;
    std::vector<uint16_t> routes{};
  };

  Sequences(const WeightSetPtr& weights, ModelBackend backend, int32_t num_blocks,
            int32_t block_tokens, uint32_t seed)
      : weights_(weights), backend_(std::move(backend)), block_tokens_(block_tokens) {
    for (int32_t b = 0; b < num_blocks; ++b) free_.push_back(b);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(seed));
  }

  // Logits of every token, routes and router logits.
  ForwardOutput step(const std::vector<Piece>& pieces, bool router_logits = false) {
    std::vector<int32_t> ids, positions, slots, cu{0}, contexts, rows;
    std::vector<uint16_t> routes;
    size_t width = 1;
    for (const Piece& piece : pieces) {
      Sequence& sequence = *piece.sequence;
      for (const int32_t id : piece.ids) {
        const int32_t position = sequence.context++;
        if (position % block_tokens_ == 0) {
          sequence.blocks.push_back(free_.back());
          free_.pop_back();
        }
        ids.push_back(id);
        positions.push_back(position);
        slots.push_back(sequence.blocks.back() * block_tokens_ + position % block_tokens_);
        rows.push_back(static_cast<int32_t>(rows.size()));
      }
      routes.insert(routes.end(), piece.routes.begin(), piece.routes.end());
      cu.push_back(static_cast<int32_t>(ids.size()));
      contexts.push_back(sequence.context);
      width = std::max(width, sequence.blocks.size());
    }
    std::vector<int32_t> table(pieces.size() * width, 0);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto& blocks = pieces[i].sequence->blocks;
      std::copy(blocks.begin(), blocks.end(), table.begin() + static_cast<long>(i * width));
    }
    ForwardOutput out;
    out.want_routes = true;
    out.want_router_logits = router_logits;
    backend_.forward({.token_ids = ids,
                      .positions = positions,
                      .slot_mapping = slots,
                      .cu_seqlens_q = cu,
                      .context_lens = contexts,
                      .block_table = table,
                      .blocks_per_sequence = static_cast<int32_t>(width),
                      .logits_rows = rows,
                      .given_routes = routes},
                     *weights_, out);
    return out;
  }

 private:
  const WeightSetPtr weights_;
  const ModelBackend backend_;
  const int32_t block_tokens_;
  std::vector<int32_t> free_;
};

BackendSizes sizes_for(const ModelConfig& config, int32_t num_blocks, int32_t block_tokens) {
  BackendSizes sizes;
  sizes.num_blocks = num_blocks;
  sizes.block_tokens = block_tokens;
  sizes.max_batch_tokens = sizes.max_logits = 1024;
  sizes.max_sequences = 64;
  sizes.max_context_tokens = config.max_position_embeddings;
  return sizes;
}

Sequences on_gpu(const WeightSetPtr& weights, CudaBackendOptions options = {},
                 int32_t num_blocks = 256, int32_t block_tokens = 16, uint32_t seed = 1) {
  return {weights,
          make_cuda_backend(weights->config, sizes_for(weights->config, num_blocks, block_tokens),
                            options),
          num_blocks, block_tokens, seed};
}

Sequences on_cpu(const WeightSetPtr& weights, ActivationDtype activations) {
  return {weights, make_cpu_backend(weights->config, 64, 16, activations), 64, 16, 1};
}

std::vector<int32_t> random_ids(size_t count, int32_t vocab, std::mt19937& rng) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab));
  return ids;
}

double relative_rms(const std::vector<float>& got, const std::vector<float>& wanted) {
  double squares = 0.0, errors = 0.0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    squares += double{wanted[i]} * wanted[i];
    errors += std::pow(double{got[i]} - wanted[i], 2);
  }
  return std::sqrt(errors / squares);
}

// The bound of Forward.SixteenBitModesStayNearF32WithinTheirRounding: 31 roundings to BF16 in a row.
const double kBf16Bound = 3.0 * std::sqrt(31.0) * std::ldexp(1.0, -9);

// With the F32 run's routes: the GPU is as near to F32 as its CPU twin, and near that twin.
TEST(DeviceForward, IsWithinItsRoundingOfF32OnEveryGoldenCheckpoint) {
  SKIP_WITHOUT_GPU();
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const WeightSetPtr host = load_weights(name), device = load_on_gpu(name);
    std::mt19937 rng(74);
    const auto ids = random_ids(200, host->config.vocab_size, rng);
    Sequences::Sequence a, b, c;
    const ForwardOutput f32 = on_cpu(host, ActivationDtype::kF32).step({{&a, ids}}, true);
    const ForwardOutput twin =
        on_cpu(host, ActivationDtype::kBf16).step({{&b, ids, f32.routes}}, true);
    const ForwardOutput gpu =
        on_gpu(device, {.capture_router_logits = true}).step({{&c, ids, f32.routes}}, true);
    ASSERT_EQ(gpu.logits.size(), f32.logits.size());
    EXPECT_TRUE(gpu.routes == f32.routes);
    const double of_twin = relative_rms(twin.logits, f32.logits);
    const double of_gpu = relative_rms(gpu.logits, f32.logits);
    const double apart = relative_rms(gpu.logits, twin.logits);
    std::printf("%-30s from F32: GPU %.4f, CPU twin %.4f; apart %.4f\n", name.c_str(), of_gpu,
                of_twin, apart);
    EXPECT_LE(of_gpu, kBf16Bound);
    EXPECT_LE(of_gpu, 1.5 * of_twin);
    EXPECT_LE(apart, kBf16Bound);
    EXPECT_LE(relative_rms(gpu.router_logits, f32.router_logits), kBf16Bound);
  }
}

// 32 sequences, every step a random piece of each: prefill chunks and single tokens in one batch.
// The bits are those of each alone at once, with and without graphs, whatever the blocks.
TEST(DeviceForward, ASequenceHasTheSameBitsInAnyMixedBatchChunkingAndGraph) {
  SKIP_WITHOUT_GPU();
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const WeightSetPtr weights = load_on_gpu(name);
    std::mt19937 rng(71);
    constexpr size_t kSequences = 32;
    const auto vocab = static_cast<size_t>(weights->config.vocab_size);
    std::vector<std::vector<int32_t>> ids;
    std::vector<ForwardOutput> alone;
    Sequences single = on_gpu(weights, {.use_graphs = false}, 512);
    for (size_t s = 0; s < kSequences; ++s) {
      ids.push_back(random_ids(1 + rng() % 160, weights->config.vocab_size, rng));
      Sequences::Sequence sequence;
      alone.push_back(single.step({{&sequence, ids.back()}}));
    }
    Sequences mixed = on_gpu(weights, {}, 512, 32, 72);
    std::vector<Sequences::Sequence> sequences(kSequences);
    for (bool any = true; any;) {
      std::vector<Sequences::Piece> pieces;
      std::vector<std::pair<size_t, size_t>> rows;
      const bool decode_only = rng() % 2 == 0;
      for (size_t s = 0; s < kSequences; ++s) {
        const auto begin = static_cast<size_t>(sequences[s].context);
        const size_t count = std::min(ids[s].size() - begin,
                                      !decode_only && rng() % 3 == 0 ? rng() % 60 : size_t{1});
        if (count == 0) continue;
        pieces.push_back({&sequences[s],
                          {ids[s].begin() + static_cast<long>(begin),
                           ids[s].begin() + static_cast<long>(begin + count)}});
        for (size_t i = 0; i < count; ++i) rows.emplace_back(s, begin + i);
      }
      const ForwardOutput out = mixed.step(pieces);
      for (size_t row = 0; row < rows.size(); ++row) {
        const auto [s, token] = rows[row];
        const auto begin = out.logits.begin() + static_cast<long>(row * vocab);
        ASSERT_TRUE(std::equal(begin, begin + static_cast<long>(vocab),
                               alone[s].logits.begin() + static_cast<long>(token * vocab)))
            << "sequence " << s << " token " << token << " in a step of " << rows.size();
      }
      any = false;
      for (size_t s = 0; s < kSequences; ++s)
        any = any || static_cast<size_t>(sequences[s].context) < ids[s].size();
    }
  }
}

TEST(DeviceForward, AStepThatIsTooLargeAndWeightsOnTheHostAreRefused) {
  SKIP_WITHOUT_GPU();
  const WeightSetPtr device = load_on_gpu("qwen3moe-tiny");
  std::mt19937 rng(5);
  Sequences sequences = on_gpu(device);
  Sequences::Sequence sequence;
  const auto message_of = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message_of([&] {
                sequences.step({{&sequence, random_ids(1025, 512, rng)}});
              }),
              ::testing::HasSubstr("1025 tokens"));
  const WeightSetPtr host = load_weights("qwen3moe-tiny");
  Sequences on_host = on_gpu(host);
  Sequences::Sequence other;
  EXPECT_THAT(message_of([&] {
                on_host.step({{&other, {1}}});
              }),
              ::testing::HasSubstr("in host memory"));
}

}  // namespace
}  // namespace warproll::testing
