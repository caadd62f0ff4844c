// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "formats/temporary_folder_test.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

std::string file_bytes(const std::string& header, const std::string& data,
                       std::optional<uint64_t> length = std::nullopt) {
  const uint64_t header_length = length.value_or(header.size());
  std::string bytes(reinterpret_cast<const char*>(&header_length), sizeof header_length);
  return bytes + header + data;
}

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), "x.safetensors");
}

std::string refusal(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_EQ(std::string(error.what()).rfind("x.safetensors: ", 0), 0U) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return "";
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + offsets + "]}";
}

struct HostileCase {
  const char* name;
  std::string bytes;
  const char* told;  // must be in the message
};

std::vector<HostileCase> hostile_cases() {
  const std::string four(4, '\1');
  return {
      {"empty file", "", "at least 8 bytes"},
      {"short file", "abc", "at least 8 bytes"},
      {"length beyond the file", file_bytes("{}", "", 3), "only 2 bytes follow"},
      {"length 2^63", file_bytes("{}", "", uint64_t{1} << 63), "9223372036854775808 bytes long"},
      {"length 2^64 - 1", file_bytes("{}", "", UINT64_MAX), "18446744073709551615 bytes long"},
      {"no JSON", file_bytes("hello", ""), "not valid JSON at line 1, column 1"},
      {"array", file_bytes("[]", ""), "to be a JSON object, found array"},
      {"deep", file_bytes(std::string(500, '['), ""), "deeper than 128"},
      {"tensor is a number", file_bytes("{\"a\":1}", ""), "tensor \"a\": expected an object"},
      {"no dtype", file_bytes(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", four), "dtype to be a string"},
      {"no shape", file_bytes(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", four),
       "shape to be a list of integers, found none"},
      {"no offsets", file_bytes(R"({"a":{"dtype":"F32","shape":[1]}})", four), "data_offsets to be a list"},
      {"one offset", file_bytes("{" + tensor("a", "F32", "1", "4") + "}", four), "expected 2 data_offsets, found 1"},
      {"negative size", file_bytes("{" + tensor("a", "F32", "-1", "0,4") + "}", four), "found \"-1\""},
      {"size 2^63", file_bytes("{" + tensor("a", "U8", "9223372036854775808", "0,4") + "}", four),
       "from 0 to 2^63 - 1 in shape"},
      {"size 1e300", file_bytes("{" + tensor("a", "U8", "1e300", "0,4") + "}", four), "from 0 to 2^63 - 1 in shape"},
      {"fraction", file_bytes("{" + tensor("a", "U8", "4.0", "0,4") + "}", four), "from 0 to 2^63 - 1 in shape"},
      {"shape overflow", file_bytes("{" + tensor("a", "U8", "4294967296,4294967296", "0,4") + "}", four),
       "more elements than 2^63"},
      {"byte overflow", file_bytes("{" + tensor("a", "F64", "2305843009213693952", "0,4") + "}", four),
       "do not fill its 4 bytes"},
      {"negative offset", file_bytes("{" + tensor("a", "U8", "4", "-4,0") + "}", four), "in data_offsets"},
      {"begin after end", file_bytes("{" + tensor("a", "U8", "4", "4,0") + "}", four), "data_offsets are [4, 0]"},
      {"beyond the data", file_bytes("{" + tensor("a", "U8", "5", "0,5") + "}", four), "the data is 4 bytes long"},
      {"bytes too few", file_bytes("{" + tensor("a", "F32", "2", "0,4") + "}", four),
       "2 elements of type F32 do not fill its 4 bytes"},
      {"overlap", file_bytes("{" + tensor("a", "U8", "3", "0,3") + "," + tensor("b", "U8", "2", "2,4") + "}", four),
       "tensor \"b\" starts at byte 2 of the data, inside"},
      {"same place", file_bytes("{" + tensor("a", "U8", "4", "0,4") + "," + tensor("b", "U8", "4", "0,4") + "}", four),
       "inside"},
      {"hole", file_bytes("{" + tensor("a", "U8", "1", "0,1") + "," + tensor("b", "U8", "1", "3,4") + "}", four),
       "leaving a hole"},
      {"hole at the start", file_bytes("{" + tensor("a", "U8", "3", "1,4") + "}", four), "leaving a hole"},
      {"rest", file_bytes("{" + tensor("a", "U8", "1", "0,1") + "}", four), "end at byte 1 of the data, which is 4"},
      {"duplicate", file_bytes("{" + tensor("a", "U8", "4", "0,4") + "," + tensor("a", "U8", "4", "0,4") + "}", four),
       "occurs twice"},
      {"metadata is a list", file_bytes(R"({"__metadata__":[]})", ""), "__metadata__ to be an object"},
      {"metadata of numbers", file_bytes(R"({"__metadata__":{"k":1}})", ""), "__metadata__ \"k\" to be a string"},
  };
}

TEST(SafetensorsHeader, LiesAreRefusedWithWhatDoesNotFit) {
  for (const HostileCase& hostile : hostile_cases()) {
    const std::string message = refusal(hostile.bytes);
    EXPECT_NE(message.find(hostile.told), std::string::npos) << hostile.name << ": " << message;
  }
}

TEST(SafetensorsHeader, LongerThanTheFormatAllowsIsRefused) {
  // Length alone decides: the JSON is never looked at.
  EXPECT_NE(refusal(file_bytes(std::string(100'000'001, ' '), "")).find("the format allows 100000000"),
            std::string::npos);
}

TEST(SafetensorsHeader, EveryTruncationOfAFileIsRefused) {
  const std::string whole = file_bytes(
      "{" + tensor("a", "F32", "2,2", "0,16") + "," + tensor("b", "U8", "3", "16,19") + "}  ", std::string(19, '\2'));
  EXPECT_EQ(parse(whole).entries.size(), 2U);
  for (size_t size = 0; size < whole.size(); ++size) refusal(whole.substr(0, size));
}

TEST(SafetensorsHeader, EntriesComeInTheOrderOfTheirBytes) {
  const SafetensorsHeader header =
      parse(file_bytes("{" + tensor("late", "U8", "3", "1,4") + "," + tensor("early", "I8", "1", "0,1") + "," +
                           tensor("none", "F32", "0,7", "1,1") + R"(,"__metadata__":{"format":"pt"}})",
                       std::string(4, '\1')));
  ASSERT_EQ(header.entries.size(), 3U);
  EXPECT_EQ(header.entries[0].name, "early");
  EXPECT_EQ(header.entries[1].name, "none");
  EXPECT_EQ(header.entries[2].name, "late");
  ASSERT_EQ(header.metadata.size(), 1U);
  EXPECT_EQ(header.metadata[0].second, "pt");
}

class SafetensorsFiles : public testing::Test, public TemporaryFolder {};

constexpr DType kStored[] = {DType::kFloat64,    DType::kFloat32,    DType::kFloat16,    DType::kBFloat16,
                             DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kFloat8E8M0, DType::kInt64,
                             DType::kInt32,      DType::kInt16,      DType::kInt8,       DType::kUInt64,
                             DType::kUInt32,     DType::kUInt16,     DType::kUInt8,      DType::kBool};

TEST_F(SafetensorsFiles, EveryTypeIsReadBackAsWritten) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<SafetensorsOutput> tensors;
  for (const DType dtype : kStored) {
    std::vector<std::byte>& bytes = memory.emplace_back(static_cast<size_t>(dtype_bytes(dtype, 6)));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + memory.size());
    tensors.push_back(SafetensorsOutput::from_view("t." + std::string(dtype_name(dtype)),
                                                   TensorView::contiguous(bytes.data(), dtype, Shape{2, 3})));
  }
  write_safetensors(at("a.safetensors"), tensors, {{"steps", "7"}, {"note", "quote \" and \n"}});
  const SafetensorsFile file(at("a.safetensors"));
  EXPECT_EQ(file.metadata(),
            (std::vector<std::pair<std::string, std::string>>{{"steps", "7"}, {"note", "quote \" and \n"}}));
  for (size_t i = 0; i < memory.size(); ++i) {
    const TensorView view = file.get(tensors[i].name);
    EXPECT_EQ(view.dtype, kStored[i]);
    EXPECT_TRUE((view.shape == Shape{2, 3}));
    EXPECT_EQ(std::memcmp(view.data, memory[i].data(), memory[i].size()), 0) << tensors[i].name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(dtype_size(view.dtype)), 0U);
  }
}

