// SPDX-License-Identifier: Apache-2.0
//
// The boundary between the program and libcoluber_cuda.so: plain structs and C functions, so that nothing is thrown
// across it and neither side links the other. The library exports coluber_cuda_device_api and one function for each
// operation; every one returns null, or what went wrong as text that stays valid until the thread's next call.
#pragma once

#include <cstdint>

namespace coluber {

using CudaStatus = const char*;
using CudaStream = void*;  // cudaStream_t

// What an operation's function works with beside its arguments.
struct CudaLaunch {
  CudaStream stream = nullptr;
  // Scratch memory of the device for the work that is launched, 64 bytes aligned; null where there is none left.
  void* (*take)(void* workspace, int64_t bytes) = nullptr;
  void* workspace = nullptr;
};
// An operation (kernels/op.h) on the device: "coluber_cuda_run_<name>", with the operation's own arguments, whose
// pointers are the device's.
using CudaOperation = CudaStatus (*)(const void* args, const CudaLaunch* launch);

inline constexpr int32_t kCudaApiVersion = 1;  // counts changes of any struct or function that crosses the boundary

struct CudaDeviceInfo {
  char name[256] = {};
  int32_t compute_major = 0;
  int32_t compute_minor = 0;
  int32_t multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  int64_t l2_bytes = 0;
};

// All work on the device that was opened last on the calling thread.
struct CudaDeviceApi {
  int32_t version = kCudaApiVersion;
  CudaStatus (*device_count)(int32_t* count) = nullptr;
  CudaStatus (*open)(int32_t ordinal) = nullptr;
  CudaStatus (*info)(int32_t ordinal, CudaDeviceInfo* info) = nullptr;
  CudaStatus (*create_stream)(CudaStream* stream) = nullptr;
  CudaStatus (*destroy_stream)(CudaStream stream) = nullptr;
  CudaStatus (*synchronize)(CudaStream stream) = nullptr;
  CudaStatus (*allocate)(void** memory, int64_t bytes) = nullptr;
  CudaStatus (*deallocate)(void* memory) = nullptr;
  // In the stream's order; either side may be memory of the host.
  CudaStatus (*copy)(void* to, const void* from, int64_t bytes, CudaStream stream) = nullptr;
  CudaStatus (*fill)(void* memory, uint8_t value, int64_t bytes, CudaStream stream) = nullptr;
  // Addresses without memory, and memory behind them in slabs of `granularity` bytes.
  CudaStatus (*granularity)(int32_t ordinal, int64_t* bytes) = nullptr;
  CudaStatus (*reserve)(void** base, int64_t bytes) = nullptr;
  CudaStatus (*release)(void* base, int64_t bytes) = nullptr;
  CudaStatus (*map)(int32_t ordinal, void* address, int64_t bytes, int64_t slab_bytes) = nullptr;
  CudaStatus (*unmap)(void* address, int64_t bytes, int64_t slab_bytes) = nullptr;
  // Between the two, work on the stream is recorded instead of done.
  CudaStatus (*begin_capture)(CudaStream stream) = nullptr;
  CudaStatus (*end_capture)(CudaStream stream, void** graph) = nullptr;
  CudaStatus (*launch_graph)(void* graph, CudaStream stream) = nullptr;
  CudaStatus (*destroy_graph)(void* graph) = nullptr;
  // Microseconds that the stream took from the first record to the second.
  CudaStatus (*create_event)(void** event) = nullptr;
  CudaStatus (*destroy_event)(void* event) = nullptr;
  CudaStatus (*record_event)(void* event, CudaStream stream) = nullptr;
  CudaStatus (*elapsed_us)(void* begin, void* end, double* us) = nullptr;
};

}  // namespace coluber
