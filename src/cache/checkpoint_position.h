// SPDX-License-Identifier: Apache-2.0
//
// Where inside a prefill a state may be kept for later prefix hits. Scheduler, cache manager and metadata builder must
// agree on it, or a block would be promised that nobody writes: so this is the one place that says it. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

namespace coluber {

struct PrefillCheckpointRule {
  int64_t hash_block_size = 0;
  int64_t block_size = 0;
  std::optional<int64_t> alignment;  // none: the layers cannot export a state in mid-prefill
  bool drop_last_block = false;
};

struct PrefillCheckpoint {
  int64_t position = 0;  // tokens of the sequence
  bool valid = false;
  int64_t offset = 0;   // tokens of the row before it; 0 where not valid
  int64_t column = -1;  // block-table column that takes the state; -1 where not valid
};

// The last multiple of `unit` before the last of `num_tokens` tokens, one unit earlier where the last block is dropped.
int64_t prefill_checkpoint_position(int64_t num_tokens, int64_t unit, bool drop_last_block);

// The checkpoint of a prefill of the tokens [query_start, query_end). Throws Error(kInvalidConfig) for sizes below 1.
PrefillCheckpoint prefill_checkpoint(int64_t query_start, int64_t query_end, const PrefillCheckpointRule& rule);

}  // namespace coluber
