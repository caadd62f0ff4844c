// SPDX-License-Identifier: Apache-2.0
//
// The order of a batch: decodes, short extends, long extends, prefills. How the runner reorders its rows, and how
// builders split them into decodes and prefills. Pure functions; those that take an output vector reuse its memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coluber/attention_metadata.h"

namespace coluber {

struct SplitOptions {
  int64_t decode_threshold = 1;
  bool require_uniform = false;
  bool treat_short_extends_as_decodes = true;
};

struct BatchSplit {
  int64_t num_decodes = 0;
  int64_t num_prefills = 0;
  int64_t num_decode_tokens = 0;
  int64_t num_prefill_tokens = 0;
};

// Everything from the first row that is a prefill on counts as prefill. `is_prefilling` is read where short extends are
// not treated as decodes and must then have a value a row. Tokens beyond the rows (padding) count with the last class.
BatchSplit split_decodes_and_prefills(const CommonAttentionMetadata& common, const SplitOptions& options,
                                      std::span<const uint8_t> is_prefilling);
inline BatchSplit split_decodes_and_prefills(const CommonAttentionMetadata& common, const SplitOptions& options = {}) {
  return split_decodes_and_prefills(common, options, common.is_prefilling);
}

struct ScheduledRow {
  int64_t num_scheduled_tokens = 0;
  int64_t num_computed_tokens = 0;
  int64_t num_prompt_tokens = 0;
};

// `order[i]` is the old row that belongs at position i. Moves only rows that stand in the zone of another class.
// Returns whether any row moves.
bool reorder_batch_to_split_decodes_and_prefills(std::span<const ScheduledRow> rows, int64_t decode_threshold,
                                                 std::vector<int32_t>& order);

// is_prefilling of the first `num_reqs` rows; padded rows beyond them are never prefilling.
void compute_is_prefilling(std::span<const int64_t> num_computed_tokens, std::span<const int64_t> num_prompt_tokens,
                           int64_t num_reqs, std::vector<uint8_t>& is_prefilling);

// Throws Error(kInternal) where the rows, tokens and tables of `common` contradict each other. Every builder begins
// with it.
void check_common_metadata(const CommonAttentionMetadata& common);

}  // namespace coluber
