// SPDX-License-Identifier: Apache-2.0
//
// Over files that PyTorch 2.11 wrote (tests/fuzz/corpus/torch_archive_fuzz, which the fuzzer starts from too).
#include "formats/torch_archive.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "formats/temporary_folder_test.h"
#include "formats/weight_source.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

std::string seed(const std::string& name) {
  return std::string(COLUBER_SOURCE_DIR) + "/tests/fuzz/corpus/torch_archive_fuzz/" + name;
}

Error refusal(const std::string& path) {
  try {
    const TorchArchive archive(path);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << path << " was accepted";
  return Error(ErrorCode::kOk, "");
}

bool tells(const Error& error, const std::string& text) {
  if (std::string(error.what()).find(text) != std::string::npos) return true;
  ADD_FAILURE() << error.what() << "\ndoes not tell: " << text;
  return false;
}

using Floats = std::vector<float>;

TEST(TorchArchive, ViewsOfOneStorageHaveTheirOwnValues) {
  const TorchArchive archive(seed("views.pth"));
  const auto values = [&](const char* name) { return to_float_vector(archive.get(name)); };
  EXPECT_EQ(values("whole").size(), 24u);
  EXPECT_EQ(archive.get("transposed").shape, (Shape{6, 4}));
  const Floats transposed = values("transposed");
  EXPECT_EQ(Floats(transposed.begin(), transposed.begin() + 5), (Floats{0, 6, 12, 18, 1}));
  EXPECT_EQ(values("rows"), (Floats{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(values("columns"), (Floats{2, 3, 4, 8, 9, 10, 14, 15, 16, 20, 21, 22}));
  EXPECT_EQ(values("element"), (Floats{15}));
  EXPECT_EQ(archive.get("element").shape.rank(), 0);
  EXPECT_EQ(values("every_second"), (Floats{0, 3, 12, 15}));
  EXPECT_EQ(values("repeated"), (Floats{7, 8, 7, 8, 7, 8}));
  EXPECT_EQ(archive.get("empty").shape, (Shape{0, 5}));
  EXPECT_FALSE(archive.contains("step"));
  EXPECT_EQ(archive.names().size(), 8u);
}

TEST(TorchArchive, WhatLiesRowByRowIsNotCopied) {
  const TorchArchive archive(seed("views.pth"));
  EXPECT_EQ(archive.get("rows").data, archive.get("whole").data + 6 * sizeof(float));
  EXPECT_EQ(archive.get("transposed").data, archive.get("transposed").data) << "a copy is made once";
  archive.release(archive.get("whole"));
  EXPECT_EQ(to_float_vector(archive.get("rows"))[0], 6);
}

TEST(TorchArchive, PeekingNeverLooksOutsideTheFile) {
  const TorchArchive archive(seed("views.pth"));
  for (const std::string& name : archive.names()) {
    const TensorView view = archive.peek(name);
    EXPECT_EQ(view.shape, archive.get(name).shape) << name;
    EXPECT_TRUE(view.is_contiguous()) << name;
  }
}

TEST(TorchArchive, EveryTypeIsReadOrNamed) {
  const TorchArchive archive(seed("types.pth"));
  EXPECT_EQ(archive.names().front(), "float64") << "in the dictionary's order";
  for (const char* name : {"float64", "float32", "float16", "bfloat16", "float8_e4m3fn"}) {
    EXPECT_EQ(dtype_name(archive.get(name).dtype), name);
    EXPECT_EQ(to_float_vector(archive.get(name)), (Floats{0, 1, 1})) << name;
  }
  for (const char* name : {"int64", "int32", "int16", "int8", "uint8", "bool", "uint16"})
    EXPECT_EQ(dtype_name(archive.get(name).dtype), name);
  try {
    archive.get("complex64");
    ADD_FAILURE() << "complex numbers were read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_TRUE(tells(error, "complex64"));
  }
}

TEST(TorchArchive, ADictionaryOfTensorsInsideAnotherIsFound) {
  const TorchArchive archive(seed("nested.pth"));
  EXPECT_EQ(archive.names(), (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"}));
  EXPECT_EQ(to_float_vector(archive.get("0.bias")), Floats(3, 0.5f));
}

TEST(TorchArchive, ParametersAndNewerPicklesAreRead) {
  const TorchArchive archive(seed("parameters.pth"));
  EXPECT_EQ(archive.get("0.weight").shape, (Shape{3, 2}));
  EXPECT_EQ(to_float_vector(archive.get("1.weight")), Floats(3, 0.5f));
}

TEST(TorchArchive, NamesOutsideTheListAreRefusedByName) {
  const Error error = refusal(seed("global.pth"));
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(tells(error, "\"posix\".\"system\""));
  EXPECT_TRUE(tells(error, seed("global.pth")));
}

TEST(TorchArchive, OtherFormsAreRefusedWithAWayOut) {
  EXPECT_EQ(refusal(seed("legacy.pth")).code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(tells(refusal(seed("legacy.pth")), "torch.save(torch.load("));
  EXPECT_TRUE(tells(refusal(seed("bare_tensor.pth")), "no dictionary of tensors"));
  EXPECT_TRUE(tells(refusal(seed("deflated.pth")), "compressed"));
  EXPECT_TRUE(tells(refusal(seed("cut.pth")), "no end record"));
}

class TorchFiles : public testing::Test, public TemporaryFolder {
 protected:
  // One of PyTorch's files with some of its bytes replaced by as many others.
  Error changed(const std::string& from, const std::string& to) {
    std::ifstream in(seed("small.pth"), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos);
    bytes.replace(at, from.size(), to);
    write("changed.pth", bytes);
    return refusal(this->at("changed.pth"));
  }
};

TEST_F(TorchFiles, NumbersThatLieAreTold) {
  using namespace std::string_literals;
  // The tensor's offset, size, stride: K\0 K\2\x85 ... K\1\x85.
  EXPECT_TRUE(tells(changed("K\x00K\x02\x85"s, "K\x01K\x02\x85"s), "reaches element 3 of its storage, which has 2"));
  EXPECT_TRUE(tells(changed("K\x00K\x02\x85"s, "K\x00K\x03\x85"s), "reaches element 3"));
  EXPECT_TRUE(tells(changed("K\x01\x85"s, "K\x02\x85"s), "reaches element 3"));
  EXPECT_TRUE(tells(changed("FloatStorage"s, "FloatStoragX"s), "\"torch\".\"FloatStoragX\""));
  EXPECT_TRUE(tells(changed("little"s, "bigbig"s), "byte order"));
}

TEST_F(TorchFiles, FoldersShardsAndSingleFilesAreFound) {
  const auto copy = [&](const std::string& name, const std::string& to) {
    std::filesystem::copy_file(seed(name), at(to), std::filesystem::copy_options::overwrite_existing);
  };
  copy("nested.pth", "RWKV-tiny.pth");
  EXPECT_EQ(open_weights(folder())->names().size(), 4u);
  copy("small.pth", "second.pth");
  EXPECT_THROW(open_weights(folder()), Error) << "nothing says which of two";
  EXPECT_EQ(open_weights(at("second.pth"))->names(), std::vector<std::string>{"a"});
  copy("small.pth", "part-1.bin");
  copy("nested.pth", "part-2.bin");
  write("pytorch_model.bin.index.json", R"({"weight_map":{"a":"part-1.bin","0.weight":"part-2.bin"}})");
  const auto sharded = open_weights(folder());
  EXPECT_EQ(sharded->names(), (std::vector<std::string>{"0.weight", "a"}));
  EXPECT_EQ(to_float_vector(sharded->get("a")), (Floats{1, 1}));
  copy("views.pth", "pytorch_model.bin");
  EXPECT_TRUE(open_weights(folder())->contains("transposed"));
}

}  // namespace
}  // namespace coluber
