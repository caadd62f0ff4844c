// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/mlstm_ref.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace coluber::ref {
namespace {

struct Memory {
  std::vector<double> c, n;  // [K, V], [K]
  double m = 0.0;
};

double capped(double x, double cap) { return cap > 0.0 ? cap * std::tanh(x / cap) : x; }

Memory read(const MlstmArgs& args, int64_t row, int64_t head) {
  const int64_t keys = args.key_dim, cells = keys * args.value_dim;
  Memory memory{std::vector<double>(static_cast<size_t>(cells)), std::vector<double>(static_cast<size_t>(keys))};
  if (args.c.is_fresh(row)) return memory;
  for (int64_t i = 0; i < cells; ++i)
    memory.c[static_cast<size_t>(i)] = load_state_element(args.c.source(row), args.c.dtype, head * cells + i);
  for (int64_t i = 0; i < keys; ++i)
    memory.n[static_cast<size_t>(i)] = load_state_element(args.n.source(row), DType::kFloat32, head * keys + i);
  memory.m = load_state_element(args.m.source(row), DType::kFloat32, head);
  return memory;
}

void write(const MlstmArgs& args, int32_t c_slot, int32_t nm_slot, int64_t head, const Memory& memory) {
  const int64_t keys = args.key_dim, cells = keys * args.value_dim;
  for (int64_t i = 0; i < cells; ++i)
    store_state_element(args.c.at(c_slot), args.c.dtype, head * cells + i,
                        static_cast<float>(memory.c[static_cast<size_t>(i)]));
  for (int64_t i = 0; i < keys; ++i)
    store_state_element(args.n.at(nm_slot), DType::kFloat32, head * keys + i,
                        static_cast<float>(memory.n[static_cast<size_t>(i)]));
  store_state_element(args.m.at(nm_slot), DType::kFloat32, head, static_cast<float>(memory.m));
}

void step(const MlstmArgs& args, int64_t token, int64_t head, Memory& memory) {
  const int64_t keys = args.key_dim, values = args.value_dim;
  const float* q = args.q + token * args.qkv_stride + head * keys;
  const float* k = args.k + token * args.qkv_stride + head * keys;
  const float* v = args.v + token * args.qkv_stride + head * values;
  const double log_i = capped(args.i[token * args.gate_stride + head], args.soft_cap);
  const double gate = capped(args.f[token * args.gate_stride + head], args.soft_cap);
  const double log_f = std::min(gate, 0.0) - std::log1p(std::exp(-std::fabs(gate)));
  const double m = std::max(log_f + memory.m, log_i);
  const double keep = std::exp(log_f + memory.m - m), add = std::exp(log_i - m);
  memory.m = args.m.kept(m);
  const double scale = 1.0 / std::sqrt(static_cast<double>(keys));
  std::vector<double> y(static_cast<size_t>(values), 0.0);
  double norm = 0.0;
  for (int64_t i = 0; i < keys; ++i) {
    double& n = memory.n[static_cast<size_t>(i)];
    n = args.n.kept(keep * n + add * k[i]);
    norm += scale * q[i] * n;
    for (int64_t j = 0; j < values; ++j) {
      double& c = memory.c[static_cast<size_t>(i * values + j)];
      c = args.c.kept(keep * c + add * k[i] * static_cast<double>(v[j]));
      y[static_cast<size_t>(j)] += scale * q[i] * c;
    }
  }
  const double divisor = std::max(std::fabs(norm), std::exp(-m)) + static_cast<double>(args.eps);
  for (int64_t j = 0; j < values; ++j)
    args.y[(token * args.num_heads + head) * values + j] = static_cast<float>(y[static_cast<size_t>(j)] / divisor);
}

}  // namespace

void mlstm(const MlstmArgs& args, ThreadPool&, Workspace&) {
  const int64_t width = args.num_heads * args.value_dim;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t begin = args.query_start_loc == nullptr ? row : args.query_start_loc[row];
    const int64_t end = args.query_start_loc == nullptr ? row + 1 : args.query_start_loc[row + 1];
    if (args.c.is_null(row)) {
      std::fill(args.y + begin * width, args.y + end * width, 0.0f);
      continue;
    }
    for (int64_t head = 0; head < args.num_heads; ++head) {
      Memory memory = read(args, row, head);
      const RowParts parts(args.c, args.c_exports, row, begin, end), beside(args.n, args.nm_exports, row, begin, end);
      auto nm = beside.begin();
      for (const RowPart part : parts) {
        for (int64_t t = part.begin; t < part.end; ++t) step(args, t, head, memory);
        write(args, part.slot, (*nm).slot, head, memory);
        ++nm;
      }
    }
  }
}

}  // namespace coluber::ref
