#include "worker/commands/decode_floor.h"

#include "rollout/model/cuda/device_weights.h"

namespace warproll {
namespace {

double bytes_of_value(TileFormat format) {
  switch (format) {
    case TileFormat::kF16:
      return 2.0;
    case TileFormat::kMxfp8:
      return 1.0 + 1.0 / 32;
    case TileFormat::kFp8Block:
      return 1.0 + 4.0 / (128 * 128);
  }
  return 0.0;
}

// Of one of its matrices.
double matrix_bytes(const TileMatrix& m) {
  return static_cast<double>(m.num_tiles) * kTileRows * m.cols * bytes_of_value(m.format);
}

}  // namespace

DecodeBytes decode_bytes(const WeightSet& weights) {
  const ModelConfig& config = weights.config;
  const DeviceModelWeights& device = *weights.device;
  DecodeBytes bytes;
  bytes.num_moe_layers = config.num_moe_layers();
  bytes.rest = matrix_bytes(device.lm_head);
  for (const DeviceLayerWeights& layer : device.layers) {
    bytes.rest += matrix_bytes(layer.qkv) + matrix_bytes(layer.o);
    const double mlp = matrix_bytes(layer.gate_up) + matrix_bytes(layer.down);
    if (!layer.is_moe) {
      bytes.rest += mlp;
      continue;
    }
    bytes.expert += mlp / bytes.num_moe_layers;
    bytes.rest += static_cast<double>(config.num_experts) * config.hidden_size *
                  static_cast<double>(dtype_bytes(layer.router_dtype));
  }
  bytes.kv_per_token = 2.0 * config.num_layers * config.num_kv_heads * config.head_dim * 2;
  return bytes;
}

double floor_seconds(const DecodeBytes& bytes, double distinct_experts) {
  return (bytes.rest + bytes.num_moe_layers * distinct_experts * bytes.expert) /
         kReadCeilingBytesPerS;
}

double floor_seconds_with_kv(const DecodeBytes& bytes, double distinct_experts,
                             double context_tokens) {
  return floor_seconds(bytes, distinct_experts) +
         bytes.kv_per_token * context_tokens / kReadCeilingBytesPerS;
}

}  // namespace warproll
