// ServingArena: the one arena in device memory of a worker whose versions are kept in page-locked host
// memory (CudaArenaOptions::host_staged). A version is copied here, between two steps, to serve.
// Thread: one at a time; nothing may read the arena during upload(). Errors: CudaError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace warproll {

class ServingArena {
 public:
  ServingArena(int device, uint64_t bytes);
  ServingArena(const ServingArena&) = delete;
  ServingArena& operator=(const ServingArena&) = delete;
  ~ServingArena();

  [[nodiscard]] const std::byte* data() const { return data_; }
  // Blocking. At most as many bytes as it was made for (checked invariant).
  void upload(std::span<const std::byte> arena);

 private:
  const int device_;
  const uint64_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace warproll
