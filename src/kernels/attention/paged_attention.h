// SPDX-License-Identifier: Apache-2.0
//
// Causal attention with grouped query heads over paged keys and values, for packed rows: decodes and prefill chunks in
// one call. For query t of row r at absolute position p = seq_lens[r] - query_len(r) + t, with kv head g = h / (Hq /
// Hkv):
//
//   out[t, h] = sum_{j <= p} softmax_j(scale * q[t, h] . K[j, g]) V[j, g]
//
// (softmax online over key blocks, as in Dao et al., FlashAttention, 2022). Keys of the step must already be in their
// pages (store_kv). A page is K [block_size, Hkv, D], then V [block_size, Hkv, D]; pages lie `page_stride_bytes` apart.
//
// Numeric contract: float32 throughout. Key blocks and segments lie on an absolute grid of positions and a query never
// reads or weighs a key beyond its own position, so its result does not depend on how the prompt was cut, on the rows
// beside it, on the page size or on the number of threads: bit for bit, within a tier. `ref` sums in double.
//
// Two variations, for latent and for sparse attention: a value may be its key's row (KvPages::shared_values), and a
// query may see chosen blocks of positions instead of all (KeySelection). A chosen query's keys are numbered by their
// place among the chosen, and the grid above is one of those numbers.
//
// A window bounds how far back a query sees: keys at positions p - window + 1 to p. A bias is added to the scaled score
// of each of the last bias_extent positions. Neither goes with chosen keys.
//
// Rows of int8 and float8_e4m3fn end in their scale, a float32 at any address: what is attended to is code * scale,
// with the scale of kernels/state/scaled_row.h, so that a row's rounding depends on its token alone.
//
// A page with id <= kNullBlockId holds no keys. A query without any key, and tokens beyond query_start_loc[R] up to
// num_tokens, give 0. Scratch does not grow with the context. Pages must be at multiples of the element size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "coluber/attention_metadata.h"
#include "coluber/dtype.h"
#include "kernels/op.h"
#include "kernels/state/scaled_row.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

inline constexpr Tolerance kPagedAttentionTolerance{.relative = 1e-5, .of_rms = 1e-5};

// The pages of one layer; the memory is the cache's.
struct KvPages {
  std::byte* base = nullptr;  // page 0
  int64_t page_stride_bytes = 0;
  int64_t block_size = 0;  // tokens a page holds
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kFloat32;  // float32, bfloat16, float16, or int8 and float8_e4m3fn with a scale a row
  bool shared_values = false;     // a page is keys alone, and a value is its key's row

  int64_t row_elements() const noexcept { return num_kv_heads * head_dim; }
  int64_t element_bytes() const noexcept { return dtype == DType::kFloat32 ? 4 : has_row_scale(dtype) ? 1 : 2; }
  // Of a head's row, its scale included; of a token's rows; from a key to its value.
  int64_t head_bytes() const noexcept { return head_dim * element_bytes() + (has_row_scale(dtype) ? 4 : 0); }
  int64_t token_bytes() const noexcept { return num_kv_heads * head_bytes(); }
  int64_t plane_bytes() const noexcept { return shared_values ? 0 : block_size * token_bytes(); }
  std::byte* page(int64_t id) const noexcept { return base + id * page_stride_bytes; }
};

// The first `count` elements of a head's row. Not for kernels' inner loops.
void read_kv_row(const KvPages& kv, const std::byte* row, int64_t count, float* out);

// Key j of query t lies at position blocks[t][j / block_size] * block_size + j % block_size, for j < lengths[t]; a
// length of 0 stands for every key up to the query's own position.
struct KeySelection {
  int64_t block_size = 0;           // positions a block has; 0: no query chooses
  const int32_t* blocks = nullptr;  // [T, stride], ascending
  int64_t stride = 0;
  const int32_t* lengths = nullptr;  // [T]
};

struct PagedAttentionArgs {
  const float* q = nullptr;  // [T, Hq, D], token stride q_stride
  int64_t q_stride = 0;
  float* out = nullptr;  // [T, Hq, D], token stride out_stride
  int64_t out_stride = 0;
  int64_t num_tokens = 0;  // T, at least query_start_loc[R]
  int64_t num_heads = 0;   // Hq, a multiple of Hkv
  KvPages kv;
  BlockTableView block_table;                // [R, columns]
  const int32_t* query_start_loc = nullptr;  // [R+1]
  const int32_t* seq_lens = nullptr;         // [R] with the tokens of this step
  int64_t num_reqs = 0;                      // R
  float scale = 1.0f;
  KeySelection selection = {};
  int64_t window = 0;           // 0: none
  const float* bias = nullptr;  // [T, Hq, bias_extent] or null; entry i is of position p - bias_extent + 1 + i
  int64_t bias_extent = 0;
};

using PagedAttentionFunction = void (*)(const PagedAttentionArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<PagedAttentionFunction>& paged_attention();

// Throws Error(kInternal) where the sizes do not fit together, a row's table has too few columns for its length or a
// chosen block lies beyond its query.
void check_paged_attention(const PagedAttentionArgs& args);

void paged_attention_ref(const PagedAttentionArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber
