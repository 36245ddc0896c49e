#include "kernels/step_exchange.h"

#include <atomic>
#include <cstring>
#include <string>

#include "kernels/check.h"

namespace warproll {
namespace {

bool aligned(const std::byte* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void check_slot_copy(const SlotCopyParams& p) {
  if (p.bytes == 0) return;
  check_argument(p.step != nullptr && p.from != nullptr && p.to != nullptr, [] {
    return std::string("copy_slot: null pointer, wanted the step's number, from and to");
  });
  check_argument(aligned(p.from) && aligned(p.to) && p.from_stride_bytes % 16 == 0 &&
                     p.to_stride_bytes % 16 == 0 && p.bytes % 4 == 0,
                 [&] {
                   return "copy_slot: " + std::to_string(p.bytes) + " bytes, slots " +
                          std::to_string(p.from_stride_bytes) + " and " +
                          std::to_string(p.to_stride_bytes) +
                          " bytes apart, wanted addresses and distances in multiples of 16, bytes "
                          "of 4";
                 });
}

void copy_slot_cpu(const SlotCopyParams& p) {
  check_slot_copy(p);
  if (p.bytes == 0) return;
  const uint64_t slot = *p.step % kStepSlots;
  std::memcpy(p.to + slot * p.to_stride_bytes, p.from + slot * p.from_stride_bytes, p.bytes);
}

void end_step_cpu(const EndStepParams& p) {
  copy_slot_cpu(p.results);
  const uint64_t number = *p.step + 1;
  std::atomic_ref(p.done[*p.step % kStepSlots].number).store(number, std::memory_order_release);
  *p.step = number;
}

}  // namespace warproll
