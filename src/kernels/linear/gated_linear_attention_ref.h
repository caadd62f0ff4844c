// SPDX-License-Identifier: Apache-2.0
//
// The references of gated linear and lightning attention: the recurrence, token by token, in double. Not for the main
// path.
#pragma once

#include "kernels/linear/gated_linear_attention.h"
#include "kernels/linear/lightning_attention.h"

namespace coluber::ref {

void gated_linear_attention(const GatedLinearAttentionArgs& args, ThreadPool& pool, Workspace& workspace);
void gated_linear_attention_update(const GatedLinearAttentionArgs& args, ThreadPool& pool, Workspace& workspace);
void lightning_attention(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace);
void lightning_attention_update(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber::ref
