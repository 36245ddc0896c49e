// How many threads the CPU ops use. It never changes a result's bits.
// Thread: counts for ops called from the calling thread, as OpenMP has it.
#pragma once

namespace warproll {

// num_threads >= 1; 0 leaves the default, one a core. A build without OpenMP uses one.
void set_op_threads(int num_threads);

}  // namespace warproll
