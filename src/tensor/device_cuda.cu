// SPDX-License-Identifier: Apache-2.0
// The library's side of tensor/cuda_api.h: memory, streams, graphs and events of the CUDA runtime; addresses and slabs
// of the driver's virtual memory, whose functions are fetched while the program runs, so that a machine without a
// driver can open the library and be told so.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

#include "tensor/cuda_api.h"

namespace coluber {
namespace {

thread_local char last_fault[512];

CudaStatus status_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // faults that do not stick must not show up in the next call
  std::snprintf(last_fault, sizeof last_fault, "%s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
  return last_fault;
}

template <typename Function>
CudaStatus driver_function(const char* name, Function* function) {
  cudaDriverEntryPointQueryResult found;
  void* address = nullptr;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return status_of(error);
  if (found != cudaDriverEntryPointSuccess) {
    std::snprintf(last_fault, sizeof last_fault, "the driver has no %s; it is older than CUDA 12", name);
    return last_fault;
  }
  *function = reinterpret_cast<Function>(address);
  return nullptr;
}

struct Driver {
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) release = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemRelease) free = nullptr;

  CudaStatus open() {
    CudaStatus status = driver_function("cuGetErrorString", &error_string);
    const auto also = [&status](const char* name, auto* function) {
      if (status == nullptr) status = driver_function(name, function);
    };
    also("cuMemGetAllocationGranularity", &granularity);
    also("cuMemAddressReserve", &reserve);
    also("cuMemAddressFree", &release);
    also("cuMemCreate", &create);
    also("cuMemMap", &map);
    also("cuMemSetAccess", &set_access);
    also("cuMemUnmap", &unmap);
    also("cuMemRelease", &free);
    return status;
  }
  CudaStatus status(CUresult result) const {
    if (result == CUDA_SUCCESS) return nullptr;
    const char* text = nullptr;
    if (error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown fault of the driver";
    std::snprintf(last_fault, sizeof last_fault, "%s (%d)", text, static_cast<int>(result));
    return last_fault;
  }
};

CudaStatus driver(const Driver** opened) {
  static Driver functions;
  static const bool fine = functions.open() == nullptr;
  if (!fine) return functions.open();
  *opened = &functions;
  return nullptr;
}

CUmemAllocationProp memory_of(int32_t ordinal) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  return properties;
}

cudaStream_t stream_of(CudaStream stream) { return static_cast<cudaStream_t>(stream); }

CudaStatus device_count(int32_t* count) {
  int found = 0;
  const CudaStatus status = status_of(cudaGetDeviceCount(&found));
  *count = found;
  return status;
}

CudaStatus open_device(int32_t ordinal) {
  const CudaStatus status = status_of(cudaSetDevice(ordinal));
  return status != nullptr ? status : status_of(cudaFree(nullptr));
}

CudaStatus device_info(int32_t ordinal, CudaDeviceInfo* info) {
  cudaDeviceProp properties;
  if (const CudaStatus status = status_of(cudaGetDeviceProperties(&properties, ordinal))) return status;
  std::snprintf(info->name, sizeof info->name, "%s", properties.name);
  info->compute_major = properties.major;
  info->compute_minor = properties.minor;
  info->multiprocessors = properties.multiProcessorCount;
  info->l2_bytes = properties.l2CacheSize;
  size_t free_bytes = 0, total_bytes = 0;
  const CudaStatus status = status_of(cudaMemGetInfo(&free_bytes, &total_bytes));
  info->free_bytes = static_cast<int64_t>(free_bytes);
  info->total_bytes = static_cast<int64_t>(total_bytes);
  return status;
}

CudaStatus create_stream(CudaStream* stream) {
  cudaStream_t made = nullptr;
  const CudaStatus status = status_of(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  *stream = made;
  return status;
}
CudaStatus destroy_stream(CudaStream stream) { return status_of(cudaStreamDestroy(stream_of(stream))); }
CudaStatus synchronize(CudaStream stream) { return status_of(cudaStreamSynchronize(stream_of(stream))); }
CudaStatus allocate(void** memory, int64_t bytes) { return status_of(cudaMalloc(memory, static_cast<size_t>(bytes))); }
CudaStatus deallocate(void* memory) { return status_of(cudaFree(memory)); }
CudaStatus copy(void* to, const void* from, int64_t bytes, CudaStream stream) {
  return status_of(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(stream)));
}
CudaStatus fill(void* memory, uint8_t value, int64_t bytes, CudaStream stream) {
  return status_of(cudaMemsetAsync(memory, value, static_cast<size_t>(bytes), stream_of(stream)));
}

