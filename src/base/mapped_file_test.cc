// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/error.h"

namespace coluber {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "coluber-files-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  static void write(const std::string& path, const std::string& text) {
    write_file_atomically(path, [&](FileWriter& out) { out.append(std::string_view(text)); });
  }
  size_t num_entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  std::string folder_;
};

template <typename Action>
Error error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "did not throw";
  return Error(ErrorCode::kOk, "");
}

TEST_F(Files, AreMappedAsTheyWereWritten) {
  std::string text(3'000'000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  write(at("a"), text);
  const MappedFile file(at("a"));
  ASSERT_EQ(file.bytes().size(), text.size());
  EXPECT_EQ(std::memcmp(file.bytes().data(), text.data(), text.size()), 0);
  file.will_need();
  file.release(file.bytes());
  EXPECT_EQ(std::memcmp(file.bytes().data(), text.data(), text.size()), 0) << "released pages must come back";
  EXPECT_EQ(read_text_file(at("a")), text);
  EXPECT_TRUE(file_exists(at("a")));
}

TEST_F(Files, MovingKeepsTheMapping) {
  write(at("a"), "hello");
  MappedFile first(at("a"));
  MappedFile second(std::move(first));
  write(at("b"), "other");
  MappedFile third(at("b"));
  third = std::move(second);
  EXPECT_EQ(third.bytes().size(), 5U);
  EXPECT_EQ(static_cast<char>(third.bytes()[0]), 'h');
  EXPECT_EQ(third.path(), at("a"));
}

TEST_F(Files, AnEmptyFileMapsToNothing) {
  write(at("empty"), "");
  EXPECT_TRUE(MappedFile(at("empty")).bytes().empty());
  EXPECT_EQ(read_text_file(at("empty")), "");
}

TEST_F(Files, WhatIsNoFileIsRefusedByName) {
  const Error missing = error_of([&] { MappedFile file(at("missing")); });
  EXPECT_EQ(missing.code(), ErrorCode::kNotFound);
  EXPECT_NE(std::string(missing.what()).find(at("missing")), std::string::npos);
  EXPECT_EQ(error_of([&] { MappedFile file(folder_); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { read_text_file(folder_); }).code(), ErrorCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { MappedFile file(at("pipe")); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(file_exists(folder_));
}

TEST_F(Files, TextOfASlowPipeIsReadToItsEnd) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::thread writer([fd = ends[1]] {
    for (const char* part : {"one ", "two ", "three"}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_GT(::write(fd, part, std::strlen(part)), 0);
    }
    ::close(fd);
  });
  std::string text;
  EXPECT_NO_THROW(text = read_text_file(fmt::format("/dev/fd/{}", ends[0])));
  writer.join();
  ::close(ends[0]);
  EXPECT_EQ(text, "one two three");
}

TEST_F(Files, TextIsBounded) {
  write(at("a"), "12345");
  EXPECT_EQ(read_text_file(at("a"), 5), "12345");
  EXPECT_EQ(error_of([&] { read_text_file(at("a"), 4); }).code(), ErrorCode::kInvalidData);
}

TEST_F(Files, NamesWithANulAreNotThoseOfOtherFiles) {
  const std::string other = at("a"), name = other + std::string("\0b", 2);
  write_file_atomically(other, [](FileWriter& file) { file.append(std::string_view("old")); });
  const std::function<void()> uses[] = {
      [&] { const MappedFile file(name); }, [&] { read_text_file(name); }, [&] { file_exists(name); },
      [&] { write_file_atomically(name, [](FileWriter& file) { file.append(std::string_view("new")); }); }};
  for (const auto& use : uses) {
    try {
      use();
      ADD_FAILURE() << "a name with a NUL was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("NUL byte behind '" + other + "'"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(read_text_file(other), "old");
}

TEST_F(Files, AFailedWriteLeavesTheOldFileAndNoOther) {
  write(at("a"), "old");
  EXPECT_THROW(write_file_atomically(at("a"),
                                     [](FileWriter& out) {
                                       out.append(std::string_view("new"));
                                       throw make_error(ErrorCode::kCancelled, "stopped");
                                     }),
               Error);
  EXPECT_EQ(read_text_file(at("a")), "old");
  EXPECT_EQ(num_entries(), 1U);
}

TEST_F(Files, ALimitOnFileSizeLeavesTheOldFileAndNoOther) {
  write(at("a"), "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Error error = error_of([&] { write(at("a"), std::string(5'000'000, 'n')); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_NE(std::string(error.what()).find(at("a")), std::string::npos) << error.what();
  EXPECT_EQ(read_text_file(at("a")), "old");
  EXPECT_EQ(num_entries(), 1U);
}

TEST_F(Files, AFullDiskIsToldWithTheSystemsReason) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Error error = error_of([&] { write("/dev/full", "text"); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos) << error.what();
  EXPECT_TRUE(fs::is_character_file("/dev/full")) << "a device must not be replaced by a file";
}

TEST_F(Files, WritingReplacesTheTargetOfALinkAndKeepsItsMode) {
  write(at("a"), "old");
  ASSERT_EQ(::chmod(at("a").c_str(), 0640), 0);
  fs::create_symlink("a", at("link"));
  write(at("link"), "new");
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_EQ(read_text_file(at("a")), "new");
  struct stat status{};
  ASSERT_EQ(::stat(at("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
}

TEST_F(Files, ATemporaryTellsItsTarget) {
  std::string seen;
  write_file_atomically(
      at("a.b"), [](FileWriter& file) { file.append("text"); }, [&](const std::string& written) { seen = written; });
  EXPECT_NE(seen, at("a.b"));
  EXPECT_EQ(target_of_temporary(seen), at("a.b"));
  for (const char* other : {"", "a", "a.tmp", "/x.tmp-1-0/a"}) EXPECT_EQ(target_of_temporary(other), "") << other;
}

TEST_F(Files, AFolderThatIsNotThereIsTold) {
  const Error error = error_of([&] { write(at("no/such/file"), "x"); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos) << error.what();
  EXPECT_EQ(error_of([&] { write(folder_, "x"); }).code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace coluber
