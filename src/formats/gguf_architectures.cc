// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/printable.h"
#include "formats/gguf_rules.h"

namespace coluber {

const std::vector<GgufArchitecture>& gguf_architectures() {
  static const std::vector<GgufArchitecture> kAll = [] {
    std::vector<GgufArchitecture> all;
    for (auto* group :
         {gguf_mamba_architectures, gguf_hybrid_architectures, gguf_delta_architectures, gguf_rwkv_architectures}) {
      std::vector<GgufArchitecture> rows = group();
      std::move(rows.begin(), rows.end(), std::back_inserter(all));
    }
    return all;
  }();
  return kAll;
}

const GgufArchitecture& gguf_architecture(const GgufFile& file) {
  const std::string_view name = file.text("general.architecture").value_or("");
  std::string known;
  std::string_view last;
  for (const GgufArchitecture& row : gguf_architectures()) {
    if (row.name == name && (row.applies == nullptr || row.applies(file))) return row;
    if (row.name != last) known += (known.empty() ? "" : ", ") + std::string(row.name);
    last = row.name;
  }
  throw make_error(ErrorCode::kUnsupported, "{}: general.architecture is '{}'; GGUF files of {} are read", file.path(),
                   printable(name.substr(0, 80)), known);
}

}  // namespace coluber
