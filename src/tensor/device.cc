// SPDX-License-Identifier: Apache-2.0
#include "tensor/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/error.h"

namespace coluber {
namespace {

// A large page of x86: one entry of the translation table a slab, where the system grants them.
constexpr int64_t kSlabBytes = int64_t{2} << 20;
constexpr std::align_val_t kAlignment{128};

[[noreturn]] void throw_memory(const char* what, int64_t bytes, int error) {
  throw make_error(ErrorCode::kOutOfMemory, "cannot {} {} bytes ({:.1f} MiB) of memory: {}", what, bytes,
                   static_cast<double>(bytes) / (1 << 20), std::strerror(error));
}

class CpuDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "cpu"; }
  bool is_host() const noexcept override { return true; }

  void* allocate(int64_t bytes) override {
    COLUBER_CHECK(bytes >= 0, "{} bytes asked for", bytes);
    void* memory = ::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow);
    if (memory == nullptr) throw_memory("allocate", bytes, ENOMEM);
    return memory;
  }
  void deallocate(void* memory, int64_t) noexcept override { ::operator delete(memory, kAlignment); }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void fill(void* memory, std::byte value, int64_t bytes) override {
    if (bytes > 0) std::memset(memory, static_cast<int>(value), static_cast<size_t>(bytes));
  }
  void synchronize() override {}

  int64_t slab_bytes() const noexcept override { return kSlabBytes; }

  void* reserve(int64_t bytes) override {
    COLUBER_CHECK(bytes > 0, "{} bytes to reserve", bytes);
    // One slab more than asked for, so that the range can start at a large page; the edges are given back at once.
    const int64_t padded = bytes + kSlabBytes;
    void* memory =
        ::mmap(nullptr, static_cast<size_t>(padded), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw_memory("reserve addresses for", bytes, errno);
    const auto start = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t base = (start + kSlabBytes - 1) / kSlabBytes * kSlabBytes;
    const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const uintptr_t end = (base + static_cast<uintptr_t>(bytes) + page - 1) / page * page;
    if (base > start) ::munmap(memory, base - start);
    const uintptr_t padded_end = (start + static_cast<uintptr_t>(padded) + page - 1) / page * page;
    if (padded_end > end) ::munmap(reinterpret_cast<void*>(end), padded_end - end);
    return reinterpret_cast<void*>(base);
  }
  void release(void* base, int64_t bytes) noexcept override {
    if (base != nullptr) ::munmap(base, static_cast<size_t>(bytes));
  }

  void map(void* address, int64_t bytes) override {
    // Without MAP_NORESERVE: a system that counts its promises refuses here, with a message, instead of killing later.
    void* memory = ::mmap(address, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (memory == MAP_FAILED) throw_memory("map", bytes, errno);
    ::madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice only: an old kernel may refuse it
  }
  void unmap(void* address, int64_t bytes) noexcept override {
    // A fresh inaccessible mapping in its place returns the memory and keeps the addresses ours.
    ::mmap(address, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
           0);
  }
};

}  // namespace

Device& cpu_device() {
  static CpuDevice device;
  return device;
}

}  // namespace coluber
