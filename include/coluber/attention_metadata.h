// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of one step read. The runner fills one `CommonAttentionMetadata`; each backend's builder turns it
// into its own struct, once a step. Rows are requests, decodes first, then prefills. Spans belong to the builder or the
// runner and are valid until its next build. A row with state index kNullBlockId touches no state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coluber/kv_cache_spec.h"

namespace coluber {

inline constexpr int32_t kNullBlockId = 0;
inline constexpr int32_t kPadSlotId = -1;

// A row-major [rows, cols] table of block ids, borrowed.
struct BlockTableView {
  const int32_t* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements between rows
  int32_t at(int64_t row, int64_t col) const noexcept { return data[row * stride + col]; }
};

// A state that is wanted from inside a row: the one after `offset` of the row's tokens, in block `block`.
struct StateExport {
  int32_t row = 0;
  int32_t offset = 0;
  int32_t block = 0;
};

struct CommonAttentionMetadata {
  std::span<const int32_t> query_start_loc;  // [R+1]
  std::span<const int32_t> seq_lens;         // [R] computed + scheduled
  int64_t num_reqs = 0;
  int64_t num_actual_tokens = 0;  // may exceed query_start_loc's last where rows are padded for a graph
  int64_t max_query_len = 0;
  int64_t max_seq_len = 0;
  BlockTableView block_table;                        // [R, columns]
  std::span<const int64_t> slot_mapping;             // [T] page * block_size + offset, attention only
  std::span<const uint8_t> is_prefilling;            // [R] computed < prompt; empty: unknown
  std::span<const int32_t> num_accepted_tokens;      // [R], speculative decoding; empty without
  std::span<const int32_t> num_decode_draft_tokens;  // [R], -1 where a row does no speculative decoding; empty without
  std::span<const int32_t> replayssm_decode_base;    // [R], replay; empty without
  // By row, then offset; only where every recurrent layer can export there (get_prefill_checkpoint_alignment).
  std::span<const StateExport> state_exports;

