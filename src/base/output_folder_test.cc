// SPDX-License-Identifier: Apache-2.0
#include "base/output_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/error.h"

namespace coluber {
namespace {

namespace fs = std::filesystem;

class OutputFolder : public testing::Test {
 protected:
  OutputFolder() : parent_((fs::temp_directory_path() / "coluber-folder-XXXXXX").string()) {
    if (::mkdtemp(parent_.data()) == nullptr) throw std::runtime_error("cannot make a folder");
  }
  ~OutputFolder() override { fs::remove_all(parent_); }

  static void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  std::string target() const { return parent_ + "/model"; }
  void write(bool replace, const std::string& name) const {
    write_folder_atomically(target(), replace, [&](const std::string& folder) { put(folder + "/" + name, name); });
  }
  int64_t entries() const { return std::distance(fs::directory_iterator(parent_), fs::directory_iterator()); }

  std::string parent_;
};

TEST_F(OutputFolder, AppearsWhole) {
  write_folder_atomically(target() + "/", false, [&](const std::string& folder) {
    EXPECT_FALSE(fs::exists(target()));
    put(folder + "/a", "1");
  });
  EXPECT_TRUE(fs::exists(target() + "/a"));
  EXPECT_EQ(entries(), 1);
}

TEST_F(OutputFolder, AFailureLeavesNothing) {
  const auto fails = [](const std::string& folder) {
    put(folder + "/a", "1");
    throw make_error(ErrorCode::kIo, "full");
  };
  EXPECT_THROW(write_folder_atomically(target(), true, fails), Error);
  EXPECT_EQ(entries(), 0);
}

TEST_F(OutputFolder, WhatIsThereIsReplacedOnRequestAlone) {
  write(false, "first");
  EXPECT_THROW(write(false, "second"), Error);
  EXPECT_TRUE(fs::exists(target() + "/first"));
  write(true, "second");
  EXPECT_FALSE(fs::exists(target() + "/first"));
  EXPECT_TRUE(fs::exists(target() + "/second"));
  EXPECT_EQ(entries(), 1);
}

TEST_F(OutputFolder, AnEmptyFolderIsFilledAFileIsNot) {
  fs::create_directory(target());
  write(false, "a");
  EXPECT_TRUE(fs::exists(target() + "/a"));
  fs::remove_all(target());
  put(target(), "a file");
  EXPECT_THROW(write(true, "b"), Error);
  EXPECT_TRUE(fs::is_regular_file(target()));
}

TEST_F(OutputFolder, ALinkStaysOne) {
  fs::create_directory(parent_ + "/real");
  fs::create_directory_symlink("real", target());
  write(false, "a");
  EXPECT_TRUE(fs::is_symlink(target()));
  EXPECT_TRUE(fs::exists(parent_ + "/real/a"));
}

}  // namespace
}  // namespace coluber
