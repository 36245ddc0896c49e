// A warpgroup's matrix product for expert_centric_gemm.cuh: D[64, N] += A[64, 32] B[32, N], A in
// registers as tiles hold it, B tokens in shared memory. sm_90a: wgmma, asynchronous. Elsewhere:
// mma.sync by each warp for its own 16 rows. The accumulators are laid out alike: of columns
// 8i .. 8i + 7, d[4i .. 4i + 3] = (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1) of the warp's 16 rows,
// g = lane/4, t = lane%4. Internal to kernels/moe/*.cu.
//
// B: token n's 64 columns are 128 bytes at n * 128, F16; the 16-byte chunk c lies at place
// c ^ (n % 8) (the 128-byte swizzle). 1024-byte aligned.
#pragma once

#include "kernels/cuda/ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARPROLL_WGMMA 1
#else
#define WARPROLL_WGMMA 0
#endif

namespace warproll::moe {

// Until at most kLeft of the products given to commit_products() are still running.
template <int kLeft>
__device__ __forceinline__ void wait_products() {
#if WARPROLL_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#endif
}

__device__ __forceinline__ void commit_products() {
#if WARPROLL_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Before the first product after registers were written.
__device__ __forceinline__ void fence_products() {
#if WARPROLL_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Keeps the compiler from moving uses of the sums across.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#if WARPROLL_WGMMA

#define WARPROLL_D0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WARPROLL_D1 WARPROLL_D0 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WARPROLL_D2 WARPROLL_D1 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WARPROLL_D3 WARPROLL_D2 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WARPROLL_D4 WARPROLL_D3 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define WARPROLL_D5 WARPROLL_D4 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WARPROLL_D6 \
  WARPROLL_D5 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define WARPROLL_D7 \
  WARPROLL_D6 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define WARPROLL_S4(b) "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3])
#define WARPROLL_S16(b) WARPROLL_S4(b), WARPROLL_S4(b + 4), WARPROLL_S4(b + 8), WARPROLL_S4(b + 12)
#define WARPROLL_S0 WARPROLL_S16(0)
#define WARPROLL_S1 WARPROLL_S0, WARPROLL_S16(16)
#define WARPROLL_S2 WARPROLL_S1, WARPROLL_S16(32)
#define WARPROLL_S3 WARPROLL_S2, WARPROLL_S16(48)
#define WARPROLL_S4_ WARPROLL_S3, WARPROLL_S16(64)
#define WARPROLL_S5 WARPROLL_S4_, WARPROLL_S16(80)
#define WARPROLL_S6 WARPROLL_S5, WARPROLL_S16(96)
#define WARPROLL_S7 WARPROLL_S6, WARPROLL_S16(112)

// Operands after the sums: a0 .. a3, the descriptor of B.
#define WARPROLL_ISSUE(n, places, sums, a0_, a1_, a2_, a3_, b_)                             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" places "}, {" a0_ \
               "," a1_ "," a2_ "," a3_ "}, " b_ ", 1, 1, 1, 0;"                             \
               : sums                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d += A[64, 16] B[16, 2 * kCount].
template <int kCount>
__device__ __forceinline__ void wgmma(float (&d)[kCount], const uint32_t* a, uint64_t b) {
  if constexpr (kCount == 16) {
    WARPROLL_ISSUE(32, WARPROLL_D0, WARPROLL_S0, "%16", "%17", "%18", "%19", "%20");
  } else if constexpr (kCount == 32) {
    WARPROLL_ISSUE(64, WARPROLL_D1, WARPROLL_S1, "%32", "%33", "%34", "%35", "%36");
  } else if constexpr (kCount == 48) {
    WARPROLL_ISSUE(96, WARPROLL_D2, WARPROLL_S2, "%48", "%49", "%50", "%51", "%52");
  } else if constexpr (kCount == 64) {
    WARPROLL_ISSUE(128, WARPROLL_D3, WARPROLL_S3, "%64", "%65", "%66", "%67", "%68");
  } else if constexpr (kCount == 80) {
    WARPROLL_ISSUE(160, WARPROLL_D4, WARPROLL_S4_, "%80", "%81", "%82", "%83", "%84");
  } else if constexpr (kCount == 96) {
    WARPROLL_ISSUE(192, WARPROLL_D5, WARPROLL_S5, "%96", "%97", "%98", "%99", "%100");
  } else {
    static_assert(kCount == 128);
    WARPROLL_ISSUE(256, WARPROLL_D7, WARPROLL_S7, "%128", "%129", "%130", "%131", "%132");
  }
}

// d += A[64, 32] B: columns 32 * kHalf .. of the 64 at `tokens`. Running until wait_products().
template <int kHalf, int kCount>
__device__ __forceinline__ void multiply(float (&d)[kCount], const uint32_t (&a)[8],
                                         uint32_t tokens) {
  // Eight rows are 1024 bytes apart from the next eight; 128-byte swizzle.
  const uint64_t b = (uint64_t{1} << 62) | (uint64_t{64} << 32) | (uint64_t{1} << 16) |
                     ((tokens + kHalf * 64) >> 4);
  wgmma(d, a, b);
  wgmma(d, a + 4, b + 2);
}

#else

template <int kHalf, int kCount>
__device__ __forceinline__ void multiply(float (&d)[kCount], const uint32_t (&a)[8],
                                         uint32_t tokens) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t at = tokens + lane % 8 * 128 + ((kHalf * 4 + lane / 8) ^ (lane % 8)) * 16;
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    uint32_t b[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at + static_cast<uint32_t>(i) * 1024)
                 : "memory");
    float(&sums)[4] = *reinterpret_cast<float(*)[4]>(d + 4 * i);
    ptx::mma_16816(sums, a[0], a[1], a[2], a[3], b[0], b[1]);
    ptx::mma_16816(sums, a[4], a[5], a[6], a[7], b[2], b[3]);
  }
}

#endif

}  // namespace warproll::moe
