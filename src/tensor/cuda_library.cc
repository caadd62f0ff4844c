// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace coluber {
namespace {

constexpr const char* kLibraryName = "libcoluber_cuda.so";

std::string folder_of_program() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return {};
  const std::string_view program(path, static_cast<size_t>(length));
  const size_t slash = program.rfind('/');
  return slash == std::string_view::npos ? std::string() : std::string(program.substr(0, slash + 1));
}

std::vector<std::string> candidates() {
  if (const char* named = std::getenv("COLUBER_CUDA_LIBRARY"); named != nullptr && *named != '\0') return {named};
  std::vector<std::string> paths;
  if (const std::string folder = folder_of_program(); !folder.empty()) {
    paths.push_back(folder + kLibraryName);
    paths.push_back(folder + "../lib/" + kLibraryName);
    paths.push_back(folder + "../" + kLibraryName);  // tests lie one folder below the library that they are built with
  }
  paths.push_back(kLibraryName);
  return paths;
}

}  // namespace

CudaLibrary CudaLibrary::open(std::string* why) {
  CudaLibrary library;
  for (const std::string& path : candidates()) {
    library.handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ != nullptr) {
      library.path_ = path;
      break;
    }
    *why = ::dlerror();
  }
  if (library.handle_ == nullptr) {
    *why =
        fmt::format("{} cannot be opened ({}); build it with cmake --preset cuda, or name it in COLUBER_CUDA_LIBRARY",
                    kLibraryName, *why);
    return library;
  }
  using Entry = const CudaDeviceApi* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library.handle_, "coluber_cuda_device_api"));
  const CudaDeviceApi* api = entry != nullptr ? entry() : nullptr;
  if (api == nullptr || api->version != kCudaApiVersion) {
    *why = fmt::format("{} is of another version (interface {}, expected {}); build both together", library.path_,
                       api == nullptr ? 0 : api->version, kCudaApiVersion);
    return library;
  }
  int32_t devices = 0;
  if (const CudaStatus status = api->device_count(&devices); status != nullptr || devices < 1) {
    *why = status != nullptr ? fmt::format("no CUDA device can be used: {}", status) : "there is no CUDA device";
    return library;
  }
  library.api_ = api;
  return library;
}

const CudaLibrary* CudaLibrary::find(std::string* why) {
  static std::string reason;
  static const CudaLibrary library = open(&reason);
  if (library.api_ != nullptr) return &library;
  if (why != nullptr) *why = reason;
  return nullptr;
}

const CudaLibrary& CudaLibrary::get() {
  std::string why;
  const CudaLibrary* library = find(&why);
  if (library == nullptr) throw Error(ErrorCode::kUnsupported, why);
  return *library;
}

void* CudaLibrary::find_symbol(const char* name) const noexcept { return ::dlsym(handle_, name); }

void* CudaLibrary::symbol(const char* name) const {
  void* found = find_symbol(name);
  if (found == nullptr)
    throw make_error(ErrorCode::kUnsupported, "{} has no function {}; build it and the program together", path_, name);
  return found;
}

void check_cuda(CudaStatus status, const std::string& what) {
  if (status == nullptr) return;
  const std::string_view text = status;
  const bool memory = text.find("out of memory") != std::string_view::npos;
  throw make_error(memory ? ErrorCode::kOutOfMemory : ErrorCode::kDevice, "cannot {}: {}", what, text);
}

}  // namespace coluber
