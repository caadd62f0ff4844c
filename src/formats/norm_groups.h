// SPDX-License-Identifier: Apache-2.0
//
// Mamba-2's gated norm takes each of its n_groups groups of columns by itself, as its authors, vLLM and llama.cpp
// compute it. transformers spanned all of them in its mamba2, bamba and granitemoehybrid until 5.23, and what it wrote
// then is read as it was computed. A pure function; any thread.
#pragma once

#include <string_view>

namespace coluber {

// Whether a config of this `transformers_version` means one norm over all groups: those of 5.0 up to 5.22. Configs of
// version 4 with several groups are conversions of weights that were trained by group (Mamba-Codestral).
bool norms_groups_together(std::string_view transformers_version) noexcept;

}  // namespace coluber
