// SPDX-License-Identifier: Apache-2.0
//
// The references of RWKV's recurrences: token by token, in double. Not for the main path.
#pragma once

#include "kernels/wkv/wkv4.h"
#include "kernels/wkv/wkv6.h"
#include "kernels/wkv/wkv7.h"

namespace coluber::ref {

void wkv4(const Wkv4Args& args, ThreadPool& pool);
void wkv6(const Wkv6Args& args, ThreadPool& pool, Workspace& workspace);
void wkv7(const Wkv7Args& args, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber::ref
