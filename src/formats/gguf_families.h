// SPDX-License-Identifier: Apache-2.0
//
// Families that can be written as GGUF: which architecture of gguf_rules.h each becomes, the metadata that llama.cpp's
// converter gives it, and what the rules alone do not say about its tensors. Constant tables; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf_export_fields.h"

namespace coluber {

// The shape of a stored tensor where the rules leave it open.
enum class GgufStoredForm {
  kVector,  // [n]
  kColumn,  // [n, 1]
  kGroups,  // [G, n / G]
  kKernel,  // [1, C, 1, W]
};

struct GgufFamily {
  std::string_view model_type;  // ModelInfo::architecture
  // "mamba2"; the config may decide.
  std::string_view (*architecture)(const GgufExportFields& fields);
  void (*describe)(GgufExportFields& fields);
  // Stored names that rules know from other files and that are not written.
  std::vector<std::string_view> skipped = {};
  struct Form {
    std::string_view stored;
    GgufStoredForm form;
  };
  std::vector<Form> forms = {};
  // A factor of a row's values; null: none has one.
  double (*factor)(const GgufExportFields& fields, std::string_view stored, int64_t row) = nullptr;
  // Names that a checkpoint may use for ours: "{}" stands for a layer's number where it is in both.
  struct Alias {
    std::string_view ours, theirs;
  };
  std::vector<Alias> aliases = {};
  // Rules give one tensor several stored names: in layers that store `beside` those of `with` are written, else those
  // of `without`.
  struct Either {
    std::string_view beside;
    std::vector<std::string_view> with, without;
  };
  std::vector<Either> either = {};
  // In the first layer readers want a tensor that is not used; another one stands in for it.
  std::vector<Alias> stand_ins = {};
};

// Of Mamba-2 whose gated norm spans several groups, whose number was put: says so in a field that Coluber reads, and in
// a note.
void put_norm_of_groups(GgufExportFields& fields);

const GgufFamily* find_gguf_family(std::string_view model_type) noexcept;
std::string gguf_family_names();  // "bamba, falcon_h1, ..."

// The groups of rows.
std::vector<GgufFamily> gguf_mamba_families();
std::vector<GgufFamily> gguf_hybrid_families();
std::vector<GgufFamily> gguf_delta_families();

}  // namespace coluber
