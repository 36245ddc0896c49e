// Steps as graphs, two deep: inputs and results through page-locked memory, the end by its number alone.
#include "kernels/step_exchange.h"

#include <atomic>
#include <numeric>

#include "gpu_support.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/pinned_buffer.h"
#include "kernels/cuda/stream_owner.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h

std::byte* bytes_of(int32_t* p) { return reinterpret_cast<std::byte*>(p); }

TEST(StepExchangeGpu, StepsTwoDeepReadTheirOwnInputsAndGiveTheirOwnResults) {
  SKIP_WITHOUT_GPU();
  for (const size_t numbers : {4, 5, 1023, 200'000}) {
    constexpr uint64_t kSteps = 300;
    const size_t stride = (numbers + 3) / 4 * 4;
    const uint64_t bytes = numbers * sizeof(int32_t), stride_bytes = stride * sizeof(int32_t);
    PinnedBuffer<int32_t> inputs(stride * kStepSlots), results(stride * kStepSlots),
        large(stride * kStepSlots);
    PinnedBuffer<StepDone> done(kStepSlots);
    std::ranges::fill(done.span(), StepDone{});
    DeviceBuffer<int32_t> on_device(stride);
    const uint64_t zero = 0;
    DeviceBuffer<uint64_t> step{std::span<const uint64_t>(&zero, 1)};
    const CudaStream stream;
    const CudaGraph graph = CudaGraph::capture([&](cudaStream_t to) {
      copy_slot({.step = step.data(),
                 .from = bytes_of(inputs.data()),
                 .to = bytes_of(on_device.data()),
                 .from_stride_bytes = stride_bytes,
                 .bytes = bytes},
                to);
      SlotCopyParams back = {.step = step.data(),
                             .from = bytes_of(on_device.data()),
                             .to = bytes_of(large.data()),
                             .to_stride_bytes = stride_bytes,
                             .bytes = bytes};
      copy_slot(back, to);
      back.to = bytes_of(results.data());
      end_step({.step = step.data(), .results = back, .done = done.data()}, to);
    });
    const auto launch = [&](uint64_t n) {
      int32_t* const slot = inputs.data() + n % kStepSlots * stride;
      std::iota(slot, slot + numbers, static_cast<int32_t>(n * 1000));
      graph.launch(stream.get());
    };
    launch(0);
    for (uint64_t n = 0; n < kSteps; ++n) {
      if (n + 1 < kSteps) launch(n + 1);
      const std::atomic_ref<uint64_t> number(done.data()[n % kStepSlots].number);
      while (number.load(std::memory_order_acquire) != n + 1) {
        const cudaError_t code = cudaStreamQuery(stream.get());
        ASSERT_TRUE(code == cudaSuccess || code == cudaErrorNotReady) << cudaGetErrorString(code);
      }
      for (size_t i = 0; i < numbers; ++i) {
        const auto wanted = static_cast<int32_t>(n * 1000 + i);
        ASSERT_EQ(results.data()[n % kStepSlots * stride + i], wanted) << "step " << n;
        ASSERT_EQ(large.data()[n % kStepSlots * stride + i], wanted) << "step " << n;
      }
    }
    stream.synchronize();
    EXPECT_EQ(step.to_host().at(0), kSteps);
  }
}

}  // namespace
}  // namespace warproll
