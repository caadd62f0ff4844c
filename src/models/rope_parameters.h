// SPDX-License-Identifier: Apache-2.0
//
// Reads how positions turn queries and keys, in both spellings of published configs: `rope_parameters` (transformers
// 5), or `rope_theta` with `rope_scaling` beside it.
#pragma once

#include "formats/hf_config.h"
#include "kernels/rope/rope.h"

namespace coluber {

// Problems go to `fields`. `head_dim` is what `partial_rotary_factor` (where it is absent: `default_part`) and
// `rotary_dim` are parts of.
RopeConfig read_rope_parameters(ConfigFields& fields, double default_theta, int64_t head_dim,
                                double default_part = 1.0);

}  // namespace coluber
