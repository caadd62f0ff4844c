// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_writer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/gguf_file.h"
#include "formats/temporary_folder_test.h"
#include "kernels/quant/block_types.h"

namespace coluber {
namespace {

TensorOutput tensor(const std::string& name, DType dtype, const Shape& shape, char fill) {
  return {name, dtype, shape, [=](FileWriter& out) {
            out.append(std::string_view(std::string(static_cast<size_t>(dtype_bytes(dtype, shape.count())), fill)));
          }};
}

class GgufWriter : public testing::Test, public TemporaryFolder {
 protected:
  std::string refusal_of(const GgufMetadata& metadata, const std::vector<TensorOutput>& tensors) const {
    try {
      write_gguf(at("x.gguf"), metadata, tensors);
    } catch (const Error& error) {
      EXPECT_FALSE(file_exists(at("x.gguf")));
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(GgufWriter, WhatItWritesIsReadBack) {
  const DType q8 = *quantized_dtype("Q8_0");
  write_gguf(at("x.gguf"),
             {{"general.architecture", std::string("mamba")},
              {"a.u32", uint32_t{7}},
              {"a.i32", int32_t{-7}},
              {"a.f32", 0.5f},
              {"a.bool", true},
              {"a.texts", std::vector<std::string>{"x", "", "yz"}},
              {"a.i32s", std::vector<int32_t>{1, -2, 3}},
              {"a.f32s", std::vector<float>{0.25f}},
              {"a.bools", std::vector<bool>{true, false}}},
             {tensor("odd", DType::kFloat32, {3}, '\1'), tensor("blocks", q8, {2, 32}, '\2'),
              tensor("experts", DType::kBFloat16, {2, 3, 4}, '\3')});
  const GgufFile file(at("x.gguf"));
  EXPECT_EQ(file.text("general.architecture"), "mamba");
  EXPECT_EQ(file.integer("a.u32"), 7);
  EXPECT_EQ(file.integer("a.i32"), -7);
  EXPECT_EQ(file.real("a.f32"), 0.5);
  EXPECT_EQ(file.boolean("a.bool"), true);
  EXPECT_EQ(*file.texts("a.texts"), (std::vector<std::string_view>{"x", "", "yz"}));
  EXPECT_EQ(*file.integers("a.i32s"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(*file.integers("a.bools"), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(*file.reals("a.f32s"), std::vector<double>{0.25});
  ASSERT_EQ(file.tensors().size(), 3U);
  for (const auto& [name, shape, fill] : {std::tuple("odd", Shape{3}, 1), std::tuple("blocks", Shape{2, 32}, 2),
                                          std::tuple("experts", Shape{2, 3, 4}, 3)}) {
    const GgufTensor* found = file.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->shape, shape);
    EXPECT_EQ(found->offset % 32, 0) << name;
    EXPECT_EQ(static_cast<int>(file.data_of(*found)[found->size_bytes - 1]), fill) << name;
  }
}

TEST_F(GgufWriter, EntriesOfAFileAreCopiedAsStored) {
  write_gguf(at("x.gguf"), {{"a", std::vector<std::string>{"x", "y"}}, {"b", uint64_t{1} << 40}, {"c", int32_t{-1}}},
             {tensor("t", DType::kFloat32, {8}, '\1')});
  const GgufFile file(at("x.gguf"));
  GgufMetadata copied;
  for (const GgufStoredEntry& entry : file.entries()) copied.emplace_back(std::string(entry.key), entry.value);
  write_gguf(at("y.gguf"), copied, {tensor("t", DType::kFloat32, {8}, '\1')});
  EXPECT_EQ(read_text_file(at("x.gguf")), read_text_file(at("y.gguf")));
}

TEST_F(GgufWriter, RefusesWhatTheFormatCannotHold) {
  const DType q8 = *quantized_dtype("Q8_0");
  EXPECT_NE(refusal_of({}, {tensor("t", q8, {2, 48}, 0)}).find("no whole blocks"), std::string::npos);
  EXPECT_NE(refusal_of({}, {tensor("t", DType::kFloat8E4M3, {4}, 0)}).find("float8_e4m3fn"), std::string::npos);
  EXPECT_NE(refusal_of({}, {tensor("t", DType::kInt8, {1, 1, 1, 1, 1}, 0)}).find("5 dimensions"), std::string::npos);
  EXPECT_NE(refusal_of({}, {tensor("t", DType::kInt8, {0, 4}, 0)}).find("no elements"), std::string::npos);
  EXPECT_NE(refusal_of({}, {tensor(std::string(70, 'x'), DType::kInt8, {1}, 0)}).find("70 bytes"), std::string::npos);
  EXPECT_NE(refusal_of({}, {tensor("t", DType::kInt8, {1}, 0), tensor("t", DType::kInt8, {2}, 0)}).find("'t' twice"),
            std::string::npos);
  EXPECT_NE(refusal_of({{"k", true}, {"k", false}}, {}).find("'k' twice"), std::string::npos);
}

TEST_F(GgufWriter, ATensorOfAnotherSizeOrAFailedCheckLeavesNothing) {
  TensorOutput liar = tensor("t", DType::kFloat32, {8}, 0);
  liar.write = [](FileWriter& out) { out.append(std::string_view("short")); };
  EXPECT_NE(refusal_of({}, {liar}).find("wrote 5 bytes, not 32"), std::string::npos);
  const auto fails = [](const std::string&) { throw make_error(ErrorCode::kInvalidData, "other bytes"); };
  EXPECT_THROW(write_gguf(at("x.gguf"), {}, {tensor("t", DType::kFloat32, {8}, 0)}, fails), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder()));
}

}  // namespace
}  // namespace coluber
