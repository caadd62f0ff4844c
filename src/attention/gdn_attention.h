// SPDX-License-Identifier: Apache-2.0
//
// The backend of Gated DeltaNet and Kimi Delta Attention layers. Rows that check draft tokens ("spec") go to a kernel
// of their own, as only that one reads the state that the accepted tokens left; the other rows are decodes or prefills.
// One builder a step loop.
#pragma once

#include "attention/mamba_attention.h"

namespace coluber {

class GDNAttentionMetadataBuilder : public AttentionMetadataBuilder {
 public:
  GDNAttentionMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config,
                              Device& device);
  const GDNAttentionMetadata& build(int64_t common_prefix_len, const CommonAttentionMetadata& common,
                                    bool fast_build = false) override;
  int64_t reorder_batch_threshold() const noexcept { return 1 + num_speculative_tokens_; }

 private:
  int64_t mark_spec_rows(const CommonAttentionMetadata& common);
  void count_without_spec(const CommonAttentionMetadata& common);
  void count_with_spec(const CommonAttentionMetadata& common);
  void gather_rows(const CommonAttentionMetadata& common);
  void gather_tokens(const CommonAttentionMetadata& common);
  void build_prefills(const CommonAttentionMetadata& common);

  MambaSpec spec_;
  int64_t num_speculative_tokens_;
  PrefillCheckpointBuilder checkpoints_;
  GDNAttentionMetadata metadata_;
  std::vector<uint8_t> is_spec_;       // [R]
  std::vector<uint8_t> first_chunk_;   // [R]
  std::vector<int64_t> prefill_rows_;  // rows of the batch that the prefill views hold
  std::vector<int32_t> aligned_table_;
};

class GDNAttentionBackend : public AttentionBackend {
 public:
  std::string_view name() const noexcept override { return "GDNAttentionBackend"; }
  BuilderFactory get_builder_cls() const override;
};

}  // namespace coluber