TEST_F(SafetensorsFiles, StridedAndStreamedTensorsAreWrittenRowMajor) {
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), 0.0F);
  TensorView transposed = TensorView::contiguous(values.data(), DType::kFloat32, Shape{4, 3});
  transposed.strides = Shape{1, 4};
  SafetensorsOutput streamed{"streamed", DType::kFloat32, Shape{3, 4}, [&values](FileWriter& out) {
                               for (const float& value : values) out.append(std::as_bytes(std::span(&value, 1)));
                             }};
  SafetensorsOutput scalar =
      SafetensorsOutput::from_view("scalar", TensorView::contiguous(&values[5], DType::kFloat32, Shape{}));
  SafetensorsOutput none =
      SafetensorsOutput::from_view("none", TensorView::contiguous(nullptr, DType::kInt64, Shape{0, 3}));
  write_safetensors(at("a"), {SafetensorsOutput::from_view("transposed", transposed), streamed, scalar, none});
  const SafetensorsFile file(at("a"));
  EXPECT_EQ(to_float_vector(file.get("transposed")), (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(to_float_vector(file.get("streamed")), values);
  EXPECT_EQ(to_float_vector(file.get("scalar")), std::vector<float>{5});
  EXPECT_EQ(file.get("scalar").shape.rank(), 0);
  EXPECT_TRUE((file.get("none").shape == Shape{0, 3}));
}

TEST_F(SafetensorsFiles, ATensorThatWritesAnotherSizeLeavesNoFile) {
  const SafetensorsOutput lies{"x", DType::kFloat32, Shape{3},
                               [](FileWriter& out) { out.append(std::string_view("four")); }};
  EXPECT_THROW(write_safetensors(at("a"), {lies}), Error);
  EXPECT_FALSE(file_exists(at("a")));
  EXPECT_THROW(write_safetensors(at("a"), {lies, lies}), Error);
  EXPECT_THROW(write_safetensors(at("a"), {{"x", DType::kInt4, Shape{2}, lies.write}}), Error);
}

TEST_F(SafetensorsFiles, MisalignedTensorsAreHandedOutAligned) {
  // One byte, then a float32 at an odd place, behind a header of odd length.
  const float value = 1.5F;
  std::string data(5, '\7');
  std::memcpy(data.data() + 1, &value, sizeof value);
  write("a", file_bytes("{" + tensor("byte", "U8", "1", "0,1") + "," + tensor("f", "F32", "1", "1,5") + "}", data));
  const SafetensorsFile file(at("a"));
  const TensorView view = file.get("f");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % alignof(float), 0U);
  EXPECT_EQ(*view.as<float>(), value);
  EXPECT_EQ(file.get("f").data, view.data) << "copied once";
  file.release(view);
  EXPECT_EQ(*view.as<float>(), value);
}

