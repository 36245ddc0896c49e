// SMs that kernels which fill the GPU leave to others. Such a kernel has one CTA an SM that takes all of
// its shared memory; where NCCL's kernel has one, the last CTA waits for another's end, and the kernel
// takes twice its time. With as many spared as NCCL has CTAs, decoding and receiving do not meet.
// One number for the process, set before the first launch: launches read it, graphs and tables keep it.
// Thread: set once, before other threads launch.
#pragma once

namespace warproll {

void spare_multiprocessors(int count);
[[nodiscard]] int spared_multiprocessors();

}  // namespace warproll
