// Steps two deep on a device that is a thread: each takes its inputs from its slot, computes, and ends as
// the kernels' CPU twins do.
#include "rollout/engine/step_signal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/step_exchange.h"

namespace warproll {
namespace {

using std::chrono::milliseconds;

// Does what is enqueued, in order, on its own thread.
class FakeDevice {
 public:
  FakeDevice() : thread_([this] { run(); }) {}
  ~FakeDevice() {
    enqueue(nullptr);
    thread_.join();
  }
  void enqueue(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !work_.empty(); });
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (!work) return;
      work();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  std::thread thread_;
};

bool never_idle() { return false; }

TEST(StepSignal, steps_two_deep_read_their_own_inputs_and_give_their_own_results) {
  constexpr uint64_t kSteps = 20'000;
  constexpr size_t kNumbers = 64;
  using Slot = std::vector<uint64_t>;  // [kStepSlots][kNumbers], 16-byte aligned
  Slot inputs(kStepSlots * kNumbers), results(kStepSlots * kNumbers);
  Slot device_inputs(kNumbers), device_results(kNumbers);
  StepDone done[kStepSlots];
  uint64_t counted = 0;  // the device's own
  const auto bytes = [](Slot& slot) { return reinterpret_cast<std::byte*>(slot.data()); };
  constexpr uint64_t kBytes = kNumbers * sizeof(uint64_t);
  // The same for every step, as a graph is.
  const std::function<void()> graph = [&] {
    copy_slot_cpu({.step = &counted,
                   .from = bytes(inputs),
                   .to = bytes(device_inputs),
                   .from_stride_bytes = kBytes,
                   .bytes = kBytes});
    for (size_t i = 0; i < kNumbers; ++i) device_results[i] = device_inputs[i] * 3 + i;
    end_step_cpu({.step = &counted,
                  .results = {.step = &counted,
                              .from = bytes(device_results),
                              .to = bytes(results),
                              .to_stride_bytes = kBytes,
                              .bytes = kBytes},
                  .done = done});
  };
  FakeDevice device;
  const auto launch = [&](uint64_t step) {
    for (size_t i = 0; i < kNumbers; ++i) inputs[step % kStepSlots * kNumbers + i] = step * 7;
    device.enqueue(graph);
  };
  launch(0);
  for (uint64_t step = 0; step < kSteps; ++step) {
    if (step + 1 < kSteps) launch(step + 1);
    wait_for_step(done[step % kStepSlots].number, step + 1, never_idle);
    for (size_t i = 0; i < kNumbers; ++i) {
      ASSERT_EQ(results[step % kStepSlots * kNumbers + i], step * 21 + i) << "step " << step;
    }
  }
}

TEST(StepSignal, a_step_that_has_ended_is_not_waited_for_and_the_device_not_asked) {
  uint64_t number = 3;
  wait_for_step(
      number, 3, []() -> bool { throw std::runtime_error("asked"); }, milliseconds(0));
}

TEST(StepSignal, a_fault_of_the_device_ends_the_wait) {
  uint64_t number = 3;
  int asked = 0;
  const auto faults_at_the_third = [&]() -> bool {
    if (++asked == 3) throw std::runtime_error("unspecified launch failure");
    return false;
  };
  EXPECT_THROW(wait_for_step(number, 4, faults_at_the_third, milliseconds(1)), std::runtime_error);
  EXPECT_EQ(asked, 3);
}

TEST(StepSignal, an_idle_device_that_did_not_write_the_number_is_an_error) {
  uint64_t number = 2;
  EXPECT_THROW(wait_for_step(
                   number, 4, [] { return true; }, milliseconds(1)),
               std::logic_error);
  // Written between the last look and the question: no error.
  const auto writes_late = [&] {
    std::atomic_ref(number).store(4);
    return true;
  };
  wait_for_step(number, 4, writes_late, milliseconds(0));
}

}  // namespace
}  // namespace warproll
