// SPDX-License-Identifier: Apache-2.0
//
// A CUDA device behind the seam of device.h: memory, copies in the order of one stream, and slabs behind reserved
// addresses. Everything goes through libcoluber_cuda.so (cuda_library.h). One device object an ordinal for the life of
// the program; used by one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tensor/cuda_library.h"
#include "tensor/device.h"

namespace coluber {

class LaunchTimes;

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaLibrary& library, int32_t ordinal);
  ~CudaDevice() override;

  std::string_view name() const noexcept override { return name_; }
  bool is_host() const noexcept override { return false; }
  void* allocate(int64_t bytes) override;
  void deallocate(void* memory, int64_t bytes) noexcept override;
  // Returns when the bytes are there; either side may be the host's.
  void copy(void* to, const void* from, int64_t bytes) override;
  // The same in the stream's order, without waiting. What the host gives is read at once; what it is to get is not.
  void copy_later(void* to, const void* from, int64_t bytes);
  void fill(void* memory, std::byte value, int64_t bytes) override;
  void synchronize() override;
  int64_t slab_bytes() const noexcept override { return slab_bytes_; }
  void* reserve(int64_t bytes) override;
  void release(void* base, int64_t bytes) noexcept override;
  void map(void* address, int64_t bytes) override;
  void unmap(void* address, int64_t bytes) noexcept override;

  // The calling thread works with this device from here on.
  void use();
  // Bytes of its memory that nobody has.
  int64_t free_bytes();

  // Where operations note how long they take (launch_times.h), and steps run kernel by kernel; null: nowhere.
  void note_launches(LaunchTimes* times) noexcept { launch_times_ = times; }
  LaunchTimes* launch_times() const noexcept { return launch_times_; }

  const CudaDeviceInfo& info() const noexcept { return info_; }
  CudaStream stream() const noexcept { return stream_; }
  const CudaDeviceApi& api() const noexcept { return api_; }
  const CudaLibrary& library() const noexcept { return library_; }

 private:
  const CudaLibrary& library_;
  const CudaDeviceApi& api_;
  int32_t ordinal_;
  std::string name_;
  CudaDeviceInfo info_;
  CudaStream stream_ = nullptr;
  int64_t slab_bytes_ = 0;
  LaunchTimes* launch_times_ = nullptr;
};

// The N of "cuda:N"; "cuda" is the first. None where `name` is no such name.
std::optional<int32_t> cuda_ordinal(std::string_view name);

// Throws Error(kUnsupported) where there is no library or driver, Error(kInvalidArgument) for an ordinal that is not
// there.
CudaDevice& cuda_device(int32_t ordinal = 0);

}  // namespace coluber
