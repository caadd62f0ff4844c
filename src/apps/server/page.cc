// SPDX-License-Identifier: Apache-2.0
#include "apps/server/page.h"

namespace coluber::server {

const PageFile* find_page_file(std::string_view name) noexcept {
  if (name.empty()) name = "index.html";
  for (size_t i = 0; i < kNumPageFiles; ++i)
    if (kPageFiles[i].name == name) return &kPageFiles[i];
  return nullptr;
}

HttpHeaders page_headers(const PageFile& file) {
  // Nothing from elsewhere, no script within the page's text, and no text that becomes markup: what a model writes
  // stays text even where the page is mistaken.
  constexpr std::string_view kPolicy =
      "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
  return {{"Content-Security-Policy", std::string(kPolicy)},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Cache-Control", "no-cache"},  // asks each time whether it is still the same
          {"ETag", std::string(file.etag)}};
}

}  // namespace coluber::server
