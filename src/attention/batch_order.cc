// SPDX-License-Identifier: Apache-2.0
#include "attention/batch_order.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace coluber {

void check_common_metadata(const CommonAttentionMetadata& common) {
  const auto rows = static_cast<size_t>(common.num_reqs);
  COLUBER_CHECK(common.num_reqs >= 0 && common.query_start_loc.size() == rows + 1 && common.seq_lens.size() == rows,
                "a batch of {} rows has {} start locations and {} lengths", common.num_reqs,
                common.query_start_loc.size(), common.seq_lens.size());
  COLUBER_CHECK(common.is_prefilling.empty() || common.is_prefilling.size() == rows,
                "{} is_prefilling flags for {} rows", common.is_prefilling.size(), common.num_reqs);
  COLUBER_CHECK(common.num_accepted_tokens.empty() || common.num_accepted_tokens.size() == rows,
                "{} accepted counts for {} rows", common.num_accepted_tokens.size(), common.num_reqs);
  COLUBER_CHECK(common.num_decode_draft_tokens.empty() || common.num_decode_draft_tokens.size() == rows,
                "{} draft counts for {} rows", common.num_decode_draft_tokens.size(), common.num_reqs);
  COLUBER_CHECK(common.replayssm_decode_base.empty() || common.replayssm_decode_base.size() == rows,
                "{} replay bases for {} rows", common.replayssm_decode_base.size(), common.num_reqs);
  COLUBER_CHECK(common.query_start_loc[0] == 0, "the first row starts at token {}", common.query_start_loc[0]);
  int64_t longest = 0;
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    COLUBER_CHECK(common.query_len(row) >= 0, "row {} has {} tokens", row, common.query_len(row));
    COLUBER_CHECK(common.query_len(row) == 0 || common.num_computed(row) >= 0,
                  "row {} has {} tokens of a sequence of {}", row, common.query_len(row),
                  common.seq_lens[static_cast<size_t>(row)]);
    longest = std::max<int64_t>(longest, common.query_len(row));
  }
  COLUBER_CHECK(longest <= common.max_query_len, "max_query_len is {}, the longest row has {} tokens",
                common.max_query_len, longest);
  COLUBER_CHECK(common.num_actual_tokens >= common.query_start_loc[rows],
                "{} tokens in the rows, num_actual_tokens is {}", common.query_start_loc[rows],
                common.num_actual_tokens);
}

BatchSplit split_decodes_and_prefills(const CommonAttentionMetadata& common, const SplitOptions& options,
                                      std::span<const uint8_t> is_prefilling) {
  const int64_t rows = common.num_reqs;
  const int64_t tokens = common.num_actual_tokens;
  const bool treat_short = options.treat_short_extends_as_decodes;
  COLUBER_CHECK(treat_short || is_prefilling.size() == static_cast<size_t>(rows),
                "{} is_prefilling flags for {} rows; splitting short extends off needs one a row", is_prefilling.size(),
                rows);
  const BatchSplit all_decodes{rows, 0, tokens, 0};
  if (rows == 0) return all_decodes;
  if (treat_short && common.max_query_len <= options.decode_threshold &&
      (!options.require_uniform || options.decode_threshold <= 1))
    return all_decodes;
  const int32_t first_len = common.query_len(0);
  if (first_len > options.decode_threshold) return {0, rows, 0, tokens};

  bool uniform = true;
  for (int64_t row = 0; row < rows; ++row) uniform &= common.query_len(row) == first_len || common.query_len(row) == 0;
  const auto is_prefill = [&](int64_t row) {
    const int32_t len = common.query_len(row);
    // Rows of no tokens pad a uniform batch and stay with its decodes.
    const bool by_length = options.require_uniform ? len != first_len && !uniform : len > options.decode_threshold;
    return by_length || (!treat_short && is_prefilling[static_cast<size_t>(row)] != 0);
  };
  for (int64_t row = 0; row < rows; ++row) {
    if (!is_prefill(row)) continue;
    const int64_t decode_tokens = common.query_start_loc[static_cast<size_t>(row)];
    return {row, rows - row, decode_tokens, tokens - decode_tokens};
  }
  return all_decodes;
}

namespace {

enum RowClass : uint8_t { kDecode, kShortExtend, kLongExtend, kPrefill, kNumRowClasses };

RowClass classify(const ScheduledRow& row, int64_t decode_threshold) {
  if (row.num_computed_tokens == 0) return kPrefill;
  if (row.num_scheduled_tokens > decode_threshold) return kLongExtend;
  return row.num_computed_tokens < row.num_prompt_tokens ? kShortExtend : kDecode;
}

}  // namespace

bool reorder_batch_to_split_decodes_and_prefills(std::span<const ScheduledRow> rows, int64_t decode_threshold,
                                                 std::vector<int32_t>& order) {
  order.resize(rows.size());
  std::array<size_t, kNumRowClasses> counts{};
  for (const ScheduledRow& row : rows) ++counts[classify(row, decode_threshold)];
  std::array<size_t, kNumRowClasses + 1> zone_begin{};
  for (size_t c = 0; c < kNumRowClasses; ++c) zone_begin[c + 1] = zone_begin[c] + counts[c];
  const auto in_own_zone = [&](size_t position, RowClass c) {
    return position >= zone_begin[c] && position < zone_begin[c + 1u];
  };

  // Rows out of place, by class and then by old position, fill the places out of place from front to back.
  size_t place = 0;
  bool modified = false;
  const auto next_place = [&] {
    while (in_own_zone(place, classify(rows[place], decode_threshold))) {
      order[place] = static_cast<int32_t>(place);
      ++place;
    }
    return place++;
  };
  for (uint8_t c = 0; c < kNumRowClasses; ++c) {
    for (size_t row = 0; row < rows.size(); ++row) {
      const RowClass own = classify(rows[row], decode_threshold);
      if (own != c || in_own_zone(row, own)) continue;
      order[next_place()] = static_cast<int32_t>(row);
      modified = true;
    }
  }
  for (; place < rows.size(); ++place) order[place] = static_cast<int32_t>(place);
  return modified;
}

void compute_is_prefilling(std::span<const int64_t> num_computed_tokens, std::span<const int64_t> num_prompt_tokens,
                           int64_t num_reqs, std::vector<uint8_t>& is_prefilling) {
  COLUBER_CHECK(num_computed_tokens.size() == num_prompt_tokens.size() && num_reqs >= 0 &&
                    static_cast<size_t>(num_reqs) <= num_prompt_tokens.size(),
                "{} computed counts, {} prompt lengths, {} requests", num_computed_tokens.size(),
                num_prompt_tokens.size(), num_reqs);
  is_prefilling.assign(num_prompt_tokens.size(), 0);
  for (size_t row = 0; row < static_cast<size_t>(num_reqs); ++row)
    is_prefilling[row] = num_computed_tokens[row] < num_prompt_tokens[row] ? 1 : 0;
}

}  // namespace coluber
