// SPDX-License-Identifier: Apache-2.0
//
// What the builders of mamba1, mamba2 and short convolution share: which rows are decodes, which blocks hold their
// states, the launch table of the causal convolution, replay positions and checkpoints inside a prefill. The parts are
// functions of their own, so that a builder outside this folder can use them too. Output vectors are reused: nothing is
// allocated once the largest batch has been seen. One builder belongs to one step loop.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/attention_metadata.h"
#include "coluber/backend.h"

namespace coluber {

// One program a 8 tokens of one sequence; a sequence without tokens has none.
inline constexpr int64_t kConvTokensPerProgram = 8;
void compute_causal_conv1d_metadata(std::span<const int32_t> query_start_loc, CausalConv1dMetadata& out);

// The state blocks of each row: the table itself in modes none and all; in align mode, [R, 1 + num_speculative_blocks]
// columns from the one that holds the running state of `seq_lens` tokens, written to `storage`.
BlockTableView mamba_get_block_table_tensor(const BlockTableView& table, std::span<const int32_t> seq_lens,
                                            int64_t block_size, int64_t num_speculative_blocks, MambaCacheMode mode,
                                            std::vector<int32_t>& storage);

struct ReplayRule {
  int64_t buffer_len = 0;
  MambaCacheMode mode = MambaCacheMode::kNone;
  int64_t block_size = 0;
};
// Place in the ring and whether the full state is written, for each decode row without drafts.
void compute_replay_positions(std::span<const int32_t> seq_lens, std::span<const int32_t> query_lens,
                              std::span<const int32_t> decode_base, const ReplayRule& rule,
                              std::vector<int32_t>& write_pos, std::vector<uint8_t>& is_flush);

// Checkpoints inside the prefills of a step; active in align mode for specs that own a checkpoint block.
class PrefillCheckpointBuilder {
 public:
  PrefillCheckpointBuilder(const MambaSpec& spec, const EngineConfig& config);
  // For these rows of the batch. `out.any` says whether one of them has a checkpoint.
  void build(const CommonAttentionMetadata& common, std::span<const int64_t> request_rows,
             PrefillCheckpointMetadata& out) const;

 private:
  bool active_ = false;
  int64_t block_size_ = 0;
  int64_t hash_block_size_ = 0;
  std::optional<int64_t> alignment_;
  bool drop_last_block_ = false;
};

// The states that are wanted from inside the rows [first_prefill, num_reqs), by prefill.
void build_prefill_exports(const CommonAttentionMetadata& common, int64_t first_prefill, PrefillExports& out);

// Throws Error(kInvalidConfig) naming the builder and its layers where `spec` is of another kind.
const MambaSpec& require_mamba_spec(const KVCacheSpec& spec, std::string_view builder,
                                    const std::vector<std::string>& layer_names);

class BaseMambaMetadataBuilder {
 public:
  BaseMambaMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config,
                           std::string_view builder);
  const MambaSpec& spec() const noexcept { return spec_; }
  // Longest row that may be a decode, where the accepted counts of drafts are given.
  int64_t reorder_batch_threshold() const noexcept { return 1 + num_speculative_tokens_; }
  void build(const CommonAttentionMetadata& common, BaseMambaAttentionMetadata& out);
  // For another group with an equal spec and a table of its own: only the state indices differ. `out` keeps its own
  // buffers.
  void update_block_table(const BaseMambaAttentionMetadata& from, const BlockTableView& table,
                          BaseMambaAttentionMetadata& out);

 private:
  void mark_prefilling(const CommonAttentionMetadata& common);
  void gather_state_indices(const BlockTableView& table, BaseMambaAttentionMetadata& out);
  void build_decodes(const CommonAttentionMetadata& common, BaseMambaAttentionMetadata& out);
  void build_prefills(const CommonAttentionMetadata& common, BaseMambaAttentionMetadata& out) const;
  void build_block_positions(const CommonAttentionMetadata& common, BaseMambaAttentionMetadata& out) const;

  MambaSpec spec_;
  int64_t num_speculative_tokens_ = 0;
  bool use_replayssm_ = false;
  int64_t replayssm_buffer_len_ = 0;
  std::vector<uint8_t> prefilling_;
  std::vector<int32_t> aligned_table_;
  std::vector<int32_t> query_lens_;
};

}  // namespace coluber
