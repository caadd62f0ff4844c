// SPDX-License-Identifier: Apache-2.0
//
// Products of bfloat16 tiles on the tensor cores, sums in float32: tiles in shared memory, their fragments in registers
// (mma.sync m16n8k16, which every device from compute capability 8.0 on has), copies into them that wait for nothing.
//
// A tile has rows of kColumns elements, 32, 64 or 128, in vectors of 16 bytes; vector v of row r stands at v ^ (r % 8)
// (of 32 columns v ^ (r / 2 % 4)), so that eight rows of one vector lie in different banks. Lane l of a fragment of
// sums has elements [0, 2) at row l / 4, column l % 4 * 2, and [2, 4) eight rows below. For .cu files only.
#pragma once

#include "kernels/cuda_math.cuh"

namespace coluber {

__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

template <int kColumns>
__device__ inline uint32_t tile_offset(int row, int vector) {
  const int spread = kColumns == 32 ? row >> 1 & 3 : row & 7;
  return static_cast<uint32_t>(row * (kColumns * 2) + ((vector ^ spread) << 4));
}
// The 32 bits of columns [column, column + 2), column even.
template <int kColumns>
__device__ inline uint32_t tile_offset_of_pair(int row, int column) {
  return tile_offset<kColumns>(row, column / 8) + static_cast<uint32_t>(column % 8 * 2);
}

// Sixteen bytes or four, or zeros.
__device__ inline void copy_16_later(uint32_t to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}
__device__ inline void copy_4_later(uint32_t to, const void* from, bool is_there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(is_there ? 4 : 0) : "memory");
}
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kOpen>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

// The first `rows` rows of kRows, of `columns` elements each, `stride` elements apart; what is not there is zeros. All
// threads [0, kThreads) take part.
template <int kThreads, int kRows, int kColumns>
__device__ inline void copy_tile_later(const __nv_bfloat16* to, const __nv_bfloat16* from, int64_t stride, int rows,
                                       int columns, int thread) {
  constexpr int kVectors = kColumns / 8, kTogether = kThreads / kVectors;
  static_assert(kThreads % kVectors == 0 && kRows % kTogether == 0);
  const int first = thread / kVectors, vector = thread % kVectors;
  const __nv_bfloat16* source = from + first * stride + vector * 8;
  const bool has_columns = vector * 8 < columns;
  const uint32_t tile = shared_address(to);
#pragma unroll
  for (int i = 0; i < kRows / kTogether; ++i) {
    const int row = first + i * kTogether;
    const bool is_there = has_columns && row < rows;
    copy_16_later(tile + tile_offset<kColumns>(row, vector), is_there ? source : from, is_there);
    source += kTogether * stride;
  }
}

template <int kThreads, int kRows, int kColumns>
__device__ inline void copy_tile_later(const __nv_bfloat16* to, const __nv_bfloat16* from, int64_t stride, int rows,
                                       int columns) {
  copy_tile_later<kThreads, kRows, kColumns>(to, from, stride, rows, columns, static_cast<int>(threadIdx.x));
}

__device__ inline void load_matrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// Fragments of 16 x 16 elements of a tile; `vector`: of the first column.
// The left factor, rows by depth, from a tile [row][depth].
template <int kColumns>
__device__ inline void load_left(uint32_t (&to)[4], uint32_t tile, int row, int vector, int lane) {
  load_matrices(to, tile + tile_offset<kColumns>(row + lane % 16, vector + lane / 16));
}
// The left factor from a tile [depth][row].
template <int kColumns>
__device__ inline void load_left_transposed(uint32_t (&to)[4], uint32_t tile, int depth, int vector, int lane) {
  load_matrices_transposed(to, tile + tile_offset<kColumns>(depth + lane % 8 + lane / 16 * 8, vector + lane / 8 % 2));
}
// The right factor for two tiles of 8 columns, elements [0, 2) and [2, 4), from a tile [column][depth].
template <int kColumns>
__device__ inline void load_right(uint32_t (&to)[4], uint32_t tile, int column, int vector, int lane) {
  load_matrices(to, tile + tile_offset<kColumns>(column + lane % 8 + lane / 16 * 8, vector + lane / 8 % 2));
}
// The right factor from a tile [depth][column].
template <int kColumns>
__device__ inline void load_right_transposed(uint32_t (&to)[4], uint32_t tile, int depth, int vector, int lane) {
  load_matrices_transposed(to, tile + tile_offset<kColumns>(depth + lane % 16, vector + lane / 16));
}

// sums [16, 8] += left [16, 16] right [16, 8]
__device__ inline void multiply_add(float (&sums)[4], const uint32_t (&left)[4], uint32_t right_0, uint32_t right_1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_0), "r"(right_1));
}
// Two tiles of 8 columns.
__device__ inline void multiply_add(float (&sums_0)[4], float (&sums_1)[4], const uint32_t (&left)[4],
                                    const uint32_t (&right)[4]) {
  multiply_add(sums_0, left, right[0], right[1]);
  multiply_add(sums_1, left, right[2], right[3]);
}

// Operands rounded to 10 bits of mantissa, for products whose factors bfloat16's 7 bits would spoil: sums [16, 8] +=
// left [16, 8] right [8, 8]. Lane l has of the left factor rows l / 4 and 8 below at column l % 4, then both at column
// 4 + l % 4; of the right one rows l % 4 and 4 below at column l / 4.
__device__ inline uint32_t rounded_to_tf32(float v) {
  uint32_t result;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(v));
  return result;
}
__device__ inline void multiply_add_tf32(float (&sums)[4], const uint32_t (&left)[4], const uint32_t (&right)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}

__device__ inline uint32_t pack_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}
// Sums [16, 16] as the left factor of the next product.
__device__ inline void left_of_sums(uint32_t (&to)[4], const float (&sums_0)[4], const float (&sums_1)[4]) {
  to[0] = pack_pair(sums_0[0], sums_0[1]);
  to[1] = pack_pair(sums_0[2], sums_0[3]);
  to[2] = pack_pair(sums_1[0], sums_1[1]);
  to[3] = pack_pair(sums_1[2], sums_1[3]);
}
// An 8 x 8 block of pairs, row l / 4 and columns l % 4 * 2 a lane, transposed.
__device__ inline uint32_t transposed_block(uint32_t pair) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}
// Both elements of a pair times a factor of its own.
__device__ inline uint32_t scale_pair(uint32_t pair, float2 by) {
  return pack_pair(__uint_as_float(pair << 16) * by.x, __uint_as_float(pair & 0xffff0000u) * by.y);
}

__device__ inline void store_shared_16(uint32_t address, const uint32_t (&value)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value[0]), "r"(value[1]), "r"(value[2]),
               "r"(value[3])
               : "memory");
}
__device__ inline void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ inline uint32_t load_shared(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline uint4 load_shared_16(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace coluber