CudaStatus granularity(int32_t ordinal, int64_t* bytes) {
  const Driver* d = nullptr;
  if (const CudaStatus status = driver(&d)) return status;
  const CUmemAllocationProp properties = memory_of(ordinal);
  size_t size = 0;
  const CudaStatus status = d->status(d->granularity(&size, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  *bytes = static_cast<int64_t>(size);
  return status;
}

CudaStatus reserve(void** base, int64_t bytes) {
  const Driver* d = nullptr;
  if (const CudaStatus status = driver(&d)) return status;
  CUdeviceptr address = 0;
  const CudaStatus status = d->status(d->reserve(&address, static_cast<size_t>(bytes), 0, 0, 0));
  *base = reinterpret_cast<void*>(address);
  return status;
}

CudaStatus release(void* base, int64_t bytes) {
  const Driver* d = nullptr;
  if (const CudaStatus status = driver(&d)) return status;
  return d->status(d->release(reinterpret_cast<CUdeviceptr>(base), static_cast<size_t>(bytes)));
}

CudaStatus unmap(void* address, int64_t bytes, int64_t slab_bytes) {
  const Driver* d = nullptr;
  if (const CudaStatus status = driver(&d)) return status;
  CudaStatus first = nullptr;
  for (int64_t at = 0; at < bytes; at += slab_bytes) {
    const CUdeviceptr slab = reinterpret_cast<CUdeviceptr>(address) + static_cast<CUdeviceptr>(at);
    const CudaStatus status = d->status(d->unmap(slab, static_cast<size_t>(slab_bytes)));
    if (first == nullptr) first = status;
  }
  return first;
}

CudaStatus map_slab(const Driver& d, int32_t ordinal, CUdeviceptr address, int64_t bytes) {
  const CUmemAllocationProp properties = memory_of(ordinal);
  CUmemGenericAllocationHandle memory = 0;
  const auto size = static_cast<size_t>(bytes);
  if (const CudaStatus status = d.status(d.create(&memory, size, &properties, 0))) return status;
  CUresult result = d.map(address, size, 0, memory, 0);
  d.free(memory);  // lives as long as it is mapped
  if (result != CUDA_SUCCESS) return d.status(result);
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  result = d.set_access(address, size, &access, 1);
  if (result != CUDA_SUCCESS) d.unmap(address, size);
  return d.status(result);
}

// Slab by slab, so that each can be given back alone. All or nothing.
CudaStatus map(int32_t ordinal, void* address, int64_t bytes, int64_t slab_bytes) {
  const Driver* d = nullptr;
  if (const CudaStatus status = driver(&d)) return status;
  for (int64_t at = 0; at < bytes; at += slab_bytes) {
    const CUdeviceptr slab = reinterpret_cast<CUdeviceptr>(address) + static_cast<CUdeviceptr>(at);
    if (const CudaStatus status = map_slab(*d, ordinal, slab, slab_bytes)) {
      char kept[sizeof last_fault];
      std::memcpy(kept, status, sizeof kept);
      unmap(address, at, slab_bytes);
      std::memcpy(last_fault, kept, sizeof kept);
      return last_fault;
    }
  }
  return nullptr;
}

CudaStatus begin_capture(CudaStream stream) {
  return status_of(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal));
}
CudaStatus end_capture(CudaStream stream, void** graph) {
  cudaGraph_t recorded = nullptr;
  if (const CudaStatus status = status_of(cudaStreamEndCapture(stream_of(stream), &recorded))) return status;
  cudaGraphExec_t made = nullptr;
  const CudaStatus status = status_of(cudaGraphInstantiate(&made, recorded, 0));
  cudaGraphDestroy(recorded);
  *graph = made;
  return status;
}
CudaStatus launch_graph(void* graph, CudaStream stream) {
  return status_of(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)));
}
CudaStatus destroy_graph(void* graph) { return status_of(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph))); }

CudaStatus create_event(void** event) {
  cudaEvent_t made = nullptr;
  const CudaStatus status = status_of(cudaEventCreate(&made));
  *event = made;
  return status;
}
CudaStatus destroy_event(void* event) { return status_of(cudaEventDestroy(static_cast<cudaEvent_t>(event))); }
CudaStatus record_event(void* event, CudaStream stream) {
  return status_of(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream)));
}
CudaStatus elapsed_us(void* begin, void* end, double* us) {
  float ms = 0;
  const CudaStatus status =
      status_of(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(begin), static_cast<cudaEvent_t>(end)));
  *us = 1000.0 * static_cast<double>(ms);
  return status;
}

}  // namespace
}  // namespace coluber

extern "C" const coluber::CudaDeviceApi* coluber_cuda_device_api() {
  using namespace coluber;
  static const CudaDeviceApi api = {
      kCudaApiVersion, device_count,  open_device,  device_info,   create_stream, destroy_stream,
      synchronize,     allocate,      deallocate,   copy,          fill,          granularity,
      reserve,         release,       map,          unmap,         begin_capture, end_capture,
      launch_graph,    destroy_graph, create_event, destroy_event, record_event,  elapsed_us};
  return &api;
}