  int32_t query_len(int64_t row) const noexcept {
    return query_start_loc[static_cast<size_t>(row) + 1] - query_start_loc[static_cast<size_t>(row)];
  }
  int32_t num_computed(int64_t row) const noexcept { return seq_lens[static_cast<size_t>(row)] - query_len(row); }
};

// Base of every backend's metadata; a layer casts to the type that its own backend builds.
struct AttentionMetadata {
  virtual ~AttentionMetadata() = default;
};

// Launch table of the causal convolution: one program handles 8 tokens of one sequence.
struct CausalConv1dMetadata {
  std::vector<int32_t> programs_per_sequence;  // [P]
  std::vector<int32_t> sequence_of_program;
  std::vector<int32_t> chunk_of_program;
};

struct PrefillCheckpointMetadata {
  std::vector<int32_t> checkpoint_offsets;  // [P] tokens into the row; 0 = none
  std::vector<int32_t> state_indices;       // [P] null block where none
  std::vector<int64_t> request_rows;        // [P] row of the batch
  std::vector<int64_t> block_cols;          // [P] -1 = none
  bool any = false;
};

// States that the engine wants from inside prefills: those of prefill p are [starts[p], starts[p + 1]).
struct PrefillExports {
  std::vector<int32_t> starts;   // [P+1]; empty where none is wanted
  std::vector<int32_t> offsets;  // tokens of the row before it
  std::vector<int32_t> blocks;
};

// mamba1, mamba2 and short conv.
struct BaseMambaAttentionMetadata : AttentionMetadata {
  int64_t num_prefills = 0;
  int64_t num_prefill_tokens = 0;
  int64_t num_decodes = 0;
  int64_t num_decode_tokens = 0;
  int64_t num_reqs = 0;
  std::vector<uint8_t> has_initial_states_p;    // [P]
  std::vector<int32_t> query_start_loc_p;       // [P+1] rebased to 0
  std::vector<int32_t> state_indices_tensor_p;  // [P]
  std::vector<int32_t> state_indices_tensor_d;  // [D, 1 + num_speculative_blocks]
  int64_t state_indices_d_cols = 1;
  std::vector<uint8_t> has_initial_states_d;  // [D] length exceeds query; a decode kernel starts from zeros else
  std::vector<int32_t> query_start_loc_d;     // [D+1], speculative decoding only
  std::vector<int32_t> num_accepted_tokens;   // [D], speculative decoding only
  std::vector<int32_t> seq_lens;              // [R]
  CausalConv1dMetadata conv;
  PrefillExports exports;
  // Replay: place in the ring and whether the state is written, of each decode; inputs in the ring of each prefill,
  // which its state is to be written with before it is read.
  std::vector<int32_t> write_pos_d;
  std::vector<uint8_t> is_flush_d;
  std::vector<int32_t> ring_counts_p;
  // Cache mode "all": state_indices_tensor_p and _d are whole rows of the block table, and these say which column a row
  // reads (last computed), the first that it fills, and the one that it leaves its state in (last scheduled).
  int64_t state_indices_p_cols = 1;
  std::vector<int32_t> block_idx_last_scheduled_token;     // [R]
  std::vector<int32_t> block_idx_last_computed_token;      // [R]
  std::vector<int32_t> block_idx_first_scheduled_token_p;  // [P]
  std::vector<int32_t> num_computed_tokens_p;              // [P]
};

struct Mamba1AttentionMetadata : BaseMambaAttentionMetadata {};
struct ShortConvAttentionMetadata : BaseMambaAttentionMetadata {};

struct Mamba2AttentionMetadata : BaseMambaAttentionMetadata {
  bool prep_initial_states = false;
  int64_t chunk_size = 0;
  std::vector<int32_t> cu_chunk_seqlen_p;         // [chunks+1]
  std::vector<int32_t> last_chunk_indices_p;      // [P]
  std::vector<int32_t> seq_idx_p;                 // [chunks]
  std::vector<int32_t> checkpoint_chunk_indices;  // [P] -1 none
  PrefillCheckpointMetadata checkpoint;
};

// Gated DeltaNet and Kimi Delta Attention. Rows with draft tokens ("spec") are kept apart from the others ("non-spec");
// a batch never has plain decodes and spec rows at once (the decodes count as prefills then).
struct GDNAttentionMetadata : AttentionMetadata {
  int64_t num_prefills = 0;
  int64_t num_prefill_tokens = 0;
  int64_t num_decodes = 0;
  int64_t num_decode_tokens = 0;
  int64_t num_spec_decodes = 0;  // S
  int64_t num_spec_decode_tokens = 0;
  int64_t num_actual_tokens = 0;
  int64_t num_reqs = 0;                            // R
  std::vector<int32_t> seq_lens;                   // [R]
  std::vector<uint8_t> spec_sequence_masks;        // [R]; empty without spec rows
  std::vector<int32_t> spec_query_start_loc;       // [S+1]
  std::vector<int32_t> spec_state_indices_tensor;  // [S, 1 + num_spec]
  int64_t spec_state_indices_cols = 1;
  std::vector<int32_t> spec_token_indx;                // tokens of spec rows
  std::vector<int32_t> num_accepted_tokens;            // [S]
  std::vector<int32_t> non_spec_query_start_loc;       // [R-S+1]
  std::vector<int32_t> non_spec_state_indices_tensor;  // [R-S]
  std::vector<int32_t> non_spec_token_indx;            // tokens of the other rows
  std::vector<uint8_t> has_initial_state;              // [R-S]; empty without prefills
  // The prefills alone, rebased to 0, and their chunks of kGdnChunkSize tokens.
  std::vector<int32_t> prefill_query_start_loc;    // [P+1]
  std::vector<int32_t> prefill_state_indices;      // [P]
  std::vector<uint8_t> prefill_has_initial_state;  // [P]
  std::vector<int32_t> chunk_indices;              // [chunks, 2] prefill, chunk in it
  std::vector<int32_t> chunk_offsets;              // [P+1] chunks before each prefill
  PrefillExports exports;
  PrefillCheckpointMetadata checkpoint;
};
inline constexpr int64_t kGdnChunkSize = 64;

// Full attention: every row by its pages.
struct FullAttentionMetadata : AttentionMetadata {
  int64_t num_reqs = 0;
  int64_t num_actual_tokens = 0;
  int64_t max_query_len = 0;
  int64_t max_seq_len = 0;
  std::span<const int32_t> query_start_loc;  // [R+1]
  std::span<const int32_t> seq_lens;         // [R]
  BlockTableView block_table;
  std::span<const int64_t> slot_mapping;  // [T]
};

}  // namespace coluber
