#include "weights_sync/cuda/device_filler.h"

#include <cstring>
#include <utility>

#include "kernels/moe/pack.h"
#include "kernels/not_finite.h"
#include "kernels/quantise.h"
#include "weights_sync/tensor_scan.h"

namespace warproll {
namespace {

using Kind = PlannedTensor::Kind;

bool aligned(const std::byte* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

Result<std::unique_ptr<WeightFiller>> DeviceFiller::create(const DeviceFillerParts& parts) {
  WARPROLL_TRY_ASSIGN(plan, make_fill_plan(*parts.layout, parts.arena.size(), parts.manifest));
  try {
    return std::unique_ptr<WeightFiller>(std::make_unique<DeviceFiller>(parts, std::move(plan)));
  } catch (const CudaError& error) {
    if (error.code() != cudaErrorMemoryAllocation) throw;
    cudaGetLastError();  // it is told here
    return resource_exhausted(std::string("the digests of a fill: ") + error.what());
  }
}

DeviceFiller::DeviceFiller(const DeviceFillerParts& parts, FillPlan plan)
    : parts_(parts), ledger_(std::move(plan), parts.manifest), pool_(parts.buffer_bytes) {
  select_device();
  const std::vector<PlannedTensor>& tensors = ledger_.plan().tensors;
  std::vector<uint64_t> sizes;
  for (const PlannedTensor& tensor : tensors) {
    arrivals_.push_back({.digest = sizes.size()});
    sizes.push_back(tensor.info.bytes);
    if (tensor.kind != Kind::kQuantise) continue;
    sizes.push_back(tensor.quantised.elements.bytes);
    sizes.push_back(tensor.quantised.scales.bytes);
  }
  digests_.emplace(sizes);
  not_finite_ = DeviceBuffer<uint64_t>(tensors.size());
  const cudaStream_t first = parts_.streams.front().get();
  if (!tensors.empty()) {
    WARPROLL_CUDA_CHECK(
        cudaMemsetAsync(not_finite_.data(), 0xff, tensors.size() * sizeof(uint64_t), first));
  }
  WARPROLL_CUDA_CHECK(cudaMemsetAsync(parts_.arena.data(), 0, parts_.layout->total_bytes, first));
  const CudaEvent cleared;
  cleared.record(first);
  for (const CudaStream& stream : parts_.streams) cleared.hold(stream.get());
}

DeviceFiller::~DeviceFiller() {
  cudaSetDevice(parts_.device);
  for (const CudaStream& stream : parts_.streams) cudaStreamSynchronize(stream.get());
}

void DeviceFiller::select_device() const { WARPROLL_CUDA_CHECK(cudaSetDevice(parts_.device)); }

cudaStream_t DeviceFiller::next_stream() {
  return parts_.streams[stream_index_++ % parts_.streams.size()].get();
}

// Gives a tensor its stream and the place where its bytes gather.
Status DeviceFiller::open(size_t index) {
  Arrival& arrival = arrivals_[index];
  if (arrival.stream == nullptr) arrival.stream = next_stream();
  if (arrival.place != nullptr) return ok_status();
  const PlannedTensor& tensor = ledger_.tensor(index);
  if (tensor.kind == Kind::kCopy && tensor.as_rows) {
    arrival.place = parts_.arena.data() + tensor.arena_offset;
    return ok_status();
  }
  WARPROLL_TRY_ASSIGN(buffer, pool_.take(tensor.info.bytes, arrival.stream));
  arrival.buffer = buffer;
  arrival.place = buffer->memory.data();
  return ok_status();
}

Status DeviceFiller::put(std::string_view tensor_name, std::span<const std::byte> bytes) {
  WARPROLL_TRY_ASSIGN(index, ledger_.claim(tensor_name, /*whole=*/true));
  select_device();
  bool complete = true;
  Status status = ledger_.check_whole(index, bytes.size());
  if (status.ok()) status = add_host_part(index, 0, bytes, complete);
  return ledger_.settle(index, status, complete);
}

Status DeviceFiller::put_part(std::string_view tensor_name, uint64_t offset_bytes,
                              std::span<const std::byte> bytes) {
  WARPROLL_TRY_ASSIGN(index, ledger_.claim(tensor_name, /*whole=*/false));
  select_device();
  bool complete = false;
  const Status status = add_host_part(index, offset_bytes, bytes, complete);
  return ledger_.settle(index, status, complete);
}

Status DeviceFiller::add_host_part(size_t index, uint64_t offset, std::span<const std::byte> bytes,
                                   bool& complete) {
  WARPROLL_TRY(ledger_.add_part(index, offset, bytes.size(), complete));
  WARPROLL_TRY(open(index));
  parts_.ring->copy(bytes, arrivals_[index].place + offset, arrivals_[index].stream);
  return complete ? take_in(index) : ok_status();
}

Status DeviceFiller::put_device(std::span<const DevicePart> parts, void* stream) {
  select_device();
  const auto theirs = static_cast<cudaStream_t>(stream);
  const CudaEvent arrived;
  arrived.record(theirs);
  for (const CudaStream& mine : parts_.streams) arrived.hold(mine.get());
  Status status;
  for (const DevicePart& part : parts) {
    const Result<size_t> index = ledger_.claim(part.tensor_name, /*whole=*/false);
    status = index.status();
    if (!status.ok()) break;
    bool complete = false;
    status = add_device_part(*index, part, complete);
    status = ledger_.settle(*index, status, complete);
    if (!status.ok()) break;
  }
  for (const CudaStream& mine : parts_.streams) {  // also after a failure: the bytes may be read
    const CudaEvent taken;
    taken.record(mine.get());
    taken.hold(theirs);
  }
  return status;
}

Status DeviceFiller::add_device_part(size_t index, const DevicePart& part, bool& complete) {
  WARPROLL_TRY(ledger_.add_part(index, part.offset_bytes, part.bytes.size(), complete));
  const PlannedTensor& tensor = ledger_.tensor(index);
  Arrival& arrival = arrivals_[index];
  const bool whole = complete && part.bytes.size() == tensor.info.bytes;
  const bool needs_place = tensor.kind == Kind::kCopy && tensor.as_rows;
  if (whole && !needs_place && aligned(part.bytes.data())) {
    arrival.stream = next_stream();
    return process(index, part.bytes.data());
  }
  WARPROLL_TRY(open(index));
  if (!part.bytes.empty()) {
    WARPROLL_CUDA_CHECK(cudaMemcpyAsync(arrival.place + part.offset_bytes, part.bytes.data(),
                                        part.bytes.size(), cudaMemcpyDeviceToDevice,
                                        arrival.stream));
  }
  return complete ? take_in(index) : ok_status();
}

// All bytes of the tensor are at its place, or will be when the stream gets there.
Status DeviceFiller::take_in(size_t index) {
  Arrival& arrival = arrivals_[index];
  if (!aligned(arrival.place)) {  // rows stacked at odd places: the kernels read a copy
    const uint64_t bytes = ledger_.tensor(index).info.bytes;
    WARPROLL_TRY_ASSIGN(buffer, pool_.take(bytes, arrival.stream));
    WARPROLL_CUDA_CHECK(cudaMemcpyAsync(buffer->memory.data(), arrival.place, bytes,
                                        cudaMemcpyDeviceToDevice, arrival.stream));
    arrival.buffer = buffer;
    arrival.place = buffer->memory.data();
  }
  const Status status = process(index, arrival.place);
  if (arrival.buffer != nullptr) pool_.give(std::exchange(arrival.buffer, nullptr), arrival.stream);
  return status;
}

Status DeviceFiller::process(size_t index, const std::byte* data) {
  const PlannedTensor& tensor = ledger_.tensor(index);
  const Arrival& arrival = arrivals_[index];
  if (tensor.info.bytes == 0) return ok_status();
  digests_->enqueue(arrival.digest, data, arrival.stream);
  find_not_finite_key({.data = data,
                       .bytes = tensor.info.bytes,
                       .dtype = tensor.scan_as,
                       .key = not_finite_.data() + index},
                      arrival.stream);
  if (tensor.kind == Kind::kQuantise) return quantise(index, data);
  if (tensor.kind == Kind::kCopy && tensor.tiles) {
    tensor.is_scale ? pack(index, nullptr, data) : pack(index, data, nullptr);
  }
  return ok_status();
}

Status DeviceFiller::quantise(size_t index, const std::byte* data) {
  const PlannedTensor& tensor = ledger_.tensor(index);
  const Arrival& arrival = arrivals_[index];
  const uint64_t elements_bytes = tensor.quantised.elements.bytes;
  const uint64_t scales_at =
      (elements_bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  WARPROLL_TRY_ASSIGN(buffer,
                      pool_.take(scales_at + tensor.quantised.scales.bytes, arrival.stream));
  std::byte* elements = buffer->memory.data();
  std::byte* scales = elements + scales_at;
  const int64_t cols = tensor.info.shape.back();
  quantise_mxfp8({.source = data,
                  .source_dtype = tensor.info.dtype,
                  .rows = static_cast<int64_t>(elements_bytes) / cols,
                  .cols = cols,
                  .elements = reinterpret_cast<uint8_t*>(elements),
                  .scales = reinterpret_cast<uint8_t*>(scales)},
                 nullptr, arrival.stream);
  digests_->enqueue(arrival.digest + 1, elements, arrival.stream);
  digests_->enqueue(arrival.digest + 2, scales, arrival.stream);
  if (tensor.tiles) {
    pack(index, elements, scales);
  } else {
    const auto copy = [&](uint64_t to, const std::byte* from, uint64_t bytes) {
      WARPROLL_CUDA_CHECK(cudaMemcpyAsync(parts_.arena.data() + to, from, bytes,
                                          cudaMemcpyDeviceToDevice, arrival.stream));
    };
    copy(tensor.arena_offset, elements, elements_bytes);
    copy(tensor.scales_arena_offset, scales, tensor.quantised.scales.bytes);
  }
  pool_.give(buffer, arrival.stream);
  return ok_status();
}

void DeviceFiller::pack(size_t index, const std::byte* elements, const std::byte* scales) {
  const PlannedTiles& tiles = *ledger_.tensor(index).tiles;
  const TileRegion& region = parts_.layout->tile_regions[tiles.region];
  WeightView rows = rows_of(region, tiles);
  rows.data = elements;
  rows.scales = scales;
  const TileTarget to = {.tiles = tile_matrix(region, nullptr),
                         .out = parts_.arena.data() + region.offset_bytes,
                         .gate_up = region.gate_up,
                         .first_matrix = tiles.first_matrix,
                         .first_row = tiles.first_row};
  if (elements != nullptr) pack_elements(rows, to, arrivals_[index].stream);
  if (scales != nullptr) pack_scales(rows, to, arrivals_[index].stream);
}

// What the device found of one tensor.
Status DeviceFiller::judge(size_t index, uint64_t not_finite_key) {
  const PlannedTensor& tensor = ledger_.tensor(index);
  const Arrival& arrival = arrivals_[index];
  if (not_finite_key != kNoneNotFinite) {
    const NotFinite found = not_finite_of(tensor.scan_as, not_finite_key);
    std::byte element[sizeof(found.bits)];
    std::memcpy(element, &found.bits, sizeof(element));  // little-endian
    return not_finite_error(tensor.info.name, tensor.scan_as, found.index,
                            {element, dtype_bytes(tensor.scan_as)});
  }
  WARPROLL_TRY(ledger_.set_digest(index, digests_->get(arrival.digest)));
  if (tensor.kind == Kind::kQuantise) {
    ledger_.set_quantised_digests(index, digests_->get(arrival.digest + 1),
                                  digests_->get(arrival.digest + 2));
  }
  return ok_status();
}

Result<FilledArena> DeviceFiller::finish() {
  select_device();
  WARPROLL_TRY(ledger_.check_missing());
  for (const CudaStream& stream : parts_.streams) stream.synchronize();
  digests_->fetch();
  const std::vector<uint64_t> keys = not_finite_.to_host();
  for (size_t i = 0; i < keys.size(); ++i) WARPROLL_TRY(judge(i, keys[i]));
  return ledger_.finish();
}

}  // namespace warproll
