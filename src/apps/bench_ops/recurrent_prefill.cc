// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_ops/recurrent_prefill.h"

#include <memory>

#include "kernels/conv/causal_conv1d_cuda.h"
#include "kernels/delta/delta_prefill_cuda.h"
#include "kernels/linear/gated_linear_attention_prefill_cuda.h"
#include "kernels/scan/ssd_prefill_cuda.h"

namespace coluber::bench_ops {
namespace {

constexpr int64_t kInputSets = 3;  // of 100 MB and more each: none finds its inputs in the second-level cache
constexpr int64_t kLaunches = 6;

// A batch of sequences of equal length, with a slot each.
class Batch {
 public:
  Batch(CudaDevice& device, const Case& c, int64_t state_elements)
      : device_(device),
        c_(c),
        slot_bytes_(state_elements * dtype_size(c.state)),
        states_(device, (c.batch + 1) * slot_bytes_),
        indices_(device, c.batch * 4),
        starts_(device, (c.batch + 1) * 4) {
    if (c.state == DType::kFloat32) states_.fill_float32(-1, 1, 9);
    if (c.state == DType::kBFloat16) states_.fill_bfloat16(-1, 1, 9);
    std::vector<int32_t> slots, starts = {0};
    for (int64_t i = 0; i < c.batch; ++i) {
      slots.push_back(static_cast<int32_t>(i + 1));
      starts.push_back(static_cast<int32_t>((i + 1) * c.tokens));
    }
    indices_.copy_from(slots.data(), indices_.bytes());
    starts_.copy_from(starts.data(), starts_.bytes());
  }
  int64_t tokens() const { return c_.batch * c_.tokens; }
  StateSlots slots() const {
    const auto* slot = reinterpret_cast<const int32_t*>(indices_.data());
    return {states_.data(), c_.state, slot_bytes_, slot, slot, 1, nullptr};
  }
  const int32_t* query_start_loc() const { return reinterpret_cast<const int32_t*>(starts_.data()); }

  // [tokens, width] of bfloat16 in each set; counted as useful bytes.
  const std::byte* input(int64_t width, float low, float high) {
    std::byte* data = output(width);
    arrays_.back()->fill_bfloat16(low, high, arrays_.size());
    return data;
  }
  std::byte* output(int64_t width) {
    arrays_.push_back(std::make_unique<DeviceArray>(device_, kInputSets * tokens() * width * 2));
    bytes_of_token_ += width * 2;
    return arrays_.back()->data();
  }
  const float* parameter(int64_t count, float low, float high) {
    arrays_.push_back(std::make_unique<DeviceArray>(device_, count * 4));
    arrays_.back()->fill_float32(low, high, arrays_.size());
    return reinterpret_cast<const float*>(arrays_.back()->data());
  }
  void* scratch(int64_t bytes) {
    arrays_.push_back(std::make_unique<DeviceArray>(device_, bytes));
    return arrays_.back()->data();
  }
  // Bytes before the inputs of a launch.
  int64_t at(int64_t launch, int64_t width) const { return launch % kInputSets * tokens() * width * 2; }

  Row time(const char* operation, const char* shape, double flops_of_token,
           const std::function<void(int64_t)>& launch) const {
    Row row{operation, shape, std::string(dtype_name(c_.state)), c_.batch, {}, 0, 0, c_.tokens};
    row.timing = time_launches(device_, kLaunches, launch);
    row.useful_bytes = static_cast<double>(tokens()) * static_cast<double>(bytes_of_token_) +
                       2.0 * static_cast<double>(c_.batch * slot_bytes_);
    row.useful_flops = static_cast<double>(tokens()) * flops_of_token;
    return row;
  }

