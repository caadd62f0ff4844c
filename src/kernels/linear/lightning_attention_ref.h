// SPDX-License-Identifier: Apache-2.0
//
// The references of lightning attention: the recurrence, token by token, in double. Not for the main path.
#pragma once

#include "kernels/linear/lightning_attention.h"

namespace coluber::ref {

void lightning_attention(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace);
void lightning_attention_update(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber::ref
