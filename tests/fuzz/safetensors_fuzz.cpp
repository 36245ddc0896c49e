// Any bytes as a safetensors file: refused, or every tensor lies inside the file and they tile it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "weights_sync/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto header = warproll::parse_safetensors(file, "fuzz.safetensors");
  if (!header.ok()) return 0;
  uint64_t end = 0;
  for (const auto& tensor : header->tensors) {
    if (end != 0 && tensor.offset_bytes != end) std::abort();
    end = tensor.offset_bytes + tensor.info.bytes;
    if (end > size) std::abort();
  }
  if (!header->tensors.empty() && end != size) std::abort();
  return 0;
}
