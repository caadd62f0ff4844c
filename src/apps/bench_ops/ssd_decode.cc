// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_ops/ssd_decode.h"

#include "kernels/scan/ssd_cuda.h"

namespace coluber::bench_ops {
namespace {

constexpr int64_t kInputSets = 16;

}  // namespace

Row bench_ssd_decode(CudaDevice& device, const SsdShape& shape, const Case& c) {
  const int64_t batch = c.batch;
  const DType state = c.state;
  const bool whole = state == DType::kInt16 || state == DType::kInt8;
  const int64_t lines = shape.num_heads * shape.head_dim, elements = lines * shape.state_size;
  const int64_t scale_offset = elements * dtype_size(state);
  const int64_t slot_bytes = scale_offset + (whole ? lines * 4 : 0);
  const int64_t group_width = shape.num_groups * shape.state_size;

  const RotatingStates states(device, batch, slot_bytes, state);
  DeviceArray x(device, kInputSets * batch * lines * 2), y(device, kInputSets * batch * lines * 2);
  DeviceArray b(device, kInputSets * batch * group_width * 2), c_in(device, kInputSets * batch * group_width * 2);
  DeviceArray dt(device, kInputSets * batch * shape.num_heads * 2);
  DeviceArray bias(device, shape.num_heads * 4), a(device, shape.num_heads * 4), d(device, shape.num_heads * 4);
  x.fill_bfloat16(-1, 1, 1);
  b.fill_bfloat16(-1, 1, 2);
  c_in.fill_bfloat16(-1, 1, 3);
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
  args.overlap = c.overlap;
  args.head_dim = shape.head_dim;
  args.num_groups = shape.num_groups;
  args.state_size = shape.state_size;
  const auto update = device.library().function<SsdCudaFunction>(kSsdStateUpdateCuda);
  const auto launch = [&](int64_t i) {
    const int64_t inputs = i % kInputSets * batch;
    args.x = x.data() + inputs * lines * 2;
    args.y = y.data() + inputs * lines * 2;
    args.b = b.data() + inputs * group_width * 2;
    args.c = c_in.data() + inputs * group_width * 2;
    args.dt = dt.data() + inputs * shape.num_heads * 2;
    args.state = states.slots(i);
    check_cuda(update(&args, device.stream()), "update states");
  };
  Row row{"ssd_decode", shape.name, std::string(dtype_name(state)), batch, {}, 0, 0};
  row.timing = time_launches(device, states.launches(), launch);
  const double inputs = 2.0 * static_cast<double>(2 * lines + 2 * group_width + shape.num_heads);
  row.useful_bytes = static_cast<double>(batch) * (2.0 * static_cast<double>(slot_bytes) + inputs);
  row.useful_flops = static_cast<double>(batch) * 6.0 * static_cast<double>(elements);
  return row;
}

}  // namespace coluber::bench_ops
