// SPDX-License-Identifier: Apache-2.0
//
// Bounds on the sizes that a config.json may name: far above every published model, and low enough that no product of
// two widths, in bytes, leaves 63 bits. Derived widths (heads times head size) are checked against kMostWidth by each
// family.
#pragma once

#include <cstdint>

#include "formats/hf_config.h"

namespace coluber {

inline constexpr int64_t kMostWidth = int64_t{1} << 24;

inline FieldCheck vocab_bound() { return between(1, int64_t{1} << 26); }
inline FieldCheck hidden_bound() { return between(1, int64_t{1} << 20); }
inline FieldCheck width_bound() { return between(1, kMostWidth); }
inline FieldCheck layers_bound() { return between(1, 1 << 16); }
inline FieldCheck heads_bound() { return between(1, 1 << 16); }
inline FieldCheck head_dim_bound() { return between(1, 1 << 14); }
inline FieldCheck experts_bound() { return between(1, 1 << 14); }

}  // namespace coluber
