// SPDX-License-Identifier: Apache-2.0
//
// The linear-attention backend (lightning attention): its metadata of the contract's seven fields, which rows have a
// state and the states wanted from inside prefills, builder and backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coluber/attention_metadata.h"
#include "coluber/backend.h"

namespace coluber {

struct LinearAttentionMetadata : AttentionMetadata {
  int64_t num_prefills = 0;
  int64_t num_prefill_tokens = 0;
  int64_t num_decodes = 0;
  int64_t num_decode_tokens = 0;
  std::vector<int32_t> query_start_loc;       // [R+1], not rebased
  std::vector<int32_t> seq_lens;              // [R]
  std::vector<int32_t> state_indices_tensor;  // [R], column 0 of the block table
  std::vector<uint8_t> has_initial_states;    // [R] length exceeds query
  PrefillExports exports;
};

class LinearAttentionMetadataBuilder : public AttentionMetadataBuilder {
 public:
  static constexpr int64_t reorder_batch_threshold = 1;
  // Throws Error(kInvalidConfig) where `spec` is not a MambaSpec.
  LinearAttentionMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names,
                                 const EngineConfig& config, Device& device);
  const LinearAttentionMetadata& build(int64_t common_prefix_len, const CommonAttentionMetadata& common,
                                       bool fast_build = false) override;

 private:
  MambaSpec spec_;
  LinearAttentionMetadata metadata_;
  std::vector<int32_t> aligned_table_;
};

class LinearAttentionBackend : public AttentionBackend {
 public:
  std::string_view name() const noexcept override;  // "LinearAttentionBackend"
  BuilderFactory get_builder_cls() const override;
};

}  // namespace coluber
