// wait_for_step: waits until a device has written a step's number behind its results
// (kernels/step_exchange.h), without a call to the driver, whose lock another thread of the process may
// hold while it frees memory. Only now and then the device is asked whether it can still get there: a
// fault would leave the number unwritten for ever.
// Thread: any. Errors: what device_is_idle throws; std::logic_error = the device has nothing left to do
// and the number is another.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace warproll {

// Longer than nearly all steps, and short for a fault to stay unseen.
inline constexpr std::chrono::milliseconds kStepCheckEvery{50};

// Memory that is read here with acquire is what the device wrote before `number`.
// device_is_idle: all that was enqueued has ended; throws on a device's fault.
void wait_for_step(uint64_t& number, uint64_t wanted, const std::function<bool()>& device_is_idle,
                   std::chrono::milliseconds check_every = kStepCheckEvery);

}  // namespace warproll
