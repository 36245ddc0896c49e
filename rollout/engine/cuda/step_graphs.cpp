#include "rollout/engine/cuda/step_graphs.h"

#include <set>

namespace warproll {

uint64_t places_of(const DeviceModelWeights& weights) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, 64 bits at a time
  const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  const auto add_pointer = [&](const void* p) { add(reinterpret_cast<uintptr_t>(p)); };
  const auto add_tiles = [&](const TileMatrix& m) {
    add_pointer(m.data);
    add(static_cast<uint64_t>(m.format));
    add(static_cast<uint64_t>(m.num_tiles));
  };
  add_pointer(weights.embedding.data);
  add(static_cast<uint64_t>(weights.embedding.format));
  add_tiles(weights.lm_head);
  add_pointer(weights.final_norm);
  add(static_cast<uint64_t>(weights.norm_dtype));
  for (const DeviceLayerWeights& layer : weights.layers) {
    for (const std::byte* p :
         {layer.input_norm, layer.post_attention_norm, layer.q_norm, layer.k_norm, layer.router})
      add_pointer(p);
    add(static_cast<uint64_t>(layer.router_dtype));
    add_pointer(layer.gate_rows.data);
    for (const TileMatrix* m : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) add_tiles(*m);
  }
  return hash;
}

const CudaGraph& StepGraphs::find_or_capture(const StepShape& shape, uint64_t places,
                                             const DeviceModelWeights& weights) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = graphs_.find({places, shape});
    if (found != graphs_.end()) return *found->second;
  }
  auto graph = std::make_unique<const CudaGraph>(
      CudaGraph::capture([&](cudaStream_t stream) { enqueue_(shape, weights, stream); }));
  const std::lock_guard lock(mutex_);
  // Another thread may have been faster; then that one's is in use.
  return *graphs_.try_emplace({places, shape}, std::move(graph)).first->second;
}

const CudaGraph& StepGraphs::graph(const StepShape& shape, const DeviceModelWeights& weights) {
  return find_or_capture(shape, places_of(weights), weights);
}

void StepGraphs::prepare(const DeviceModelWeights& weights) {
  const uint64_t places = places_of(weights);
  std::set<StepShape> shapes;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, graph] : graphs_) shapes.insert(key.second);
  }
  for (const StepShape& shape : shapes) find_or_capture(shape, places, weights);
}

}  // namespace warproll
