// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/delta_prefill_cuda.h"

#include "kernels/delta/delta_solve_cuda.cuh"
#include "kernels/delta/delta_walk_cuda.cuh"

namespace coluber {
namespace {

const char* refusal(const DeltaPrefillCudaArgs& args) {
  if (args.activations != DType::kBFloat16) return "activations of another type than bfloat16";
  if (args.rows < 0 || args.rows > kMostGridRows) return kTooManyRows;
  if (args.num_k_heads < 1 || args.num_v_heads > 65535 || args.num_v_heads % args.num_k_heads != 0 || args.tokens < 0)
    return "sizes that do not fit together";
  if (!is_float_state(args.state.dtype)) return kStateOfOtherType;
  if (args.key_dim < 8 || args.key_dim > 128 || args.key_dim % 8 != 0)
    return "keys of another size than a multiple of 8 up to 128";
  if (args.value_dim < 8 || args.value_dim % 8 != 0) return "values of another size than a multiple of 8";
  const std::pair<const void*, int64_t> operands[] = {
      {args.q, args.q_stride}, {args.k, args.k_stride}, {args.v, args.v_stride}, {args.y, args.y_stride}};
  for (const auto& [first, stride] : operands)
    if (reinterpret_cast<uintptr_t>(first) % 16 != 0 || stride % 8 != 0)
      return "operands that do not lie at multiples of 16 bytes";
  return nullptr;
}

template <int kKeys, int kPairs, int kStages>
CudaStatus walk(const DeltaPrefillCudaArgs& args, cudaStream_t stream) {
  constexpr int kShared = sizeof(WalkShared<kKeys, kPairs, kStages>);
  const auto kernel = walk_delta<kKeys, kPairs, kStages>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  const dim3 grid(static_cast<unsigned>(args.num_v_heads) * blocks_of(args.value_dim, kPairs * 16),
                  static_cast<unsigned>(args.rows));
  kernel<<<grid, kPairs * 64, kShared, stream>>>(args);
  return launch_status();
}

template <int kKeys>
CudaStatus prefill(const DeltaPrefillCudaArgs& args, cudaStream_t stream) {
  constexpr int kSolve = sizeof(SolveShared<kKeys>);
  const cudaError_t error =
      cudaFuncSetAttribute(solve_chunks<kKeys>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSolve);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (args.tokens > 0)
    solve_chunks<kKeys><<<dim3(static_cast<unsigned>(args.num_v_heads), static_cast<unsigned>(most_delta_chunks(args))),
                          kSolveThreads, kSolve, stream>>>(args);
  // Blocks of more values read q and k less often, blocks of fewer are more: what a column of the state adds up is the
  // same in both.
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const int64_t wide_blocks = args.num_v_heads * blocks_of(args.value_dim, 64) * args.rows;
  return wide_blocks >= processors ? walk<kKeys, 4, 2>(args, stream) : walk<kKeys, 2, 3>(args, stream);
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_delta_prefill(const coluber::DeltaPrefillCudaArgs* args,
                                                          coluber::CudaStream stream) {
  using namespace coluber;
  if (const char* why = refusal(*args)) return why;
  if (args->rows == 0) return nullptr;
  if (most_delta_chunks(*args) > 65535) return "more tokens than chunks of 64 in a grid (4 million) in a step";
  const auto on = static_cast<cudaStream_t>(stream);
  return args->key_dim <= 64 ? prefill<64>(*args, on) : prefill<128>(*args, on);
}
