// SPDX-License-Identifier: Apache-2.0
//
// Products of a warpgroup's four warps whose right factor, and where it pays the left one, the tensor cores read from
// shared memory by themselves (wgmma m64nNk16, compute capability 9.0), and the barriers by which warps that copy and
// warps that compute hand each other memory. For .cu files only.
//
// A panel has rows of 64 bfloat16, which lie as in a tile of 64 columns (cuda_mma.cuh), from a multiple of 1024 bytes
// on; a matrix of more columns is several panels. A warp of the four has 16 of the 64 rows of the sums and of a left
// factor in registers, as it has of mma.sync's; sums of n8 tile j are [4 j, 4 j + 4).
#pragma once

#include "kernels/cuda_mma.cuh"

namespace coluber {

inline constexpr int kPanelColumns = 64, kPanelRowBytes = 128;

// What the tensor cores read a panel by. By rows: the depth of the product lies along a row. By columns: the rows of
// the panel are the depth, and columns from 64 on are in a panel `panel_bytes` further.
__device__ inline uint64_t panel_by_rows(uint32_t panel) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (panel & 0x3ffffu) >> 4;
}
__device__ inline uint64_t panel_by_columns(uint32_t panel, uint32_t panel_bytes) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{panel_bytes >> 4} << 16 | (panel & 0x3ffffu) >> 4;
}
// Where the next 16 of the depth lie.
inline constexpr uint64_t kNextByRows = 32 >> 4, kNextByColumns = 16 * kPanelRowBytes >> 4;

// Before the first product, and after other instructions have written registers that a product reads or adds to.
__device__ inline void open_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kOpen>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}
// What this thread wrote to shared memory, or knows to be written, is there for the tensor cores.
__device__ inline void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define COLUBER_SUMS_8(s, i)                                                                            \
  "+f"(s[i]), "+f"(s[(i) + 1]), "+f"(s[(i) + 2]), "+f"(s[(i) + 3]), "+f"(s[(i) + 4]), "+f"(s[(i) + 5]), \
      "+f"(s[(i) + 6]), "+f"(s[(i) + 7])
#define COLUBER_SUMS_32(s, i) \
  COLUBER_SUMS_8(s, i), COLUBER_SUMS_8(s, (i) + 8), COLUBER_SUMS_8(s, (i) + 16), COLUBER_SUMS_8(s, (i) + 24)
#define COLUBER_NAMES_32                                                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define COLUBER_NAMES_64                                                                                        \
  COLUBER_NAMES_32                                                                                              \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// sums [64, 64] = left [64, 16] right [16, 64], added to what they were where `adds`. Both factors by rows.
__device__ inline void multiply_panels(float (&sums)[32], uint64_t left, uint64_t right, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" COLUBER_NAMES_32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : COLUBER_SUMS_32(sums, 0)
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)));
}
// sums += left right, the left factor in registers, the right one by columns.
__device__ inline void multiply_add_panel(float (&sums)[32], const uint32_t (&left)[4], uint64_t right) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" COLUBER_NAMES_32
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
               : COLUBER_SUMS_32(sums, 0)
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}
__device__ inline void multiply_add_panel(float (&sums)[64], const uint32_t (&left)[4], uint64_t right) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" COLUBER_NAMES_64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
               : COLUBER_SUMS_32(sums, 0), COLUBER_SUMS_32(sums, 32)
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}
#undef COLUBER_SUMS_8
#undef COLUBER_SUMS_32
#undef COLUBER_NAMES_32
#undef COLUBER_NAMES_64

// A left factor [16, 16] of registers into a panel; `vector`: of its first column.
__device__ inline void store_matrices(uint32_t address, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// Barriers in shared memory: a phase ends when `count` arrivals have come. A wait names the phase by its parity.
__device__ inline void make_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// An arrival as soon as this thread's copies so far are done.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void wait_for_phase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra done;\nbra "
      "again;\ndone:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// The 128 threads of one warpgroup.
__device__ inline void wait_for_warpgroup(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
}
template <int kRegisters>
__device__ inline void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace coluber
