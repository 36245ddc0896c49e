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

const CudaGraph& StepGraphs::find(const StepShape& shape, uint64_t places,
                                  const DeviceModelWeights& weights) {
  std::unique_ptr<const CudaGraph>& graph = graphs_[{places, shape}];
  if (graph == nullptr) {
    graph = std::make_unique<const CudaGraph>(
        CudaGraph::capture([&](cudaStream_t stream) { enqueue_(shape, weights, stream); }));
  }
  return *graph;
}

const CudaGraph& StepGraphs::graph(const StepShape& shape, const DeviceModelWeights& weights) {
  const std::lock_guard lock(mutex_);
  return find(shape, places_of(weights), weights);
}

void StepGraphs::prepare(const DeviceModelWeights& weights) {
  const uint64_t places = places_of(weights);
  std::set<StepShape> shapes;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, graph] : graphs_) shapes.insert(key.second);
  }
  // One at a time, so that the engine's steps get in between.
  for (const StepShape& shape : shapes) {
    const std::lock_guard lock(mutex_);
    find(shape, places, weights);
  }
}

size_t StepGraphs::num_captures() const {
  const std::lock_guard lock(mutex_);
  return graphs_.size();
}

}  // namespace warproll