 private:
  CudaDevice& device_;
  Case c_;
  int64_t slot_bytes_;
  DeviceArray states_, indices_, starts_;
  std::vector<std::unique_ptr<DeviceArray>> arrays_;
  int64_t bytes_of_token_ = 0;
};

Row bench_ssd(CudaDevice& device, const Case& c) {
  const int64_t heads = 128, head_dim = 64, n = 128, groups = 8, width = heads * head_dim, group_width = groups * n;
  Batch batch(device, c, width * n);
  const std::byte *x = batch.input(width, -1, 1), *dt = batch.input(heads, -4, 0);
  const std::byte *b = batch.input(group_width, -1, 1), *c_in = batch.input(group_width, -1, 1);
  std::byte* y = batch.output(width);
  SsdPrefillCudaArgs args;
  args.x_stride = args.y_stride = width;
  args.dt_stride = args.num_heads = heads;
  args.b_stride = args.c_stride = group_width;
  args.dt_bias = batch.parameter(heads, -1, 1);
  args.a = batch.parameter(heads, -4, -0.1f);
  args.d = batch.parameter(heads, -1, 1);
  args.state = batch.slots();
  args.query_start_loc = batch.query_start_loc();
  args.rows = c.batch;
  args.head_dim = head_dim;
  args.num_groups = groups;
  args.state_size = n;
  const auto prefill = device.library().function<SsdPrefillCudaFunction>(kSsdPrefillCuda);
  const double chunk = 128, flops = 2 * chunk * n * groups + 2 * chunk * width + 4.0 * n * width;
  return batch.time("ssd_prefill", "nemotron_h", flops, [&](int64_t i) {
    args.x = x + batch.at(i, width);
    args.dt = dt + batch.at(i, heads);
    args.b = b + batch.at(i, group_width);
    args.c = c_in + batch.at(i, group_width);
    args.y = y + batch.at(i, width);
    check_cuda(prefill(&args, device.stream()), "prefill");
  });
}

Row bench_lightning(CudaDevice& device, const Case& c) {
  const int64_t heads = 64, dim = 128, width = heads * dim;
  Batch batch(device, c, width * dim);
  const std::byte *q = batch.input(width, -1, 1), *k = batch.input(width, -1, 1), *v = batch.input(width, -1, 1);
  std::byte* o = batch.output(width);
  GatedLinearAttentionPrefillCudaArgs args;
  args.q_stride = args.k_stride = args.v_stride = args.o_stride = width;
  args.q_head_stride = args.k_head_stride = args.v_head_stride = args.key_dim = args.value_dim = dim;
  args.slopes = batch.parameter(heads, 0.01f, 1);
  args.state = batch.slots();
  args.query_start_loc = batch.query_start_loc();
  args.rows = c.batch;
  args.num_heads = heads;
  const auto prefill =
      device.library().function<GatedLinearAttentionPrefillCudaFunction>(kGatedLinearAttentionPrefillCuda);
  const double chunk = 64, flops = static_cast<double>(width) * (4.0 * dim + 4 * chunk);
  return batch.time("lightning_prefill", "minimax", flops, [&](int64_t i) {
    args.q = q + batch.at(i, width);
    args.k = k + batch.at(i, width);
    args.v = v + batch.at(i, width);
    args.o = o + batch.at(i, width);
    check_cuda(prefill(&args, device.stream()), "prefill");
  });
}

Row bench_conv(CudaDevice& device, const Case& c) {
  const int64_t channels = 10240, conv_width = 4;
  Batch batch(device, c, (conv_width - 1) * channels);
  const std::byte* x = batch.input(channels, -1, 1);
  std::byte* y = batch.output(channels);
  CausalConv1dCudaArgs args;
  args.x_stride = args.y_stride = args.channels = channels;
  args.weight = batch.parameter(conv_width * channels, -1, 1);
  args.bias = batch.parameter(channels, -1, 1);
  args.silu = 1;
  args.state = batch.slots();
  args.query_start_loc = batch.query_start_loc();
  args.tokens = batch.tokens();
  args.rows = c.batch;
  args.width = conv_width;
  const auto conv = device.library().function<CausalConv1dCudaFunction>(kCausalConv1dCuda);
  return batch.time("conv_prefill", "nemotron_h", static_cast<double>(2 * conv_width * channels), [&](int64_t i) {
    args.x = x + batch.at(i, channels);
    args.y = y + batch.at(i, channels);
    check_cuda(conv(&args, device.stream()), "prefill");
  });
}

Row bench_gdn(CudaDevice& device, const Case& c) {
  const int64_t k_heads = 16, v_heads = 32, dim = 128, k_width = k_heads * dim, v_width = v_heads * dim;
  Batch batch(device, c, v_width * dim);
  const std::byte *q = batch.input(k_width, -1, 1), *k = batch.input(k_width, -1, 1), *v = batch.input(v_width, -1, 1);
  const std::byte *gate = batch.input(v_heads, -4, 0), *beta = batch.input(v_heads, -2, 2);
  std::byte* y = batch.output(v_width);
  DeltaPrefillCudaArgs args;
  args.q_stride = args.k_stride = k_width;
  args.v_stride = args.y_stride = v_width;
  args.gate_stride = args.beta_stride = args.num_v_heads = v_heads;
  args.gate_bias = batch.parameter(v_heads, -1, 1);
  args.gate_rate = batch.parameter(v_heads, 0.1f, 4);
  args.norm_eps = 1e-6f;
  args.scale = 0.088f;
  args.state = batch.slots();
  args.query_start_loc = batch.query_start_loc();
  args.tokens = batch.tokens();
  args.rows = c.batch;
  args.num_k_heads = k_heads;
  args.key_dim = args.value_dim = dim;
  args.scratch = batch.scratch(delta_prefill_scratch_bytes(args));
  const auto prefill = device.library().function<DeltaPrefillCudaFunction>(kDeltaPrefillCuda);
  const double chunk = 64, flops = v_heads * (6.0 * dim * dim + chunk * 10 * dim + chunk * chunk);
  return batch.time("gdn_prefill", "qwen3_next", flops, [&](int64_t i) {
    args.q = q + batch.at(i, k_width);
    args.k = k + batch.at(i, k_width);
    args.v = v + batch.at(i, v_width);
    args.gate = gate + batch.at(i, v_heads);
    args.beta = beta + batch.at(i, v_heads);
    args.y = y + batch.at(i, v_width);
    check_cuda(prefill(&args, device.stream()), "prefill");
  });
}

}  // namespace

std::vector<PrefillCase> recurrent_prefill_cases() {
  return {{"ssd_prefill", "nemotron_h", bench_ssd},
          {"lightning_prefill", "minimax", bench_lightning},
          {"gdn_prefill", "qwen3_next", bench_gdn},
          {"conv_prefill", "nemotron_h", bench_conv}};
}

}  // namespace coluber::bench_ops
