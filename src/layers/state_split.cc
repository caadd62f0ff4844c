// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "base/error.h"
#include "coluber/mamba_base.h"

namespace coluber {
namespace {

StateSplit along(int axis, const Shape& whole, int64_t units) { return {axis, {{whole[axis], units}}}; }

// Convolutions run along the last axis (channels), other states along their first (heads).
StateSplit by_name(const std::string& name, const Shape& whole, int64_t units) {
  const bool conv = name.starts_with("conv") && whole.rank() == 2;
  return along(conv ? 1 : 0, whole, units);
}

// x | B | C: the heads' channels, then the groups' input and output vectors.
StateSplit mamba2_conv(const Shape& conv, const Shape& recurrent) {
  const int64_t inner = recurrent[0] * recurrent[1], group = (conv[1] - inner) / 2;
  const StateSplit::Part groups{group, group / recurrent[2], true};
  return {1, {{inner, recurrent[0]}, groups, groups}};
}

// Q | K | V.
StateSplit delta_conv(const Shape& conv, const Shape& recurrent) {
  const int64_t values = recurrent[0] * recurrent[1], keys = (conv[1] - values) / 2;
  const StateSplit::Part key_heads{keys, keys / recurrent[2]};
  return {1, {key_heads, key_heads, {values, recurrent[0]}}};
}

}  // namespace

std::vector<StateSplit> MambaBase::get_state_split(const std::vector<Shape>& whole) const {
  const MambaAttentionBackendEnum type = mamba_type();
  std::vector<StateSplit> splits(whole.size());
  if (is_kv_cache_tp_replicated() || type == MambaAttentionBackendEnum::kCustom) return splits;
  const std::vector<std::string> names = get_state_names();
  COLUBER_CHECK(names.size() == whole.size(), "layer '{}': {} names for {} states", layer_name(), names.size(),
                whole.size());
  const bool has_pair = whole.size() == 2 && whole[0].rank() == 2 && whole[1].rank() == 3;
  if (type == MambaAttentionBackendEnum::kMamba2 && has_pair) {
    splits[0] = mamba2_conv(whole[0], whole[1]);
    splits[1] = along(0, whole[1], whole[1][0]);
  } else if (type == MambaAttentionBackendEnum::kGdnAttn && has_pair) {
    splits[0] = delta_conv(whole[0], whole[1]);
    splits[1] = along(0, whole[1], whole[1][0]);
  } else {
    // Channels of lightning attention's convolutions belong to heads.
    const int64_t heads = type == MambaAttentionBackendEnum::kLinear && !whole.empty() ? whole.back()[0] : 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      splits[i] = by_name(names[i], whole[i], 1);
      StateSplit::Part& part = splits[i].parts[0];
      part.units = heads > 0 ? heads : part.size;
    }
  }
  return splits;
}

}  // namespace coluber
