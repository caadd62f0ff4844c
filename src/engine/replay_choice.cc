// SPDX-License-Identifier: Apache-2.0
#include "engine/replay_choice.h"

#include <algorithm>

#include "base/error.h"
#include "coluber/mamba_base.h"
#include "kernels/scan/ssd_replay.h"

namespace coluber {

namespace {

// Measured (bench/README.md): a step of a 16-bit state takes 0.6 to 0.93 of the time, and it shows where a step's
// states are about as large as the weights. A float32 state is read no faster alone than it is read and written.
constexpr double kWorthReplaying = 512.0 * 1024 * 1024;

// The 16-bit states that the layers read and write in a step of all rows.
double narrow_states_of_a_step(const EngineConfig& config) {
  double bytes = 0;
  for (const AttentionLayerBase* layer : config.layers) {
    const auto* recurrent = dynamic_cast<const MambaBase*>(layer);
    if (recurrent == nullptr || !recurrent->supports_replayssm()) continue;
    if (dtype_size(recurrent->get_state_dtype()[1]) == 2)
      bytes += 2.0 * static_cast<double>(recurrent->get_state_shape()[1].count());
  }
  return bytes * static_cast<double>(config.scheduler.max_num_seqs);
}

// Why this engine cannot replay, whatever the model; empty where it can.
std::string hindrance(const EngineOptions& options) {
  if (options.mamba_cache_mode == MambaCacheMode::kAll && options.enable_prefix_caching)
    return "mamba_cache_mode all keeps a state at every block, which replay would have to write in full each time; use "
           "auto, align or none";
  if (options.deterministic)
    return "deterministic promises the same bits whatever came from the cache, and replay's sums depend on where the "
           "state was last written";
  if (options.cache_layout == CacheLayout::kShared)
    return "cache_layout shared packs pages as the contract does, without rings; use elastic";
  if (options.num_speculative_tokens > 0) return "drafts are not replayed yet; leave num_speculative_tokens at 0";
  return {};
}

bool is_float_state(const MambaBase& layer) {
  const DType dtype = layer.get_state_dtype()[1];
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

}  // namespace

std::vector<std::string> replay_problems(const EngineOptions& options) {
  std::vector<std::string> problems;
  if (options.replayssm_buffer_len < 1 || options.replayssm_buffer_len > kMaxSsdReplay)
    problems.push_back(
        fmt::format("replayssm_buffer_len must be 1 to {}, found {}", kMaxSsdReplay, options.replayssm_buffer_len));
  const std::string why = hindrance(options);
  if (options.use_replayssm == ReplayMode::kOn && !why.empty())
    problems.push_back("use_replayssm cannot be on: " + why);
  return problems;
}

void choose_replay(const EngineOptions& options, EngineConfig& config) {
  config.cache.replayssm_buffer_len = options.replayssm_buffer_len;
  config.cache.use_replayssm = false;
  if (options.use_replayssm == ReplayMode::kOff || !hindrance(options).empty()) return;
  std::string refused;
  bool any = false;
  for (const AttentionLayerBase* layer : config.layers) {
    const auto* recurrent = dynamic_cast<const MambaBase*>(layer);
    if (recurrent == nullptr || !recurrent->supports_replayssm()) continue;
    any = true;
    if (!is_float_state(*recurrent) && refused.empty())
      refused = fmt::format("layer '{}' keeps its state as {}; replay reads float32, bfloat16 or float16",
                            recurrent->layer_name(), dtype_name(recurrent->get_state_dtype()[1]));
  }
  if (!any) refused = "the model has no SSD (Mamba-2) layer, the only kind that replays";
  if (options.use_replayssm == ReplayMode::kOn) {
    if (!refused.empty())
      throw make_error(ErrorCode::kInvalidConfig, "use_replayssm cannot be on: {}; leave it out", refused);
    config.cache.use_replayssm = true;
    return;
  }
  config.cache.use_replayssm = refused.empty() && narrow_states_of_a_step(config) >= kWorthReplaying;
}

}  // namespace coluber
