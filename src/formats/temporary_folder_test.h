// SPDX-License-Identifier: Apache-2.0
//
// For tests: a folder of its own that goes when the object does. A fixture derives from it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace coluber {

class TemporaryFolder {
 public:
  TemporaryFolder() : folder_((std::filesystem::temp_directory_path() / "coluber-formats-XXXXXX").string()) {
    if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + folder_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& folder() const { return folder_; }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(at(name), std::ios::binary) << text;
  }

 private:
  std::string folder_;
};

}  // namespace coluber
