// SPDX-License-Identifier: Apache-2.0
//
// Reads how positions turn queries and keys, in both spellings of published configs: `rope_parameters` (transformers
// 5), or `rope_theta` with `rope_scaling` beside it. Where both objects stand the older one counts, as in transformers.
#pragma once

#include "formats/hf_config.h"
#include "kernels/rope/rope.h"

namespace coluber {

// Problems go to `fields`. `head_dim` is what `partial_rotary_factor` (where it is absent: `default_part`) and
// `rotary_dim` are parts of.
RopeConfig read_rope_parameters(ConfigFields& fields, double default_theta, int64_t head_dim,
                                double default_part = 1.0);
// Some families mean by this that positions do not turn at all.
bool rope_theta_is_null(ConfigFields& fields);

}  // namespace coluber
