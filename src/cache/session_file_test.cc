// SPDX-License-Identifier: Apache-2.0
#include "cache/session_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cache/session_header.h"
#include "cache/session_image_test.h"

namespace coluber {
namespace {

class SessionFile : public testing::Test {
 protected:
  SessionFile()
      : path_(testing::TempDir() + "coluber_session_" + std::to_string(::getpid()) + "_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  ~SessionFile() override { std::filesystem::remove(path_); }

  std::vector<std::byte> written(const SessionImage& image) {
    write_session_file(path_, image);
    const std::string text = read_text_file(path_);
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    return {bytes.begin(), bytes.end()};
  }

  std::string path_;
};

// The same file with another header, every checksum right.
std::vector<std::byte> with_header(const std::vector<std::byte>& file, const std::function<void(Json&)>& change) {
  const std::string old(reinterpret_cast<const char*>(file.data()), file.size());
  int64_t header_bytes = 0;
  std::memcpy(&header_bytes, old.data() + 16, sizeof(header_bytes));
  const std::string_view header = std::string_view(old).substr(64, static_cast<size_t>(header_bytes));
  Json json = value_or_throw(parse_json(header, "test"));
  change(json);
  const auto padded = [](std::string text) {
    text.resize((text.size() + 127) / 128 * 128);
    return text;
  };
  const size_t sections = padded(old.substr(0, 64 + header.size())).size();
  const std::string text = json.dump();
  std::string out = padded(old.substr(0, 64) + text) + old.substr(sections);
  const int64_t sizes[2] = {std::ssize(text), std::ssize(out)};
  std::memcpy(out.data() + 16, sizes, sizeof(sizes));
  HashStream hash;
  hash.update(std::as_bytes(std::span(out.data(), 32)));
  hash.update(std::as_bytes(std::span(text.data(), text.size())));
  const Hash128 checksum = hash.value();
  std::memcpy(out.data() + 32, &checksum, sizeof(checksum));
  const auto bytes = std::as_bytes(std::span(out.data(), out.size()));
  return {bytes.begin(), bytes.end()};
}

std::string refusal(std::span<const std::byte> file) {
  try {
    parse_session(file, "s");
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kInvalidData || error.code() == ErrorCode::kUnsupported) << error.what();
    return error.what();
  }
  return {};
}

TEST_F(SessionFile, HoldsAllThatWasSaved) {
  const SessionImage image = test_image();
  write_session_file(path_, image);
  const SessionImage read = read_session_file(path_);
  EXPECT_EQ(read.model_name, image.model_name);
  EXPECT_EQ(read.architecture, image.architecture);
  EXPECT_EQ(read.fingerprint, image.fingerprint);
  EXPECT_EQ(read.vocab_size, image.vocab_size);
  EXPECT_EQ(read.tokens, image.tokens);
  EXPECT_EQ(read.num_computed_tokens, image.num_computed_tokens);
  EXPECT_EQ(read.sampler, image.sampler);
  EXPECT_EQ(read.logits, image.logits);
  EXPECT_EQ(read.layout, image.layout);
  EXPECT_TRUE(std::ranges::equal(read.bytes.states, image.bytes.states));
  ASSERT_EQ(read.bytes.pages.size(), image.bytes.pages.size());
  for (size_t i = 0; i < read.bytes.pages.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(read.bytes.pages[i], image.bytes.pages[i]));
}

TEST_F(SessionFile, TheSameSessionGivesTheSameBytes) {
  const std::vector<std::byte> first = written(test_image());
  EXPECT_EQ(written(test_image()), first);
}

TEST_F(SessionFile, EveryFlippedBitIsRefused) {
  std::vector<std::byte> file = written(test_image());
  for (size_t i = 0; i < file.size(); ++i) {
    const auto bit = std::byte{static_cast<uint8_t>(1u << (i % 8))};
    file[i] ^= bit;
    ASSERT_NE(refusal(file), "") << "byte " << i;
    file[i] ^= bit;
  }
  EXPECT_EQ(refusal(file), "");
}

TEST_F(SessionFile, EveryTruncationIsRefused) {
  const std::vector<std::byte> file = written(test_image());
  for (size_t size = 0; size < file.size(); ++size)
    ASSERT_NE(refusal(std::span(file).first(size)).find(size < 8 ? "no session file" : "cut off"), std::string::npos)
        << "cut to " << size;
  std::vector<std::byte> longer = file;
  longer.push_back({});
  EXPECT_NE(refusal(longer).find("cut off or longer"), std::string::npos);
}

TEST_F(SessionFile, AHeaderThatAsksForTooMuchIsRefused) {
  const std::vector<std::byte> file = written(test_image());
  ASSERT_EQ(refusal(with_header(file, [](Json&) {})), "");
  const auto set = [&](std::initializer_list<const char*> path, Json value) {
    return refusal(with_header(file, [&](Json& json) {
      Json* at = &json;
      for (const char* key : path) {
        if (at->is_array())
          at = &at->as_array()[static_cast<size_t>(std::stoi(key))];
        else
          for (Json::Member& member : at->as_object())
            if (member.first == key) at = &member.second;
      }
      *at = value;
    }));
  };
  const Json huge = int64_t{1} << 60;
  for (const Json& value : {huge, Json(-1), Json(0), Json("x"), Json()}) {
    EXPECT_NE(set({"num_tokens"}, value), "");
    EXPECT_NE(set({"num_computed_tokens"}, value), "");
    EXPECT_NE(set({"layout", "slot_bytes"}, value), "");
    EXPECT_NE(set({"layout", "page_bytes"}, value), "");
    EXPECT_NE(set({"layout", "block_size"}, value), "");
    EXPECT_NE(set({"layout", "tensor_parallel_size"}, value), "");
    EXPECT_NE(set({"layout", "layers"}, value), "");
    EXPECT_NE(set({"layout", "layers", "0", "states", "0", "shape"}, value), "");
    EXPECT_NE(set({"layout", "layers", "0", "states", "0", "whole_shape"}, Json(Json::Array{value, 4})), "");
    EXPECT_NE(set({"layout", "layers", "0", "states", "0", "split_parts"}, value), "");
    EXPECT_NE(set({"layout", "layers", "1", "attention", "head_size"}, value), "");
    EXPECT_NE(set({"layout", "layers", "1", "attention", "kv_heads"}, value), "");
    EXPECT_NE(set({"sections", "tokens", "bytes"}, value), "");
    EXPECT_NE(set({"sections", "attention", "bytes"}, value), "");
    EXPECT_NE(set({"model", "vocab_size"}, value), "");
  }
  EXPECT_NE(set({"layout", "tensor_parallel_rank"}, Json(3)), "");
  EXPECT_NE(set({"layout", "layers", "0", "states", "0", "offset"}, huge), "");
  EXPECT_NE(set({"layout", "layers", "0", "states", "0", "split_axis"}, Json(2)), "");
  EXPECT_NE(set({"layout", "layers", "0", "states", "1", "order"}, Json("backwards")), "");
  EXPECT_NE(set({"layout", "layers", "3", "states", "0", "order"}, Json("head_block16")), "");
  EXPECT_NE(set({"layout", "layers", "0", "states", "1", "dtype"}, Json("int4")), "");
  EXPECT_NE(set({"prefix"}, Json(std::string(32, '0'))).find("other tokens"), std::string::npos);
  EXPECT_NE(set({"sampler", "seed"}, Json("12x")), "");
  EXPECT_NE(set({"sampler", "answer_start"}, Json(99)), "");
}

TEST_F(SessionFile, ALaterVersionIsTold) {
  std::vector<std::byte> file = written(test_image());
  file[8] = std::byte{2};
  EXPECT_NE(refusal(file).find("version 2"), std::string::npos);
}

TEST_F(SessionFile, AFolderThatIsNotThereChangesNothing) {
  EXPECT_THROW(write_session_file(path_ + "/no/such", test_image()), Error);
  EXPECT_THROW(read_session_file(path_), Error);
}

}  // namespace
}  // namespace coluber
