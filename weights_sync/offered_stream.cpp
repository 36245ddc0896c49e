#include "weights_sync/offered_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace warproll {

Result<std::shared_ptr<const OfferedStream>> OfferedStream::make(const OfferedCheckpoint& offered) {
  auto stream = std::make_shared<OfferedStream>();
  stream->offered_ = offered;
  const Checkpoint& checkpoint = *offered.checkpoint;
  const auto tensors = checkpoint.tensors();
  for (const ManifestEntry& entry : offered.manifest->entries) {
    const auto found = std::lower_bound(
        tensors.begin(), tensors.end(), entry.tensor.name,
        [](const TensorInfo& tensor, const std::string& name) { return tensor.name < name; });
    if (found == tensors.end() || found->name != entry.tensor.name ||
        found->bytes != entry.tensor.bytes) {
      return invalid_argument("tensor '" + entry.tensor.name +
                              "' of the manifest is not in checkpoint " + checkpoint.directory());
    }
    stream->bytes_.push_back(checkpoint.bytes(static_cast<size_t>(found - tensors.begin())));
    stream->offsets_.push_back(offered.manifest->stream_offset(entry));
  }
  return std::shared_ptr<const OfferedStream>(std::move(stream));
}

size_t OfferedStream::entry_at(uint64_t offset) const {
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), offset);
  return after == offsets_.begin() ? 0 : static_cast<size_t>(after - offsets_.begin()) - 1;
}

std::span<const std::byte> OfferedStream::range(uint64_t offset, uint64_t length,
                                                std::vector<std::byte>& scratch) const {
  const size_t index = entry_at(offset);
  const uint64_t inside = offset - offsets_[index];
  if (inside + length <= bytes_[index].size()) return bytes_[index].subspan(inside, length);
  scratch.resize(length);
  copy(offset, scratch);
  return scratch;
}

void OfferedStream::copy(uint64_t offset, std::span<std::byte> to) const {
  uint64_t done = 0;  // of `to`
  for (size_t i = entry_at(offset); i < offsets_.size() && offsets_[i] < offset + to.size(); ++i) {
    const uint64_t from = std::max(offset, offsets_[i]);
    const uint64_t end = std::min(offset + to.size(), offsets_[i] + bytes_[i].size());
    if (from >= end) continue;
    std::memset(to.data() + done, 0, from - offset - done);
    std::memcpy(to.data() + (from - offset), bytes_[i].data() + (from - offsets_[i]), end - from);
    done = end - offset;
  }
  std::memset(to.data() + done, 0, to.size() - done);
}

}  // namespace warproll
