// SPDX-License-Identifier: Apache-2.0
//
// The page at `/`: the files of static/, which the build puts into the program. They are the same for everybody and
// hold nothing secret, so that no key is needed for them; what they ask the server for does need one.
#pragma once

#include <cstddef>
#include <string_view>

#include "apps/server/http_server.h"

namespace coluber::server {

struct PageFile {
  std::string_view name, type, etag, bytes;
};

extern const PageFile kPageFiles[];
extern const size_t kNumPageFiles;

// The file of this name; the page itself where it is empty. Null where there is none.
const PageFile* find_page_file(std::string_view name) noexcept;
// What a browser may do with the page, and how long it may keep a file.
HttpHeaders page_headers(const PageFile& file);

}  // namespace coluber::server
