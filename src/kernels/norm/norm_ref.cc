// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "kernels/norm/norm_cpu.h"

namespace coluber {
namespace {

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }
double gate_value(Gate gate, double z) { return gate == Gate::kSilu ? z * sigmoid(z) : sigmoid(z); }
double weight_at(const RmsNormArgs& args, int64_t c) {
  return args.weight == nullptr ? 1.0 : static_cast<double>(args.weight[c] + args.weight_offset);
}

double mean_square(const double* u, int64_t cols) {
  double sum = 0;
  for (int64_t c = 0; c < cols; ++c) sum += u[c] * u[c];
  return sum / static_cast<double>(cols);
}

void rms_norm_ref(const RmsNormArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.rows, 1, [&](int64_t row, int64_t, int) {
    const float* x = args.x + row * args.x_stride;
    const std::vector<double> u(x, x + args.cols);
    const double scale = 1 / std::sqrt(mean_square(u.data(), args.cols) + args.eps);
    for (int64_t c = 0; c < args.cols; ++c) {
      args.y[row * args.y_stride + c] = static_cast<float>(u[c] * scale * weight_at(args, c));
    }
  });
}

template <bool kGateFirst>
void gated_ref(const GatedRmsNormArgs& args, ThreadPool& pool) {
  const RmsNormArgs& norm = args.norm;
  const int64_t width = norm.cols / args.groups;
  pool.parallel_for(norm.rows, 1, [&](int64_t row, int64_t, int) {
    const float* x = norm.x + row * norm.x_stride;
    const float* z = args.z + row * args.z_stride;
    std::vector<double> u(x, x + norm.cols);
    for (int64_t c = 0; kGateFirst && c < norm.cols; ++c) u[c] *= gate_value(args.gate, z[c]);
    for (int64_t c = 0; c < norm.cols; ++c) {
      const double scale = 1 / std::sqrt(mean_square(u.data() + c / width * width, width) + norm.eps);
      const double gate = kGateFirst ? 1.0 : gate_value(args.gate, z[c]);
      norm.y[row * norm.y_stride + c] = static_cast<float>(u[c] * scale * weight_at(norm, c) * gate);
    }
  });
}

void layer_norm_ref(const LayerNormArgs& args, ThreadPool& pool) {
  const RmsNormArgs& norm = args.norm;
  pool.parallel_for(norm.rows, 1, [&](int64_t row, int64_t, int) {
    const float* x = norm.x + row * norm.x_stride;
    std::vector<double> u(x, x + norm.cols);
    double mean = 0;
    for (double value : u) mean += value / static_cast<double>(norm.cols);
    for (double& value : u) value -= mean;
    const double scale = 1 / std::sqrt(mean_square(u.data(), norm.cols) + norm.eps);
    for (int64_t c = 0; c < norm.cols; ++c) {
      const double bias = args.bias == nullptr ? 0.0 : static_cast<double>(args.bias[c]);
      norm.y[row * norm.y_stride + c] = static_cast<float>(u[c] * scale * weight_at(norm, c) + bias);
    }
  });
}

}  // namespace

const NormFunctions kNormRef = {rms_norm_ref, gated_ref<true>, gated_ref<false>, layer_norm_ref};

}  // namespace coluber
