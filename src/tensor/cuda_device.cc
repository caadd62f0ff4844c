// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda_device.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/log.h"

namespace coluber {
namespace {

constexpr int64_t kLeastSlab = int64_t{2} << 20;

std::string bytes_of(const char* what, int64_t bytes) {
  return fmt::format("{} {} bytes ({:.1f} MiB) of device memory", what, bytes, static_cast<double>(bytes) / (1 << 20));
}

// Destructors and deallocations must not throw; a fault there is told and nothing else can be done.
void warn_of(CudaStatus status, const char* what) noexcept {
  if (status != nullptr) log_warn("cannot {}: {}", what, status);
}

}  // namespace

CudaDevice::CudaDevice(const CudaLibrary& library, int32_t ordinal)
    : library_(library), api_(library.api()), ordinal_(ordinal), name_(fmt::format("cuda:{}", ordinal)) {
  check_cuda(api_.open(ordinal), "open " + name_);
  check_cuda(api_.info(ordinal, &info_), "ask what " + name_ + " is");
  check_cuda(api_.granularity(ordinal, &slab_bytes_), "ask how " + name_ + " maps memory");
  slab_bytes_ = (std::max(slab_bytes_, kLeastSlab) + slab_bytes_ - 1) / slab_bytes_ * slab_bytes_;
  check_cuda(api_.create_stream(&stream_), "make a stream on " + name_);
}

CudaDevice::~CudaDevice() { warn_of(api_.destroy_stream(stream_), "give back a stream"); }

void* CudaDevice::allocate(int64_t bytes) {
  COLUBER_CHECK(bytes >= 0, "{} bytes asked for", bytes);
  void* memory = nullptr;
  check_cuda(api_.allocate(&memory, std::max<int64_t>(bytes, 1)), bytes_of("allocate", bytes));
  return memory;
}

void CudaDevice::deallocate(void* memory, int64_t) noexcept { warn_of(api_.deallocate(memory), "free device memory"); }

void CudaDevice::copy(void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  copy_later(to, from, bytes);
  synchronize();
}

void CudaDevice::copy_later(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) check_cuda(api_.copy(to, from, bytes, stream_), bytes_of("copy", bytes));
}

void CudaDevice::use() {
  thread_local const CudaDevice* used = nullptr;
  if (used == this) return;
  check_cuda(api_.open(ordinal_), "use " + name_);
  used = this;
}

int64_t CudaDevice::free_bytes() {
  CudaDeviceInfo now;
  check_cuda(api_.info(ordinal_, &now), "ask how much memory " + name_ + " has left");
  return now.free_bytes;
}

void CudaDevice::fill(void* memory, std::byte value, int64_t bytes) {
  if (bytes > 0) check_cuda(api_.fill(memory, static_cast<uint8_t>(value), bytes, stream_), bytes_of("fill", bytes));
}

void CudaDevice::synchronize() { check_cuda(api_.synchronize(stream_), "finish work on " + name_); }

void* CudaDevice::reserve(int64_t bytes) {
  COLUBER_CHECK(bytes > 0 && bytes % slab_bytes_ == 0, "{} bytes to reserve in slabs of {}", bytes, slab_bytes_);
  void* base = nullptr;
  check_cuda(api_.reserve(&base, bytes), bytes_of("reserve addresses for", bytes));
  return base;
}

void CudaDevice::release(void* base, int64_t bytes) noexcept {
  if (base != nullptr) warn_of(api_.release(base, bytes), "give back addresses");
}

void CudaDevice::map(void* address, int64_t bytes) {
  check_cuda(api_.map(ordinal_, address, bytes, slab_bytes_), bytes_of("map", bytes));
  fill(address, std::byte{0}, bytes);  // new memory of an elastic range reads as zero
}

void CudaDevice::unmap(void* address, int64_t bytes) noexcept {
  warn_of(api_.synchronize(stream_), "finish work before memory is given back");
  warn_of(api_.unmap(address, bytes, slab_bytes_), "give back device memory");
}

std::optional<int32_t> cuda_ordinal(std::string_view name) {
  constexpr std::string_view kCuda = "cuda";
  if (!name.starts_with(kCuda)) return std::nullopt;
  name.remove_prefix(kCuda.size());
  if (name.empty()) return 0;
  if (name.front() != ':' || name.size() < 2) return std::nullopt;
  int32_t ordinal = 0;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), ordinal);
  if (error != std::errc() || end != name.data() + name.size() || ordinal < 0) return std::nullopt;
  return ordinal;
}

CudaDevice& cuda_device(int32_t ordinal) {
  static std::mutex mutex;
  // Never destroyed: the driver may be gone before static objects are.
  static auto& devices = *new std::map<int32_t, std::unique_ptr<CudaDevice>>();
  const CudaLibrary& library = CudaLibrary::get();
  int32_t count = 0;
  check_cuda(library.api().device_count(&count), "count CUDA devices");
  if (ordinal < 0 || ordinal >= count)
    throw make_error(ErrorCode::kInvalidArgument, "there is no device cuda:{}; this machine has {}", ordinal,
                     count == 1 ? std::string("cuda:0") : fmt::format("cuda:0 to cuda:{}", count - 1));
  const std::lock_guard lock(mutex);
  std::unique_ptr<CudaDevice>& device = devices[ordinal];
  if (device == nullptr) device = std::make_unique<CudaDevice>(library, ordinal);
  return *device;
}

}  // namespace coluber
