// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/gated_norm_cuda.h"

#include "kernels/cuda_test.h"

namespace coluber {
namespace {

struct Problem {
  int64_t cols, groups;
  Gate gate = Gate::kSilu;
  bool weight = true;
  DType activations = DType::kFloat32;
};

constexpr int64_t kRows = 5;

class GatedNormCuda : public CudaTest {
 protected:
  void expect_agrees(const char* name, const Problem& p) {
    const int64_t stride = p.cols + 8, count = kRows * stride;
    const std::vector<float> x = random_activations(p.activations, count, -2, 2, 1),
                             z = random_activations(p.activations, count, -3, 3, 2),
                             weight = random_floats(p.cols, 0.5f, 2, 3);
    std::vector<float> want(x.size(), 77.0f);
    GatedRmsNormArgs args{{x.data(), stride, want.data(), stride, kRows, p.cols, p.weight ? weight.data() : nullptr,
                           p.weight ? 1.0f : 0.0f, 1e-5f},
                          z.data(),
                          stride,
                          p.groups,
                          p.gate};
    ThreadPool pool(1);
    if (name == kRmsNormCuda) {
      rms_norm().reference().function(args.norm, pool);
    } else {
      (name == kGateThenRmsNormCuda ? gate_then_rms_norm() : rms_norm_then_gate()).reference().function(args, pool);
    }
    Uploads uploads(*device_);
    GatedRmsNormCudaArgs on_device;
    on_device.activations = p.activations;
    on_device.x = uploads.add(p.activations, x);
    on_device.z = uploads.add(p.activations, z);
    on_device.y = const_cast<void*>(uploads.add(p.activations, std::vector<float>(x.size(), 77.0f)));
    on_device.x_stride = on_device.z_stride = on_device.y_stride = stride;
    on_device.gate = p.gate;
    on_device.weight = p.weight ? uploads.add(weight) : nullptr;
    on_device.weight_offset = p.weight ? 1.0f : 0.0f;
    on_device.rows = kRows;
    on_device.cols = p.cols;
    on_device.groups = p.groups;
    check_cuda(device_->library().function<GatedRmsNormCudaFunction>(name)(&on_device, device_->stream()), name);
    device_->synchronize();
    expect_close(uploads.fetch(p.activations, on_device.y, x.size()), want,
                 with_activation_rounding(kNormCudaTolerance, p.activations), name);
  }
};

TEST_F(GatedNormCuda, AgreesWithTheReference) {
  for (DType activations : {DType::kFloat32, DType::kBFloat16}) {
    for (Problem p : {Problem{8192, 8}, Problem{4096, 32, Gate::kSigmoid}, Problem{4096, 1, Gate::kSilu, false},
                      Problem{5000, 1}, Problem{36, 3}, Problem{1, 1}, Problem{77, 7, Gate::kSigmoid}}) {
      p.activations = activations;
      SCOPED_TRACE(testing::Message() << p.cols << " columns in " << p.groups << " groups, "
                                      << dtype_name(activations));
      expect_agrees(kGateThenRmsNormCuda, p);
      expect_agrees(kRmsNormThenGateCuda, p);
      p.groups = 1;
      expect_agrees(kRmsNormCuda, p);
    }
  }
}

}  // namespace
}  // namespace coluber
