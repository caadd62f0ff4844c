// SPDX-License-Identifier: Apache-2.0
#include "attention/metadata_arrays.h"

#include <initializer_list>

#include "base/error.h"
#include "coluber/linear_attention.h"

namespace coluber {
namespace {

void append(std::vector<HostArray>& arrays, std::initializer_list<const std::vector<int32_t>*> integers,
            std::initializer_list<const std::vector<uint8_t>*> flags) {
  for (const std::vector<int32_t>* values : integers) arrays.push_back(host_array(*values));
  for (const std::vector<uint8_t>* values : flags) arrays.push_back(host_array(*values));
}

void append(std::vector<HostArray>& arrays, const PrefillExports& exports) {
  append(arrays, {&exports.starts, &exports.offsets, &exports.blocks}, {});
}

}  // namespace

bool can_list_arrays(const KVCacheSpec& spec) noexcept {
  const auto* mamba = std::get_if<MambaSpec>(&spec);
  return mamba == nullptr || mamba->mamba_type != MambaAttentionBackendEnum::kCustom;
}

void list_arrays(const AttentionMetadata& metadata, std::vector<HostArray>& arrays) {
  if (const auto* mamba = dynamic_cast<const BaseMambaAttentionMetadata*>(&metadata)) {
    append(arrays,
           {&mamba->query_start_loc_p, &mamba->state_indices_tensor_p, &mamba->state_indices_tensor_d,
            &mamba->query_start_loc_d, &mamba->num_accepted_tokens, &mamba->seq_lens, &mamba->write_pos_d,
            &mamba->ring_counts_p},
           {&mamba->has_initial_states_p, &mamba->has_initial_states_d, &mamba->is_flush_d});
    append(arrays, mamba->exports);
  } else if (const auto* linear = dynamic_cast<const LinearAttentionMetadata*>(&metadata)) {
    append(arrays, {&linear->query_start_loc, &linear->seq_lens, &linear->state_indices_tensor},
           {&linear->has_initial_states});
    append(arrays, linear->exports);
  } else if (const auto* delta = dynamic_cast<const GDNAttentionMetadata*>(&metadata)) {
    append(arrays,
           {&delta->non_spec_state_indices_tensor, &delta->prefill_query_start_loc, &delta->prefill_state_indices},
           {&delta->prefill_has_initial_state});
    append(arrays, delta->exports);
  } else {
    COLUBER_CHECK(dynamic_cast<const FullAttentionMetadata*>(&metadata) != nullptr,
                  "a backend of ours made metadata that cannot be listed");
  }
}

}  // namespace coluber
