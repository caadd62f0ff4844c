// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_ops/recurrent_decode.h"

#include <algorithm>
#include <memory>

#include "kernels/delta/delta_rule_cuda.h"
#include "kernels/linear/gated_linear_attention_cuda.h"
#include "kernels/scan/selective_scan_cuda.h"
#include "kernels/wkv/wkv7_cuda.h"

namespace coluber::bench_ops {
namespace {

constexpr int64_t kInputSets = 16;

// The states of a case, and inputs that the launches rotate through.
class Rotation {
 public:
  Rotation(CudaDevice& device, const Case& c, int64_t lines, int64_t size)
      : device_(device),
        batch_(c.batch),
        lines_(lines),
        size_(size),
        state_(c.state),
        states_(device, c.batch, slot_bytes(), c.state) {}

  bool is_whole() const { return state_ == DType::kInt16 || state_ == DType::kInt8; }
  int64_t scale_offset() const { return lines_ * size_ * dtype_size(state_); }
  int64_t slot_bytes() const { return scale_offset() + (is_whole() ? lines_ * 4 : 0); }
  StateSlots slots(int64_t launch) const { return states_.slots(launch); }

  // [batch, width] in each set; counted as useful bytes.
  const std::byte* input(int64_t width, float low, float high, bool wide = false) {
    const int64_t bytes = width * (wide ? 4 : 2);
    arrays_.push_back(std::make_unique<DeviceArray>(device_, kInputSets * batch_ * bytes));
    const auto seed = static_cast<uint64_t>(arrays_.size());
    if (wide) arrays_.back()->fill_float32(low, high, seed);
    if (!wide) arrays_.back()->fill_bfloat16(low, high, seed);
    input_bytes_ += bytes;
    return arrays_.back()->data();
  }
  std::byte* output(int64_t width) {
    arrays_.push_back(std::make_unique<DeviceArray>(device_, kInputSets * batch_ * width * 2));
    input_bytes_ += width * 2;
    return arrays_.back()->data();
  }
  const float* parameter(int64_t count, float low, float high) {
    arrays_.push_back(std::make_unique<DeviceArray>(device_, count * 4));
    arrays_.back()->fill_float32(low, high, arrays_.size());
    return reinterpret_cast<const float*>(arrays_.back()->data());
  }
  // Elements before the inputs of a launch, for inputs of `width` a sequence.
  int64_t at(int64_t launch, int64_t width) const { return launch % kInputSets * batch_ * width; }

  Row time(const char* operation, const char* shape, double flops_of_element,
           const std::function<void(int64_t)>& launch) {
    Row row{operation, shape, std::string(dtype_name(state_)), batch_, {}, 0, 0};
    row.timing = time_launches(device_, states_.launches(), launch);
    const double batch = static_cast<double>(batch_);
    row.useful_bytes = batch * (2.0 * static_cast<double>(slot_bytes()) + static_cast<double>(input_bytes_));
    row.useful_flops = batch * flops_of_element * static_cast<double>(lines_ * size_);
    return row;
  }

