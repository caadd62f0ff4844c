// SPDX-License-Identifier: Apache-2.0
//
// Matrix products at the sizes of published models, each candidate against the limit measured just before it: a few
// rows against the read bandwidth (over copies of the weight that together outgrow the caches), many rows against the
// FMA rate. Threads: COLUBER_BENCH_THREADS, or all usable cores.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/block_type.h"
#include "base/dtype.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quant/block_types.h"
#include "kernels/quant/scaled_types.h"
#include "kernels/roofline/roofline.h"

namespace coluber {
namespace {

struct Size {
  const char* what;
  int64_t k, n;
};
constexpr Size kSizes[] = {
    {"mamba-130m.in_proj", 768, 3072},    {"mamba-130m.x_proj", 1536, 80},      {"mamba-130m.dt_proj", 48, 1536},
    {"mamba-130m.out_proj", 1536, 768},   {"mamba-130m.lm_head", 768, 50280},   {"mamba2-370m.in_proj", 1024, 4384},
    {"mamba2-370m.out_proj", 2048, 1024}, {"mamba2-370m.lm_head", 1024, 50288}, {"odd", 1023, 2049},
};
// K is whole blocks of 256.
constexpr Size kBlockSizes[] = {{"mamba-130m.in_proj", 768, 3072}, {"4096x4096", 4096, 4096}};
constexpr int64_t kMemoryBytes = int64_t{512} << 20;
constexpr int64_t kMostCopies = 512;

int threads() {
  const char* wanted = std::getenv("COLUBER_BENCH_THREADS");
  return wanted != nullptr ? std::max(1, std::atoi(wanted)) : usable_cores();
}

struct Setting {
  Size size;
  int64_t m;
  DType dtype;
  bool allow_bf16;
  GemmFunction function;
};

// Values that repeat; of blocks any bytes whose scales are ordinary numbers.
std::vector<std::byte> make_stored(DType dtype, int64_t count) {
  std::vector<std::byte> stored(static_cast<size_t>(dtype_bytes(dtype, count)));
  if (find_block_type(dtype) != nullptr) {
    for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::byte>(0x20 + i * 2654435761 % 23);
    return stored;
  }
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    values[static_cast<size_t>(i)] = static_cast<float>(i * 2654435761 % 2001 - 1000) * 1e-3f;
  convert_from_float(values.data(), count, dtype, stored.data());
  return stored;
}

std::vector<PackedMatrix> make_weights(const Setting& setting, ThreadPool& pool) {
  const std::vector<std::byte> stored = make_stored(setting.dtype, setting.size.n * setting.size.k);
  const auto bytes = static_cast<int64_t>(stored.size());
  const int64_t copies = setting.m > 8 ? 1 : std::clamp<int64_t>(kMemoryBytes / bytes, 1, kMostCopies);
  const TensorView view = TensorView::contiguous(stored.data(), setting.dtype, Shape{setting.size.n, setting.size.k});
  std::vector<PackedMatrix> weights;
  for (int64_t i = 0; i < copies; ++i) weights.push_back(PackedMatrix::pack(view, pool));
  return weights;
}

void run_gemm(benchmark::State& state, const Setting& setting) {
  ThreadPool pool(threads());
  Workspace workspace;
  const std::vector<PackedMatrix> weights = make_weights(setting, pool);
  std::vector<float> a(static_cast<size_t>(setting.m * setting.size.k), 0.5f),
      c(static_cast<size_t>(setting.m * setting.size.n));
  const bool streaming = setting.m <= 8;
  const double limit = streaming ? measure_read_bandwidth(threads()) : measure_fma_gflops(threads());
  size_t next = 0;
  for (auto _ : state) {
    setting.function({a.data(), setting.size.k, setting.m, &weights[next], nullptr, c.data(), setting.size.n, false,
                      setting.allow_bf16},
                     pool, workspace);
    workspace.reset();
    next = (next + 1) % weights.size();
  }
  const double work = streaming ? static_cast<double>(weights[0].bytes())
                                : 2.0 * static_cast<double>(setting.m * setting.size.n * setting.size.k);
  const double total = work * static_cast<double>(state.iterations()) / 1e9;
  state.counters[streaming ? "GB/s" : "GFLOP/s"] = benchmark::Counter(total, benchmark::Counter::kIsRate);
  state.counters["limit"] = limit;
  state.counters["share"] = benchmark::Counter(total / limit, benchmark::Counter::kIsRate);
}

struct Kind {
  std::string name;
  DType dtype;
  bool allow_bf16 = false;
};

void register_size(const Candidate<GemmFunction>& candidate, const Size& size, const Kind& kind) {
  for (int64_t m : {1, 2, 4, 8, 16, 64, 512}) {
    const std::string name =
        std::string(candidate.name) + "/" + kind.name + "/" + size.what + "/m:" + std::to_string(m);
    const Setting setting = {size, m, kind.dtype, kind.allow_bf16, candidate.function};
    benchmark::RegisterBenchmark(name.c_str(), run_gemm, setting)->UseRealTime()->Unit(benchmark::kMicrosecond);
  }
}

void register_all() {
  const Kind float_kinds[] = {{"float32", DType::kFloat32},
                              {"bfloat16", DType::kBFloat16},
                              {"float16", DType::kFloat16},
                              {"bfloat16_products", DType::kBFloat16, true}};
  std::vector<Kind> block_kinds;
  for (const char* name : {"Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "IQ3_S"})
    block_kinds.push_back({name, *quantized_dtype(name)});
  for (const ScaledCode code : {ScaledCode::kInt4, ScaledCode::kUInt4, ScaledCode::kInt8, ScaledCode::kFloat8E4M3,
                                ScaledCode::kFloat8E5M2, ScaledCode::kNf4}) {
    const DType dtype = scaled_dtype({code, 64});
    block_kinds.push_back({std::string(dtype_name(dtype)), dtype});
  }
  for (const auto& candidate : gemm().candidates()) {
    if (candidate.isa > active_isa() || candidate.isa == Isa::kRef) continue;
    for (const Kind& kind : float_kinds) {
      // The other settings of this tier run the code of the one below.
      if ((candidate.isa == Isa::kAvx512Bf16) != kind.allow_bf16) continue;
      for (const Size& size : kSizes) register_size(candidate, size, kind);
    }
    if (candidate.isa == Isa::kAvx512Bf16) continue;
    for (const Kind& kind : block_kinds)
      for (const Size& size : kBlockSizes) register_size(candidate, size, kind);
  }
}

// Before main, which is the library's.
[[maybe_unused]] const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace coluber
