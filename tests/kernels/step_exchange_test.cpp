#include "kernels/step_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace warproll {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct alignas(16) Block {
  std::byte bytes[64] = {};
};
constexpr uint64_t kStride = sizeof(Block);

TEST(StepExchange, steps_take_the_slots_in_turns) {
  Block slots[kStepSlots], here;
  std::ranges::fill(slots[0].bytes, std::byte{10});
  std::ranges::fill(slots[1].bytes, std::byte{11});
  for (uint64_t step = 0; step < 5; ++step) {
    copy_slot_cpu({.step = &step,
                   .from = slots[0].bytes,
                   .to = here.bytes,
                   .from_stride_bytes = kStride,
                   .bytes = 20});
    EXPECT_EQ(here.bytes[0], std::byte(10 + step % 2));
    EXPECT_EQ(here.bytes[19], std::byte(10 + step % 2));
    EXPECT_EQ(here.bytes[20], std::byte{0});
  }
}

TEST(StepExchange, the_end_of_a_step_brings_its_results_and_its_number_to_its_slot) {
  uint64_t step = 0;
  Block results, slots[kStepSlots];
  StepDone done[kStepSlots];
  for (uint64_t n = 0; n < 4; ++n) {
    std::ranges::fill(results.bytes, std::byte(n + 1));
    end_step_cpu({.step = &step,
                  .results = {.step = &step,
                              .from = results.bytes,
                              .to = slots[0].bytes,
                              .to_stride_bytes = kStride,
                              .bytes = 64},
                  .done = done});
    EXPECT_EQ(step, n + 1);
    EXPECT_EQ(done[n % 2].number, n + 1);
    EXPECT_EQ(done[1 - n % 2].number, n);  // the step before, still
    EXPECT_EQ(slots[n % 2].bytes[63], std::byte(n + 1));
    EXPECT_EQ(slots[1 - n % 2].bytes[63], std::byte(n));
  }
  end_step_cpu({.step = &step, .results = {}, .done = done});  // nothing to bring
  EXPECT_EQ(step, 5u);
  EXPECT_EQ(done[0].number, 5u);
}

TEST(StepExchange, what_cannot_be_copied_is_refused) {
  const uint64_t step = 0;
  Block from, to;
  const SlotCopyParams good = {.step = &step, .from = from.bytes, .to = to.bytes, .bytes = 16};
  EXPECT_NO_THROW(check_slot_copy(good));
  EXPECT_NO_THROW(copy_slot_cpu({}));
  const auto refused = [](const SlotCopyParams& p, const char* text) {
    EXPECT_THAT([&] { check_slot_copy(p); }, ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
  };
  SlotCopyParams bad = good;
  bad.bytes = 18;
  refused(bad, "18 bytes");
  bad = good;
  bad.from += 4;
  refused(bad, "multiples of 16");
  bad = good;
  bad.to_stride_bytes = 20;
  refused(bad, "0 and 20 bytes apart");
  bad = good;
  bad.step = nullptr;
  refused(bad, "null pointer");
}

}  // namespace
}  // namespace warproll
