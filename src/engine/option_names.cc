// SPDX-License-Identifier: Apache-2.0
//
// The words for the engine's enumerations, as the command line, statistics and messages use them.
#include <algorithm>
#include <array>
#include <utility>

#include "coluber/engine.h"

namespace coluber {

namespace {

template <typename Value, size_t kCount>
using Names = std::array<std::pair<Value, std::string_view>, kCount>;

constexpr Names<PreemptionMode, 3> kPreemptionModes = {
    {{PreemptionMode::kAuto, "auto"}, {PreemptionMode::kPark, "park"}, {PreemptionMode::kRecompute, "recompute"}}};
constexpr Names<SchedulingPolicy, 2> kPolicies = {
    {{SchedulingPolicy::kFcfs, "fcfs"}, {SchedulingPolicy::kPriority, "priority"}}};
constexpr Names<ReplayMode, 3> kReplayModes = {
    {{ReplayMode::kAuto, "auto"}, {ReplayMode::kOn, "on"}, {ReplayMode::kOff, "off"}}};
constexpr Names<CacheLayout, 2> kLayouts = {{{CacheLayout::kElastic, "elastic"}, {CacheLayout::kShared, "shared"}}};
constexpr Names<Pooling, 3> kPoolings = {
    {{Pooling::kNone, "none"}, {Pooling::kLast, "last"}, {Pooling::kMean, "mean"}}};
constexpr Names<MissReason, kNumMissReasons> kMissReasons = {
    {{MissReason::kNone, "none"},
     {MissReason::kDisabled, "disabled"},
     {MissReason::kTooShort, "too_short"},
     {MissReason::kNoCommonPrefix, "no_common_prefix"},
     {MissReason::kDifferentAdapterOrSalt, "different_adapter_or_salt"},
     {MissReason::kNoCheckpointBeforeDivergence, "no_checkpoint_before_divergence"},
     {MissReason::kEvicted, "evicted"}}};

template <typename Table, typename Value>
std::string_view name_in(const Table& table, Value value) noexcept {
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.first == value; });
  return found == table.end() ? std::string_view("?") : found->second;
}

template <typename Value, size_t kCount>
std::optional<Value> value_in(const Names<Value, kCount>& table, std::string_view name) noexcept {
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.second == name; });
  return found == table.end() ? std::nullopt : std::optional(found->first);
}

}  // namespace

std::string_view preemption_mode_name(PreemptionMode mode) noexcept { return name_in(kPreemptionModes, mode); }
std::optional<PreemptionMode> parse_preemption_mode(std::string_view name) noexcept {
  return value_in(kPreemptionModes, name);
}
std::string_view scheduling_policy_name(SchedulingPolicy policy) noexcept { return name_in(kPolicies, policy); }
std::optional<SchedulingPolicy> parse_scheduling_policy(std::string_view name) noexcept {
  return value_in(kPolicies, name);
}
std::string_view replay_mode_name(ReplayMode mode) noexcept { return name_in(kReplayModes, mode); }
std::string_view cache_layout_name(CacheLayout layout) noexcept { return name_in(kLayouts, layout); }
std::optional<CacheLayout> parse_cache_layout(std::string_view name) noexcept { return value_in(kLayouts, name); }
std::string_view pooling_name(Pooling pooling) noexcept { return name_in(kPoolings, pooling); }
std::optional<Pooling> parse_pooling(std::string_view name) noexcept { return value_in(kPoolings, name); }
std::string_view miss_reason_name(MissReason reason) noexcept { return name_in(kMissReasons, reason); }

}  // namespace coluber
