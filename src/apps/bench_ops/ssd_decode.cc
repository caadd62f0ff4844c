// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_ops/ssd_decode.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/scan/ssd_cuda.h"

namespace coluber::bench_ops {
namespace {

constexpr int64_t kStateBytes = int64_t{3} << 30;  // that the launches rotate through
constexpr int64_t kMostSets = 64, kInputSets = 16, kMostSlots = 16384;

std::vector<int32_t> shuffled_slots(int64_t slots) {
  std::vector<int32_t> ids(static_cast<size_t>(slots - 1));
  std::iota(ids.begin(), ids.end(), 1);  // 0 is the null slot
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(7));
  return ids;
}

}  // namespace

Row bench_ssd_decode(CudaDevice& device, const SsdShape& shape, int64_t batch, DType state) {
  const bool whole = state == DType::kInt16 || state == DType::kInt8;
  const int64_t lines = shape.num_heads * shape.head_dim, elements = lines * shape.state_size;
  const int64_t scale_offset = elements * dtype_size(state);
  const int64_t slot_bytes = scale_offset + (whole ? lines * 4 : 0);
  const int64_t slots = std::clamp(kStateBytes / slot_bytes, batch + 1, std::max(batch + 1, kMostSlots));
  const int64_t sets = std::clamp<int64_t>((slots - 1) / batch, 1, kMostSets);
  const int64_t group_width = shape.num_groups * shape.state_size;

  DeviceArray states(device, slots * slot_bytes), indices(device, (slots - 1) * 4);
  if (state == DType::kFloat32) states.fill_float32(-1, 1, 9);
  if (state == DType::kBFloat16) states.fill_bfloat16(-1, 1, 9);
  const std::vector<int32_t> ids = shuffled_slots(slots);
  indices.copy_from(ids.data(), indices.bytes());
  DeviceArray x(device, kInputSets * batch * lines * 2), y(device, kInputSets * batch * lines * 2);
  DeviceArray b(device, kInputSets * batch * group_width * 2), c(device, kInputSets * batch * group_width * 2);
  DeviceArray dt(device, kInputSets * batch * shape.num_heads * 2);
  DeviceArray bias(device, shape.num_heads * 4), a(device, shape.num_heads * 4), d(device, shape.num_heads * 4);
  x.fill_bfloat16(-1, 1, 1);
  b.fill_bfloat16(-1, 1, 2);
  c.fill_bfloat16(-1, 1, 3);
  dt.fill_bfloat16(-4, 0, 4);
  bias.fill_float32(-1, 1, 5);
  a.fill_float32(-4, -0.1f, 6);
  d.fill_float32(-1, 1, 7);

  SsdCudaArgs args;
  args.x_stride = args.y_stride = lines;
  args.dt_stride = args.num_heads = shape.num_heads;
  args.b_stride = args.c_stride = group_width;
  args.dt_bias = reinterpret_cast<const float*>(bias.data());
  args.a = reinterpret_cast<const float*>(a.data());
  args.d = reinterpret_cast<const float*>(d.data());
  args.scale_offset_bytes = scale_offset;
  args.rows = batch;
  args.head_dim = shape.head_dim;
  args.num_groups = shape.num_groups;
  args.state_size = shape.state_size;
  const auto update = device.library().function<SsdCudaFunction>(kSsdStateUpdateCuda);
  const auto launch = [&](int64_t i) {
    const int64_t set = i % sets, inputs = set % kInputSets * batch;
    const auto* slot = reinterpret_cast<const int32_t*>(indices.data()) + set * batch;
    args.x = x.data() + inputs * lines * 2;
    args.y = y.data() + inputs * lines * 2;
    args.b = b.data() + inputs * group_width * 2;
    args.c = c.data() + inputs * group_width * 2;
    args.dt = dt.data() + inputs * shape.num_heads * 2;
    args.state = {states.data(), state, slot_bytes, slot, slot, 1, nullptr};
    check_cuda(update(&args, device.stream()), "update states");
  };
  Row row{"ssd_decode", shape.name, std::string(dtype_name(state)), batch, {}, 0, 0};
  row.timing = time_launches(device, batch >= 64 ? std::max<int64_t>(4, sets) : kMostSets, launch);
  const double inputs = 2.0 * static_cast<double>(2 * lines + 2 * group_width + shape.num_heads);
  row.useful_bytes = static_cast<double>(batch) * (2.0 * static_cast<double>(slot_bytes) + inputs);
  row.useful_flops = static_cast<double>(batch) * 6.0 * static_cast<double>(elements);
  return row;
}

}  // namespace coluber::bench_ops
