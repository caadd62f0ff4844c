// SPDX-License-Identifier: Apache-2.0
//
// The candidates of the norms, by tier. Internal to this folder; arguments are checked by the caller.
#pragma once

#include "kernels/norm/norm.h"

namespace coluber {

struct NormFunctions {
  RmsNormFunction rms_norm;
  GatedRmsNormFunction gate_then_rms_norm;
  GatedRmsNormFunction rms_norm_then_gate;
  LayerNormFunction layer_norm;
};

extern const NormFunctions kNormAvx512, kNormAvx2, kNormRef;

// Chunks of about this many values: enough work to pay for handing it to another thread.
inline int64_t norm_grain(int64_t cols) { return cols >= 8192 ? 1 : 8192 / cols + 1; }

}  // namespace coluber
