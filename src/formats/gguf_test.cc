// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& text(std::string_view value) {
    put<uint64_t>(value.size());
    text_ += value;
    return *this;
  }
  std::string text_;
};

// One key, one tensor of Q8_0 [2, 32].
std::string small_file(uint64_t row = 32, uint64_t offset = 0, uint32_t version = 3, uint64_t keys = 1) {
  Bytes b;
  b.put<uint32_t>(0x46554747).put(version).put<uint64_t>(1).put(keys);
  b.text("general.architecture").put<uint32_t>(8).text("mamba");
  b.text("token_embd.weight").put<uint32_t>(2).put(row).put<uint64_t>(2).put<uint32_t>(8).put(offset);
  b.text_.resize((b.text_.size() + 31) / 32 * 32);
  return b.text_ + std::string(68, '\1');
}

GgufHeader parse(const std::string& file) { return parse_gguf(std::as_bytes(std::span(file)), "x.gguf"); }

std::string message_of(const std::string& file) {
  try {
    parse(file);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Gguf, ReadsTensorsAsTheyAreStored) {
  const GgufHeader header = parse(small_file());
  ASSERT_EQ(header.tensors.size(), 1U);
  EXPECT_EQ(header.tensors[0].shape, (Shape{2, 32}));
  EXPECT_EQ(dtype_name(*header.tensors[0].dtype), "Q8_0");
  EXPECT_EQ(header.tensors[0].size_bytes, 68);
}

TEST(Gguf, RefusesWhatDoesNotFit) {
  EXPECT_NE(message_of(small_file(48)).find("multiple of 32"), std::string::npos);
  EXPECT_NE(message_of(small_file(32, 64)).find("of a file of"), std::string::npos);
  EXPECT_NE(message_of(small_file(32, 0, 1)).find("versions 2 and 3"), std::string::npos);
  EXPECT_NE(message_of(small_file(32, 0, 0x03000000)).find("big-endian"), std::string::npos);
  EXPECT_NE(message_of(small_file(32, 0, 3, uint64_t{1} << 60)).find("at most"), std::string::npos);
  EXPECT_NE(message_of(small_file(uint64_t{1} << 62)).find("size"), std::string::npos);
  EXPECT_NE(message_of("GGML....").find("no GGUF file"), std::string::npos);
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string file = small_file();
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_NE(message_of(file.substr(0, size)), "accepted") << size << " bytes";
}

}  // namespace
}  // namespace coluber
