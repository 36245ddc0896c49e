#include "golden.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "tests/golden_dir.h"

namespace warproll::testing {

std::string golden_path(const std::string& name) { return golden_dir() + "/" + name; }

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

GoldenFile::GoldenFile(const std::string& name) : bytes_(read_file(golden_path(name))) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(bytes_.substr(8, header_bytes));
  for (const auto& [tensor, info] : header.items()) {
    if (tensor == "__metadata__") continue;
    const auto offsets = info.at("data_offsets").get<std::vector<size_t>>();
    ranges_[tensor] = {8 + header_bytes + offsets.at(0), offsets.at(1) - offsets.at(0)};
  }
}

bool GoldenFile::has(const std::string& tensor) const { return ranges_.contains(tensor); }

template <typename T>
std::vector<T> GoldenFile::values(const std::string& tensor) const {
  const auto [offset, size] = ranges_.at(tensor);
  std::vector<T> result(size / sizeof(T));
  std::memcpy(result.data(), bytes_.data() + offset, size);
  return result;
}

std::vector<float> GoldenFile::floats(const std::string& tensor) const {
  return values<float>(tensor);
}

std::vector<int32_t> GoldenFile::ints(const std::string& tensor) const {
  return values<int32_t>(tensor);
}

LoadedModel load_model(const std::string& name, bool quantise_to_mxfp8) {
  const auto require = [](const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.to_string());
  };
  auto checkpoint = Checkpoint::open(golden_path(name));
  require(checkpoint.status());
  const CheckpointFiles& files = checkpoint->files();
  auto config = parse_model_config(files.config_json, files.generation_config_json,
                                   files.hf_quant_config_json);
  require(config.status());
  auto loaded = load_checkpoint(
      *checkpoint,
      [&](const CheckpointFiles&, std::span<const TensorInfo> tensors) {
        return make_arena_layout(*config, tensors, quantise_to_mxfp8);
      },
      {}, 1);
  require(loaded.status());
  auto weights = bind_weights(*config, loaded->layout, loaded->arena.data());
  require(weights.status());
  return {*config, std::move(*loaded), *weights};
}

ModelRunner::ModelRunner(const LoadedModel& model, ActivationDtype dtype, int32_t num_blocks,
                         int32_t block_tokens, uint32_t seed)
    : model_(model),
      dtype_(dtype),
      kv_(model.config, num_blocks, block_tokens, dtype),
      free_blocks_(static_cast<size_t>(num_blocks)) {
  std::iota(free_blocks_.begin(), free_blocks_.end(), 0);
  std::shuffle(free_blocks_.begin(), free_blocks_.end(), std::mt19937(seed));
}

ForwardOutput ModelRunner::step(const std::vector<Piece>& pieces, bool all_logits) {
  std::vector<int32_t> ids, positions, slots, cu_seqlens{0}, context_lens, table, rows;
  std::vector<uint16_t> given_routes;
  int32_t table_width = 0;
  for (const Piece& piece : pieces) {
    TestSequence& sequence = *piece.sequence;
    for (const int32_t id : piece.token_ids) {
      const int32_t position = sequence.context++;
      if (position % kv_.block_tokens() == 0) {
        sequence.blocks.push_back(free_blocks_.at(free_blocks_.size() - 1));
        free_blocks_.pop_back();
      }
      ids.push_back(id);
      positions.push_back(position);
      slots.push_back(sequence.blocks.back() * kv_.block_tokens() + position % kv_.block_tokens());
      if (all_logits) rows.push_back(static_cast<int32_t>(ids.size()) - 1);
    }
    if (!all_logits) rows.push_back(static_cast<int32_t>(ids.size()) - 1);
    given_routes.insert(given_routes.end(), piece.given_routes.begin(), piece.given_routes.end());
    cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
    context_lens.push_back(sequence.context);
    table_width = std::max(table_width, static_cast<int32_t>(sequence.blocks.size()));
  }
  for (const Piece& piece : pieces) {
    std::vector<int32_t> row = piece.sequence->blocks;
    row.resize(static_cast<size_t>(table_width), -1);  // never to be read
    table.insert(table.end(), row.begin(), row.end());
  }
  ForwardOutput out;
  out.want_routes = out.want_router_logits = true;
  forward({.token_ids = ids,
           .positions = positions,
           .slot_mapping = slots,
           .cu_seqlens_q = cu_seqlens,
           .context_lens = context_lens,
           .block_table = table,
           .blocks_per_sequence = table_width,
           .logits_rows = rows,
           .given_routes = given_routes},
          model_.config, model_.weights, dtype_, kv_, out);
  return out;
}

ForwardOutput prefill(ModelRunner& runner, TestSequence& sequence, const std::vector<int32_t>& ids,
                      int32_t chunk) {
  ForwardOutput all;
  const size_t size = chunk == 0 ? ids.size() : static_cast<size_t>(chunk);
  for (size_t at = 0; at < ids.size(); at += size) {
    const size_t end = std::min(at + size, ids.size());
    const ForwardOutput part = runner.step({{&sequence, {ids.begin() + at, ids.begin() + end}}});
    all.logits.insert(all.logits.end(), part.logits.begin(), part.logits.end());
    all.routes.insert(all.routes.end(), part.routes.begin(), part.routes.end());
    all.router_logits.insert(all.router_logits.end(), part.router_logits.begin(),
                             part.router_logits.end());
  }
  return all;
}

int32_t argmax(const float* logits, int32_t size) {
  return static_cast<int32_t>(std::max_element(logits, logits + size) - logits);
}

std::vector<int32_t> greedy(ModelRunner& runner, const std::vector<int32_t>& prompt,
                            int32_t max_tokens, int32_t vocab_size, int32_t stop_id) {
  TestSequence sequence = runner.new_sequence();
  std::vector<int32_t> result;
  std::vector<int32_t> next = prompt;
  while (static_cast<int32_t>(result.size()) < max_tokens) {
    const ForwardOutput out = runner.step({{&sequence, next}}, /*all_logits=*/false);
    result.push_back(argmax(out.logits.data(), vocab_size));
    if (result.back() == stop_id) break;
    next = {result.back()};
  }
  return result;
}

}  // namespace warproll::testing
