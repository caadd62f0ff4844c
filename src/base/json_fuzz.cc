// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const coluber::Result<coluber::Json> json = coluber::parse_json(text, "fuzz");
  // Written and read again, a value is the same.
  for (const bool ascii : {false, true}) {
    if (!json) break;
    const coluber::Result<coluber::Json> again = coluber::parse_json(json->dump(ascii ? 1 : -1, ascii), "fuzz");
    if (!again || !(*again == *json)) std::abort();
  }
  // What is valid JSON stays so, and stays the same, where Python's constants are allowed too.
  const coluber::Result<coluber::Json> python = coluber::parse_json(text, "fuzz", {.allow_python_constants = true});
  if (json && (!python || !(*python == *json))) std::abort();
  const coluber::Result<coluber::Json> strict = coluber::parse_json(text, "fuzz", {.refuse_duplicate_keys = true});
  if (strict && (!json || !(*strict == *json))) std::abort();
  return 0;
}
