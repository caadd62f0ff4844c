// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint_policy.h"

#include <algorithm>

#include "base/error.h"
#include "cache/arithmetic.h"
#include "cache/checkpoint_position.h"

namespace coluber {

namespace {

// A cut costs a short chunk, about a decode step; states nearer together than this save less.
constexpr int64_t kFewestBlocksApart = 2;
// Along a long prompt: so many tokens before its end, and twice as many each time after. Edits are mostly near the end,
// and wherever one is, at most about three times what follows it is computed again.
constexpr int64_t kFirstDistance = 256;

int64_t round_down(int64_t value, int64_t unit) { return value / unit * unit; }

void add_position(int64_t position, int64_t unit, const PromptFacts& facts, std::vector<int64_t>& positions) {
  if (static_cast<int64_t>(positions.size()) >= facts.max_checkpoints) return;
  const int64_t apart = kFewestBlocksApart * unit;
  if (position - facts.hit_tokens < apart) return;
  for (const int64_t other : positions)
    if (std::max(other, position) - std::min(other, position) < apart) return;
  positions.push_back(position);
}

void plan_auto(const CheckpointPolicy& policy, const PromptFacts& facts, std::vector<int64_t>& positions) {
  const int64_t unit = policy.unit;
  const int64_t end = round_down(facts.prompt_tokens - 1, unit);
  const int64_t parting = facts.common_tokens < facts.prompt_tokens ? round_down(facts.common_tokens, unit) : 0;
  // Where they are too near for two, the place at which two prompts parted serves more than the end of one.
  if (end - parting >= kFewestBlocksApart * unit) add_position(end, unit, facts, positions);
  add_position(parting, unit, facts, positions);
  add_position(end, unit, facts, positions);
  for (int64_t distance = kFirstDistance; end - distance > facts.hit_tokens; distance *= 2) {
    // On a grid of their own, so that prompts of about one length keep the same places.
    const int64_t grid = std::max(unit, round_down(distance / 2, unit));
    add_position(round_down(end - distance, grid), unit, facts, positions);
  }
  std::sort(positions.begin(), positions.end());
}

// The last block end that a repetition of the prompt, or its continuation, can use.
int64_t replay_boundary(const CheckpointPolicy& policy, const PromptFacts& facts) {
  return prefill_checkpoint_position(facts.prompt_tokens, policy.block_size, policy.drop_last_block);
}

bool is_retained(const CheckpointPolicy& policy, const PromptFacts& facts, int64_t position) {
  if (!policy.retention_interval) return true;
  const int64_t interval = *policy.retention_interval;
  if (interval > 0 && position % round_up(interval, policy.block_size) == 0) return true;
  return position == replay_boundary(policy, facts) || position == round_down(facts.common_tokens, policy.block_size) ||
         position == facts.prompt_tokens;
}

}  // namespace

void plan_checkpoints(const CheckpointPolicy& policy, const PromptFacts& facts, std::vector<int64_t>& positions) {
  positions.clear();
  if (policy.mode == MambaCacheMode::kAuto) plan_auto(policy, facts, positions);
  if (policy.mode != MambaCacheMode::kAll) return;
  const int64_t block = policy.block_size;
  for (int64_t position = round_down(facts.hit_tokens, block) + block; position <= facts.prompt_tokens;
       position += block)
    if (is_retained(policy, facts, position)) positions.push_back(position);
}

bool keeps_step_end(const CheckpointPolicy& policy, const PromptFacts& facts, int64_t position) {
  if (policy.mode != MambaCacheMode::kAll && policy.mode != MambaCacheMode::kAlign) return false;
  if (position % policy.block_size == 0) return is_retained(policy, facts, position);
  // A partial tail: the finest boundary before the prompt's end.
  return policy.mode == MambaCacheMode::kAlign && policy.match_unit && *policy.match_unit < policy.block_size &&
         position == prefill_checkpoint_position(facts.prompt_tokens, *policy.match_unit, policy.drop_last_block);
}

void inner_checkpoints(const CheckpointPolicy& policy, const PromptFacts& facts, const std::vector<int64_t>& planned,
                       int64_t start, int64_t end, std::vector<int64_t>& positions) {
  positions.clear();
  if (policy.mode == MambaCacheMode::kAlign) {
    const int64_t block = policy.block_size;
    const int64_t tail =
        policy.match_unit.value_or(block) < block
            ? prefill_checkpoint_position(facts.prompt_tokens, *policy.match_unit, policy.drop_last_block)
            : 0;
    for (int64_t position = round_down(start, block) + block; position < end; position += block) {
      if (tail > start && tail < position && tail > position - block) positions.push_back(tail);
      if (is_retained(policy, facts, position)) positions.push_back(position);
    }
    if (tail > start && tail < end && tail > round_down(end - 1, block)) positions.push_back(tail);
  } else {
    for (const int64_t position : planned)
      if (position > start && position < end) positions.push_back(position);
  }
  // The later ones save more.
  const int64_t more = std::ssize(positions) - std::max<int64_t>(facts.max_checkpoints, 0);
  if (more > 0) positions.erase(positions.begin(), positions.begin() + more);
}

AlignRule align_rule_of(const CheckpointPolicy& policy, int64_t max_chunk) {
  AlignRule rule;
  rule.block_size = policy.block_size;
  rule.hash_block_size = policy.match_unit.value_or(policy.block_size);
  rule.drop_last_block = policy.drop_last_block;
  rule.max_chunk = max_chunk;
  return rule;
}

int64_t align_split(const AlignRule& rule, const AlignFacts& facts) {
  if (rule.block_size < 1 || rule.hash_block_size < 1)
    throw make_error(ErrorCode::kInvalidConfig, "align: block size {}, hash block size {}, expected at least 1",
                     rule.block_size, rule.hash_block_size);
  const int64_t start = facts.start;
  const int64_t block = rule.block_size;
  const int64_t prefill_end = std::max(facts.prompt_tokens, facts.num_tokens - 1);
  if (start >= prefill_end) return facts.new_tokens;
  const bool partial = rule.hash_block_size < block;
  int64_t last = prefill_checkpoint_position(facts.num_tokens, block, rule.drop_last_block);
  int64_t end = start + facts.new_tokens;
  const PrefillCheckpointRule checkpoint_rule{partial ? rule.hash_block_size : block, block, rule.export_alignment,
                                              rule.drop_last_block};
  const bool internal =
      rule.exports_mid_prefill && end >= prefill_end && prefill_checkpoint(start, prefill_end, checkpoint_rule).valid;
  if (internal) last = 0;
  if (end < prefill_end) {
    // A block wider than a chunk is crossed in parts.
    const int64_t down = round_down(end, block);
    if (down > start || block <= rule.max_chunk) end = down;
  }
  int64_t stop = end;
  const auto stop_at = [&](int64_t position) {
    if (position > start && position < stop) stop = position;
  };
  if (start % block != 0 && !internal) stop_at(round_down(start, block) + block);
  stop_at(last);
  const int64_t tail = prefill_checkpoint_position(facts.prompt_tokens, rule.hash_block_size, rule.drop_last_block);
  if (partial && !internal && last < tail && tail < facts.prompt_tokens) stop_at(tail);
  if (facts.junction > start) {
    const bool exact = rule.exact_junction && facts.junction <= facts.prompt_tokens;
    stop_at(exact ? facts.junction : start + round_down(facts.junction - start, block));
  }
  return std::max<int64_t>(stop - start, 0);
}

}  // namespace coluber
