// SPDX-License-Identifier: Apache-2.0
//
// How much memory this process may still take: the least of what the system, its control group and its limits leave.
#pragma once

#include <cstdint>
#include <string>

namespace coluber {

int64_t available_memory_bytes();
std::string format_bytes(int64_t bytes);  // "15.3 MB", "1.4 GB" (powers of 1000)

}  // namespace coluber
