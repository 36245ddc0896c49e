// expert_stream: what gate_up and down are both made of. A persistent CTA streams records of row
// tiles from device memory through a ring in shared memory and multiplies each with the activations
// of its expert block. Roles by warp:
//   warps 0..7  multiply: warp w takes blocks w, w + 8, w + 16, .. of every record. It keeps its
//               share of the expert block's activations in registers across records.
//   warp 8      loads: decides which record is next and fills the ring by bulk copies.
//   warp 9      finishes: adds the eight warps' sums, in warp order, and hands them to the Op.
// Roles meet at mbarriers only. So the order of every sum is a matter of columns alone, and the
// bytes in flight do not depend on what the warps compute.
//
// Work: records of all expert blocks in one line. A CTA takes an even share of the first three
// quarters; the rest goes to whoever is free, by a counter in device memory, because SMs do not get
// equal shares of the memory's bandwidth. Internal to kernels/moe/*.cu.
#pragma once

#include "kernels/moe/stream_finish.cuh"
#include "kernels/moe/stream_load.cuh"
#include "kernels/moe/stream_multiply.cuh"
