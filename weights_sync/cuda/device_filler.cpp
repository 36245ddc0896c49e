#include "weights_sync/cuda/device_filler.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/not_finite.h"
#include "weights_sync/layout_check.h"
#include "weights_sync/tensor_scan.h"

namespace warproll {
namespace {

using Kind = PlannedTensor::Kind;

// What a launch has at most: quantised bytes, so that its buffer is always of one size (the next tensor
// may need a second one), and items, so that their lists are short.
constexpr uint64_t kScratchBytes = uint64_t{64} << 20;
constexpr uint64_t kFullScratchBytes = uint64_t{60} << 20;
constexpr size_t kMostItems = 4096;

bool aligned(const std::byte* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

Result<std::unique_ptr<WeightFiller>> DeviceFiller::create(const DeviceFillerParts& parts) {
  WARPROLL_TRY_ASSIGN(plan, make_fill_plan(*parts.layout, parts.arena.size(), parts.manifest));
  try {
    auto filler = std::make_unique<DeviceFiller>(parts, std::move(plan));
    WARPROLL_TRY(filler->start());
    return std::unique_ptr<WeightFiller>(std::move(filler));
  } catch (const CudaError& error) {
    if (error.code() != cudaErrorMemoryAllocation) throw;
    cudaGetLastError();  // it is told here
    return resource_exhausted(std::string("the digests of a fill: ") + error.what());
  }
}

DeviceFiller::DeviceFiller(const DeviceFillerParts& parts, FillPlan plan)
    : parts_(parts), ledger_(std::move(plan), parts.manifest) {}

Status DeviceFiller::start() {
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
  if (parts_.tile_slots != nullptr) {
    staging_.emplace(*parts_.layout, ledger_.plan(), parts_.arena, *parts_.tile_slots);
  }
  const cudaStream_t first = parts_.streams.front().get();
  const uint64_t key_bytes = align_to_arena(tensors.size() * sizeof(uint64_t));
  WARPROLL_TRY_ASSIGN(results, parts_.pool->take(key_bytes + digests_->device_bytes(), first));
  results_ = results;
  not_finite_ = reinterpret_cast<uint64_t*>(results_->memory.data());
  digests_->use(results_->memory.data() + key_bytes);
  WARPROLL_CUDA_CHECK(cudaMemsetAsync(not_finite_, 0xff, key_bytes, first));
  // Not the whole arena: tens of gigabytes take the memory's whole bandwidth from a decode step.
  for (const ArenaGap& gap : arena_gaps(*parts_.layout)) {
    WARPROLL_CUDA_CHECK(cudaMemsetAsync(parts_.arena.data() + gap.begin, 0, gap.bytes, first));
  }
  const CudaEvent cleared;
  cleared.record(first);
  for (const CudaStream& stream : parts_.streams) cleared.hold(stream.get());
  return ok_status();
}

DeviceFiller::~DeviceFiller() {
  cudaSetDevice(parts_.device);
  for (const CudaStream& stream : parts_.streams) cudaStreamSynchronize(stream.get());
  if (staging_) cudaStreamSynchronize(parts_.tile_slots->out().get());
  const cudaStream_t first = parts_.streams.front().get();
  for (Arrival& arrival : arrivals_) {
    if (arrival.buffer != nullptr) parts_.pool->give(arrival.buffer, first);
  }
  if (results_ != nullptr) parts_.pool->give(results_, first);
}

void DeviceFiller::select_device() const { WARPROLL_CUDA_CHECK(cudaSetDevice(parts_.device)); }

cudaStream_t DeviceFiller::next_stream() {
  return parts_.streams[stream_index_++ % parts_.streams.size()].get();
}

// In host memory kernels would read them over PCIe.
bool DeviceFiller::gathers_in_arena(const PlannedTensor& tensor) const {
  return tensor.kind == Kind::kCopy && tensor.as_rows && parts_.tile_slots == nullptr;
}

// Gives a tensor the place where its bytes gather. What is enqueued on `stream` from here on comes
// behind what was done for it before.
Status DeviceFiller::open(size_t index, cudaStream_t stream) {
  Arrival& arrival = arrivals_[index];
  if (arrival.stream != nullptr && arrival.stream != stream) {
    const CudaEvent so_far;
    so_far.record(arrival.stream);
    so_far.hold(stream);
  }
  arrival.stream = stream;
  if (arrival.place != nullptr) return ok_status();
  const PlannedTensor& tensor = ledger_.tensor(index);
  if (gathers_in_arena(tensor)) {
    arrival.place = parts_.arena.data() + tensor.arena_offset;
    return ok_status();
  }
  WARPROLL_TRY_ASSIGN(buffer, parts_.pool->take(tensor.info.bytes, stream));
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
  const cudaStream_t stream =
      arrivals_[index].stream != nullptr ? arrivals_[index].stream : next_stream();
  WARPROLL_TRY(open(index, stream));
  parts_.ring->copy(bytes, arrivals_[index].place + offset, stream);
  if (!complete) return ok_status();
  Work work;
  const Status status = take_in(index, work);
  launch(work, stream);
  return status;
}

Status DeviceFiller::put_device(std::span<const DevicePart> parts, void* stream) {
  select_device();
  const auto theirs = static_cast<cudaStream_t>(stream);
  const cudaStream_t mine = parts_.streams.front().get();
  const CudaEvent arrived;
  arrived.record(theirs);
  arrived.hold(mine);
  Work work;
  work.scratch_bytes = kScratchBytes;
  Status status;
  for (const DevicePart& part : parts) {
    const Result<size_t> index = ledger_.claim(part.tensor_name, /*whole=*/false);
    status = index.status();
    if (!status.ok()) break;
    bool complete = false;
    status = add_device_part(*index, part, work, complete);
    status = ledger_.settle(*index, status, complete);
    if (!status.ok()) break;
    if (work.total_scratch_bytes >= kFullScratchBytes || work.batch.num_items() >= kMostItems) {
      launch(work, mine);
    }
  }
  launch(work, mine);
  const CudaEvent taken;  // also after a failure: the bytes may be read
  taken.record(mine);
  taken.hold(theirs);
  return status;
}

Status DeviceFiller::add_device_part(size_t index, const DevicePart& part, Work& work,
                                     bool& complete) {
  const cudaStream_t mine = parts_.streams.front().get();
  WARPROLL_TRY(ledger_.add_part(index, part.offset_bytes, part.bytes.size(), complete));
  const PlannedTensor& tensor = ledger_.tensor(index);
  Arrival& arrival = arrivals_[index];
  const bool whole = complete && part.bytes.size() == tensor.info.bytes;
  if (whole && !gathers_in_arena(tensor) && aligned(part.bytes.data())) {
    arrival.stream = mine;
    return process(index, part.bytes.data(), work);
  }
  WARPROLL_TRY(open(index, mine));
  if (!part.bytes.empty()) {
    WARPROLL_CUDA_CHECK(cudaMemcpyAsync(arrival.place + part.offset_bytes, part.bytes.data(),
                                        part.bytes.size(), cudaMemcpyDeviceToDevice, mine));
  }
  return complete ? take_in(index, work) : ok_status();
}

void DeviceFiller::launch_batch(Work& work, cudaStream_t stream) {
  work.batch.launch(*parts_.items, stream);
  if (staging_) staging_->packed(work.pieces, stream);
  work.pieces.clear();
}

void DeviceFiller::launch(Work& work, cudaStream_t stream) {
  launch_batch(work, stream);
  for (BufferPool::Buffer* buffer : work.buffers) parts_.pool->give(buffer, stream);
  work.buffers.clear();
  work.scratch = nullptr;
  work.scratch_used = work.total_scratch_bytes = 0;
}

// All bytes of the tensor are at its place, or will be when the stream gets there.
Status DeviceFiller::take_in(size_t index, Work& work) {
  Arrival& arrival = arrivals_[index];
  const std::byte* data = arrival.place;
  if (!aligned(data)) {  // rows stacked at odd places: the kernels read a copy
    const uint64_t bytes = ledger_.tensor(index).info.bytes;
    WARPROLL_TRY_ASSIGN(buffer, parts_.pool->take(bytes, arrival.stream));
    work.buffers.push_back(buffer);
    WARPROLL_CUDA_CHECK(cudaMemcpyAsync(buffer->memory.data(), data, bytes,
                                        cudaMemcpyDeviceToDevice, arrival.stream));
    data = buffer->memory.data();
  }
  if (arrival.buffer != nullptr) work.buffers.push_back(std::exchange(arrival.buffer, nullptr));
  return process(index, data, work);
}

Status DeviceFiller::process(size_t index, const std::byte* data, Work& work) {
  const PlannedTensor& tensor = ledger_.tensor(index);
  const Arrival& arrival = arrivals_[index];
  if (tensor.info.bytes == 0) return ok_status();
  digests_->add(arrival.digest, data, not_finite_rule(tensor.scan_as), not_finite_ + index,
                work.batch.sources, work.batch);
  if (tensor.kind == Kind::kQuantise) return quantise(index, data, work);
  if (tensor.kind != Kind::kCopy) return ok_status();
  if (tensor.as_rows && !gathers_in_arena(tensor)) {
    work.batch.copy(parts_.arena.data() + tensor.arena_offset, data, tensor.info.bytes);
  }
  if (tensor.tiles) {
    tensor.is_scale ? pack(index, nullptr, data, work) : pack(index, data, nullptr, work);
  }
  return ok_status();
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
  if (staging_) parts_.tile_slots->out().synchronize();
  digests_->fetch();
  std::vector<uint64_t> keys(arrivals_.size());
  if (!keys.empty()) {
    WARPROLL_CUDA_CHECK(cudaMemcpy(keys.data(), not_finite_, keys.size() * sizeof(uint64_t),
                                   cudaMemcpyDeviceToHost));
  }
  for (size_t i = 0; i < keys.size(); ++i) WARPROLL_TRY(judge(i, keys[i]));
  return ledger_.finish();
}

}  // namespace warproll
