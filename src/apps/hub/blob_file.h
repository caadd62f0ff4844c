// SPDX-License-Identifier: Apache-2.0
//
// A download on its way into the cache: bytes are appended to <blob>.incomplete, which stays when the process ends and
// is gone on with by the next, and it takes the blob's name when it is whole and has the checksum that is expected. The
// lock of the blob is the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "apps/hub/digest.h"

namespace coluber::hub {

// Whether a hub's ETag can be the name of a file: letters, digits, '-', '_' and '.', not hidden, of sensible length.
bool is_name_of_blob(std::string_view etag) noexcept;

class BlobFile {
 public:
  // `bytes`: what is expected; negative where that is not known. What is there already is read once for its checksum.
  // Throws Error(kIo) naming the file; Error(kCancelled).
  BlobFile(std::string blob, std::string etag, int64_t bytes, const std::function<bool()>& cancelled);
  ~BlobFile();
  BlobFile(const BlobFile&) = delete;
  BlobFile& operator=(const BlobFile&) = delete;

  int64_t size() const noexcept { return size_; }
  void go_on_from(int64_t offset);  // 0 begins anew; else `size()`
  void append(std::string_view bytes);
  // Empty where all is right: the blob is there. Else what is wrong, and what came is removed.
  std::string finish();

 private:
  void open_file();

  std::string blob_, path_, etag_;
  int64_t expected_;
  int64_t size_ = 0;
  int descriptor_ = -1;
  std::unique_ptr<Digest> digest_;  // null where the ETag is no checksum, or the size that Git's needs is not known
};

// The checksum of a file's contents, of the kind of `etag`; `etag` itself where that is no checksum.
std::string checksum_of(const std::string& path, const std::string& etag, const std::function<bool()>& cancelled);

}  // namespace coluber::hub