TEST_F(SafetensorsFiles, UnknownTypesAndRanksAreRefusedOnlyWhenAskedFor) {
  write("a", file_bytes("{" + tensor("fp4", "F4", "8", "0,4") + "," + tensor("ok", "U8", "2", "4,6") + "," +
                            tensor("deep", "U8", "1,1,1,1,1,1,1", "6,7") + "}",
                        std::string(7, '\1')));
  const SafetensorsFile file(at("a"));
  EXPECT_EQ(to_float_vector(file.get("ok")), (std::vector<float>{1, 1}));
  const auto refused = [&file](const char* name) -> Error {
    try {
      file.get(name);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::kOk, "");
  };
  EXPECT_EQ(refused("fp4").code(), ErrorCode::kUnsupported);
  EXPECT_NE(std::string(refused("fp4").what()).find("\"fp4\" is of type \"F4\""), std::string::npos)
      << refused("fp4").what();
  EXPECT_EQ(refused("deep").code(), ErrorCode::kUnsupported);
  EXPECT_EQ(refused("absent").code(), ErrorCode::kNotFound);
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST_F(SafetensorsFiles, ReleasedPagesAreReadAgain) {
  std::vector<float> values(100000);
  std::iota(values.begin(), values.end(), 0.0F);
  write_safetensors(at("a"), {SafetensorsOutput::from_view(
                                 "t", TensorView::contiguous(values.data(), DType::kFloat32, Shape{100000}))});
  const SafetensorsFile file(at("a"));
  const TensorView view = file.get("t");
  file.will_need();
  file.release(view);
  EXPECT_EQ(to_float_vector(view), values);
}

}  // namespace
}  // namespace coluber
