// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_ops/device_bench.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace coluber::bench_ops {
namespace {

constexpr int64_t kStateBytes = int64_t{3} << 30;  // that the launches rotate through
constexpr int64_t kMostSets = 64, kMostSlots = 16384;

std::vector<int32_t> shuffled_slots(int64_t slots) {
  std::vector<int32_t> ids(static_cast<size_t>(slots - 1));
  std::iota(ids.begin(), ids.end(), 1);  // 0 is the null slot
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(7));
  return ids;
}

}  // namespace

RotatingStates::RotatingStates(CudaDevice& device, int64_t batch, int64_t slot_bytes, DType state)
    : batch_(batch),
      slot_bytes_(slot_bytes),
      num_slots_(std::clamp(kStateBytes / slot_bytes, 2 * batch + 1, std::max(2 * batch + 1, kMostSlots))),
      sets_(std::clamp<int64_t>((num_slots_ - 1) / batch, 1, kMostSets)),
      state_(state),
      states_(device, num_slots_ * slot_bytes),
      indices_(device, (num_slots_ - 1) * 4) {
  if (state == DType::kFloat32) states_.fill_float32(-1, 1, 9);
  if (state == DType::kBFloat16) states_.fill_bfloat16(-1, 1, 9);
  indices_.copy_from(shuffled_slots(num_slots_).data(), indices_.bytes());
}

StateSlots RotatingStates::slots(int64_t launch) const {
  const auto* slot = reinterpret_cast<const int32_t*>(indices_.data()) + launch % sets_ * batch_;
  return {states_.data(), state_, slot_bytes_, slot, slot, 1, nullptr};
}

int64_t RotatingStates::launches() const noexcept { return batch_ >= 64 ? std::max<int64_t>(4, sets_) : kMostSets; }

}  // namespace coluber::bench_ops
