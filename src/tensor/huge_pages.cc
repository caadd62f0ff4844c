// SPDX-License-Identifier: Apache-2.0
#include "tensor/huge_pages.h"

#include <sys/mman.h>

namespace coluber {

void ask_for_huge_pages(std::byte* memory, int64_t bytes) noexcept {
  const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory));
  const int64_t first = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const int64_t last = (begin + bytes) / kHugePageBytes * kHugePageBytes;
  if (first < last) ::madvise(memory + (first - begin), static_cast<size_t>(last - first), MADV_HUGEPAGE);
}

}  // namespace coluber
