// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint_position.h"

#include <algorithm>

#include "base/error.h"
#include "cache/arithmetic.h"

namespace coluber {

int64_t prefill_checkpoint_position(int64_t num_tokens, int64_t unit, bool drop_last_block) {
  if (unit < 1) throw make_error(ErrorCode::kInvalidConfig, "the hash block size is {}, expected at least 1", unit);
  const int64_t last = floor_div(num_tokens - 1, unit) * unit;
  return std::max<int64_t>(last - (drop_last_block ? unit : 0), 0);
}

PrefillCheckpoint prefill_checkpoint(int64_t query_start, int64_t query_end, const PrefillCheckpointRule& rule) {
  const int64_t hash = rule.hash_block_size;
  if (rule.block_size < 1 || hash < 1 || rule.alignment.value_or(1) < 1)
    throw make_error(ErrorCode::kInvalidConfig,
                     "prefill checkpoint: block size {}, hash block size {}, alignment {}, expected at least 1",
                     rule.block_size, hash, rule.alignment.value_or(1));
  if (query_start < 0 || query_end < query_start)
    throw make_error(ErrorCode::kInvalidArgument, "prefill checkpoint: tokens [{}, {}) are no range", query_start,
                     query_end);
  PrefillCheckpoint result;
  result.position = prefill_checkpoint_position(query_end, hash, rule.drop_last_block);
  const int64_t column = ceil_div(query_end, rule.block_size) - 2;
  result.valid = rule.alignment.has_value() && query_start % hash == 0 &&
                 column > floor_div(query_start - 1, rule.block_size) && query_start + hash <= result.position &&
                 query_start < result.position && result.position < query_end &&
                 (result.position - query_start) % *rule.alignment == 0;
  if (!result.valid) return result;
  result.offset = result.position - query_start;
  result.column = column;
  return result;
}

}  // namespace coluber
