// SPDX-License-Identifier: Apache-2.0
//
// Fields that the configs of the hybrids with Mamba-2 share word for word (bamba, granitemoehybrid, falcon_h1), and the
// lists that say which layer is of which kind. Each family reads its own fields beside them. Pure functions; problems
// go to the fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coluber/config.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/mamba_mixer2.h"

namespace coluber {

// hidden_size, num_attention_heads, num_key_value_heads (absent: `default_kv_heads`; null or a default of 0: as many as
// heads), head_dim (absent: `default_head_dim`, or 0: hidden_size / num_attention_heads), attention_bias. Without
// rotation.
AttentionConfig read_attention_fields(ConfigFields& fields, int64_t hidden_size, int64_t default_kv_heads,
                                      int64_t default_head_dim = 0);

struct Mamba2Fields {
  MambaMixer2Config mixer;
  int64_t chunk_size = 256;
};
// The mamba_* fields and time_step_limit. `inner_size`: where a field of its own says it, else 0 for mamba_expand *
// hidden_size. `used`: there is a layer of the kind; else what does not fit together is of no account.
Mamba2Fields read_mamba2_fields(ConfigFields& fields, int64_t hidden_size, int64_t inner_size, bool used);

// Groups of columns that Mamba-2's gated norm takes apart: what `gated_norm_groups` says, else `n_groups`, or 1 where
// the config is of a transformers that spans them all (formats/norm_groups.h).
int64_t read_norm_groups(ConfigFields& fields, int64_t n_groups);

// An integer, or the fallback for the word "auto", null and nothing.
int64_t read_int_or_auto(ConfigFields& fields, std::string_view key, int64_t fallback, const FieldCheck& check);

// The first of `keys` that is there: a list of the layers' kinds, older spellings turned into those of today ("mamba":
// "linear_attention", "attention": "full_attention", ...), each one of `kinds`. Empty where none of the keys is there.
std::vector<std::string> read_layer_kinds(ConfigFields& fields, std::initializer_list<std::string_view> keys,
                                          const std::vector<std::string>& kinds);

}  // namespace coluber
