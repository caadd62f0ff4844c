// SPDX-License-Identifier: Apache-2.0
//
// Finds libcoluber_cuda.so while the program runs: in $COLUBER_CUDA_LIBRARY, else beside the program, else where the
// system looks. One binary so runs with and without it, with and without a driver. Opened once, never closed;
// thread-safe.
#pragma once

#include <string>

#include "tensor/cuda_api.h"

namespace coluber {

class CudaLibrary {
 public:
  // Null where it is not there, does not fit this program, or no driver runs; `why` then says which.
  static const CudaLibrary* find(std::string* why = nullptr);
  // Throws Error(kUnsupported) with that reason.
  static const CudaLibrary& get();

  const CudaDeviceApi& api() const noexcept { return *api_; }
  // Null where this library lacks it.
  void* find_symbol(const char* name) const noexcept;
  // An operation's function. Throws Error(kUnsupported) where this library lacks it.
  template <typename Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(symbol(name));
  }

 private:
  CudaLibrary() = default;
  static CudaLibrary open(std::string* why);
  void* symbol(const char* name) const;

  void* handle_ = nullptr;
  const CudaDeviceApi* api_ = nullptr;  // null: not usable
  std::string path_;
};

// Throws Error(kDevice, or kOutOfMemory for the driver's word for it) "cannot <what>: <why>" unless `status` is null.
void check_cuda(CudaStatus status, const std::string& what);

}  // namespace coluber