 private:
  CudaDevice& device_;
  int64_t batch_, lines_, size_;
  DType state_;
  RotatingStates states_;
  std::vector<std::unique_ptr<DeviceArray>> arrays_;
  int64_t input_bytes_ = 0;
};

Row bench_delta(CudaDevice& device, const Case& c, bool per_channel) {
  const int64_t k_heads = per_channel ? 32 : 16, v_heads = 32, dim = 128;
  Rotation r(device, c, v_heads * dim, dim);
  const int64_t k_width = k_heads * dim, v_width = v_heads * dim, gates = per_channel ? v_width : v_heads;
  const std::byte *q = r.input(k_width, -1, 1), *k = r.input(k_width, -1, 1), *v = r.input(v_width, -1, 1);
  const std::byte *gate = r.input(gates, -4, 0), *beta = r.input(v_heads, -2, 2);
  std::byte* y = r.output(v_width);
  DeltaRuleCudaArgs args;
  args.q_stride = args.k_stride = k_width;
  args.v_stride = args.y_stride = v_width;
  args.gate_stride = gates;
  args.gate_per_channel = per_channel;
  args.gate_bias = r.parameter(gates, -1, 1);
  args.gate_rate = r.parameter(v_heads, 0.1f, 4);
  args.beta_stride = args.num_v_heads = v_heads;
  args.norm_eps = 1e-6f;
  args.scale = 0.088f;
  args.scale_offset_bytes = r.scale_offset();
  args.rows = c.batch;
  args.overlap = c.overlap;
  args.num_k_heads = k_heads;
  args.key_dim = args.value_dim = dim;
  const auto update = device.library().function<DeltaRuleCudaFunction>(kDeltaRuleUpdateCuda);
  return r.time(per_channel ? "kda_decode" : "gdn_decode", per_channel ? "kimi_linear" : "qwen3_next", 8,
                [&](int64_t i) {
                  args.q = q + r.at(i, k_width) * 2;
                  args.k = k + r.at(i, k_width) * 2;
                  args.v = v + r.at(i, v_width) * 2;
                  args.gate = gate + r.at(i, gates) * 2;
                  args.beta = beta + r.at(i, v_heads) * 2;
                  args.y = y + r.at(i, v_width) * 2;
                  args.state = r.slots(i);
                  check_cuda(update(&args, device.stream()), "update states");
                });
}
Row bench_gdn(CudaDevice& device, const Case& c) { return bench_delta(device, c, false); }
Row bench_kda(CudaDevice& device, const Case& c) { return bench_delta(device, c, true); }

Row bench_lightning(CudaDevice& device, const Case& c) {
  const int64_t heads = 64, dim = 128, width = heads * dim;
  Rotation r(device, c, width, dim);
  const std::byte *q = r.input(width, -1, 1), *k = r.input(width, -1, 1), *v = r.input(width, -1, 1);
  std::byte* o = r.output(width);
  GatedLinearAttentionCudaArgs args;
  args.q_stride = args.k_stride = args.v_stride = args.o_stride = width;
  args.q_head_stride = args.k_head_stride = args.v_head_stride = args.key_dim = args.value_dim = dim;
  args.slopes = r.parameter(heads, 0.01f, 1);
  args.rows = c.batch;
  args.overlap = c.overlap;
  args.num_heads = heads;
  const auto update = device.library().function<GatedLinearAttentionCudaFunction>(kGatedLinearAttentionUpdateCuda);
  return r.time("lightning_decode", "minimax", 5, [&](int64_t i) {
    const int64_t offset = r.at(i, width) * 2;
    args.q = q + offset;
    args.k = k + offset;
    args.v = v + offset;
    args.o = o + offset;
    args.state = r.slots(i);
    check_cuda(update(&args, device.stream()), "update states");
  });
}

Row bench_mamba1(CudaDevice& device, const Case& c) {
  const int64_t channels = 5120, n = 16;
  Rotation r(device, c, channels, n);
  const std::byte *x = r.input(channels, -1, 1), *delta = r.input(channels, -4, 0), *z = r.input(channels, -1, 1);
  const std::byte *b = r.input(n, -1, 1), *c_in = r.input(n, -1, 1);
  std::byte* y = r.output(channels);
  SelectiveScanCudaArgs args;
  args.x_stride = args.delta_stride = args.z_stride = args.y_stride = args.channels = channels;
  args.b_stride = args.c_stride = args.state_size = n;
  args.delta_bias = r.parameter(channels, -1, 1);
  args.a = r.parameter(channels * n, -8, -0.1f);
  args.d = r.parameter(channels, -1, 1);
  args.scale_offset_bytes = r.scale_offset();
  args.rows = c.batch;
  args.overlap = c.overlap;
  const auto update = device.library().function<SelectiveScanCudaFunction>(kSelectiveStateUpdateCuda);
  return r.time("mamba1_decode", "mamba_2_8b", 7, [&](int64_t i) {
    args.x = x + r.at(i, channels) * 2;
    args.delta = delta + r.at(i, channels) * 2;
    args.z = z + r.at(i, channels) * 2;
    args.y = y + r.at(i, channels) * 2;
    args.b = b + r.at(i, n) * 2;
    args.c = c_in + r.at(i, n) * 2;
    args.state = r.slots(i);
    check_cuda(update(&args, device.stream()), "update states");
  });
}

Row bench_rwkv7(CudaDevice& device, const Case& c) {
  const int64_t heads = 64, dim = 64, width = heads * dim;
  Rotation rotation(device, c, width, dim);
  const std::byte *r = rotation.input(width, -1, 1), *w = rotation.input(width, 0.2f, 1, true);
  const std::byte *k = rotation.input(width, -1, 1), *v = rotation.input(width, -1, 1);
  const std::byte *a = rotation.input(width, -0.1f, 0.1f), *b = rotation.input(width, -0.1f, 0.1f);
  std::byte* y = rotation.output(width);
  Wkv7CudaArgs args;
  args.scale_offset_bytes = rotation.scale_offset();
  args.rows = c.batch;
  args.overlap = c.overlap;
  args.num_heads = heads;
  args.head_dim = dim;
  const auto update = device.library().function<Wkv7CudaFunction>(kWkv7UpdateCuda);
  return rotation.time("rwkv7_decode", "rwkv7_7b", 9, [&](int64_t i) {
    const int64_t offset = rotation.at(i, width) * 2;
    args.r = r + offset;
    args.w = reinterpret_cast<const float*>(w + 2 * offset);
    args.k = k + offset;
    args.v = v + offset;
    args.a = a + offset;
    args.b = b + offset;
    args.y = y + offset;
    args.state = rotation.slots(i);
    check_cuda(update(&args, device.stream()), "update states");
  });
}

}  // namespace

std::vector<DecodeCase> recurrent_decode_cases() {
  return {{"gdn_decode", "qwen3_next", bench_gdn},
          {"kda_decode", "kimi_linear", bench_kda},
          {"lightning_decode", "minimax", bench_lightning},
          {"mamba1_decode", "mamba_2_8b", bench_mamba1},
          {"rwkv7_decode", "rwkv7_7b", bench_rwkv7}};
}

}  // namespace coluber::bench_ops
