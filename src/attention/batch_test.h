// SPDX-License-Identifier: Apache-2.0
//
// Batches for the tests of this folder: owns the arrays that CommonAttentionMetadata borrows.
#pragma once

#include <algorithm>
#include <vector>

#include "coluber/attention_metadata.h"

namespace coluber::test {

struct Batch {
  std::vector<int32_t> query_lens;
  std::vector<int32_t> seq_lens;
  std::vector<uint8_t> is_prefilling;
  std::vector<int32_t> num_accepted_tokens;
  std::vector<int32_t> num_decode_draft_tokens;
  std::vector<int32_t> replayssm_decode_base;
  std::vector<std::vector<int32_t>> block_table;
  std::vector<int64_t> slot_mapping;
  int64_t padding_tokens = 0;  // tokens beyond the rows

  // Valid until the next call.
  const CommonAttentionMetadata& common() {
    start_loc_.assign(1, 0);
    table_.clear();
    common_ = {};
    for (const int32_t len : query_lens) {
      start_loc_.push_back(start_loc_.back() + len);
      common_.max_query_len = std::max<int64_t>(common_.max_query_len, len);
    }
    for (const int32_t len : seq_lens) common_.max_seq_len = std::max<int64_t>(common_.max_seq_len, len);
    for (const std::vector<int32_t>& row : block_table) table_.insert(table_.end(), row.begin(), row.end());
    const auto cols = static_cast<int64_t>(block_table.empty() ? 0 : block_table[0].size());
    common_.query_start_loc = start_loc_;
    common_.seq_lens = seq_lens;
    common_.num_reqs = static_cast<int64_t>(query_lens.size());
    common_.num_actual_tokens = start_loc_.back() + padding_tokens;
    common_.block_table = {table_.data(), static_cast<int64_t>(block_table.size()), cols, cols};
    common_.slot_mapping = slot_mapping;
    common_.is_prefilling = is_prefilling;
    common_.num_accepted_tokens = num_accepted_tokens;
    common_.num_decode_draft_tokens = num_decode_draft_tokens;
    common_.replayssm_decode_base = replayssm_decode_base;
    return common_;
  }

 private:
  std::vector<int32_t> start_loc_;
  std::vector<int32_t> table_;
  CommonAttentionMetadata common_;
};

using Ints = std::vector<int32_t>;
using Flags = std::vector<uint8_t>;

}  // namespace coluber::test
