// SPDX-License-Identifier: Apache-2.0
//
// A file mapped read-only, and small file helpers. Throws Error(kNotFound, kIo) naming the path and the system's
// reason.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace coluber {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // an empty file maps to an empty span
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  const std::string& path() const noexcept { return path_; }
  void will_need() const noexcept;  // asks the system to read ahead
  void release(
      std::span<const std::byte> range) const noexcept;  // pages of the range may be dropped; they are read anew on use

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Whole file as text; throws where it is larger than `max_bytes`.
std::string read_text_file(const std::string& path, size_t max_bytes = size_t{1} << 30);
bool file_exists(const std::string& path);
// Throws Error(kInvalidArgument) where the name has a NUL byte, at which the system would take it to end: names that
// come from JSON or from another language may, and would be those of other files. All of the above and below do.
void check_path(const std::string& path);

// Writes a file so that readers see all of it or nothing: a temporary beside it, synced, then renamed. `write` gets the
// descriptor-backed appender; a failure (a full disk) removes the temporary and throws Error(kIo). `check` may look at
// the finished temporary, whose path it gets, and throw before it is renamed; devices and pipes are not checked.
class FileWriter {
 public:
  virtual ~FileWriter() = default;
  virtual void append(std::span<const std::byte> bytes) = 0;
  void append(std::string_view text) { append(std::as_bytes(std::span(text.data(), text.size()))); }
};
void write_file_atomically(const std::string& path, const std::function<void(FileWriter&)>& write,
                           const std::function<void(const std::string& written)>& check = {});
// The name of the file that `path` is the temporary of; empty where `path` is none. A temporary outlives a process that
// was killed while it wrote.
std::string_view target_of_temporary(std::string_view path);

}  // namespace coluber
