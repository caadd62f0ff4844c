// SPDX-License-Identifier: Apache-2.0
#include "attention/metadata_arrays.h"

namespace coluber {

bool can_list_arrays(const KVCacheSpec& spec) noexcept {
  const auto* mamba = std::get_if<MambaSpec>(&spec);
  return mamba != nullptr && (mamba->mamba_type == MambaAttentionBackendEnum::kMamba1 ||
                              mamba->mamba_type == MambaAttentionBackendEnum::kMamba2 ||
                              mamba->mamba_type == MambaAttentionBackendEnum::kShortConv);
}

void list_arrays(const BaseMambaAttentionMetadata& metadata, std::vector<HostArray>& arrays) {
  for (const std::vector<int32_t>* values :
       {&metadata.query_start_loc_p, &metadata.state_indices_tensor_p, &metadata.state_indices_tensor_d,
        &metadata.query_start_loc_d, &metadata.num_accepted_tokens, &metadata.seq_lens, &metadata.exports.starts,
        &metadata.exports.offsets, &metadata.exports.blocks, &metadata.write_pos_d, &metadata.ring_counts_p})
    arrays.push_back(host_array(*values));
  for (const std::vector<uint8_t>* values :
       {&metadata.has_initial_states_p, &metadata.has_initial_states_d, &metadata.is_flush_d})
    arrays.push_back(host_array(*values));
}

}  // namespace coluber
