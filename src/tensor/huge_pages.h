// SPDX-License-Identifier: Apache-2.0
//
// Memory of some MiB and more costs less to get and to walk in huge pages. Asks for those that lie wholly in a range,
// so that nothing beyond it becomes real; refusal is harmless. Owns nothing. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coluber {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Before the range is written to.
void ask_for_huge_pages(std::byte* memory, int64_t bytes) noexcept;

}  // namespace coluber
