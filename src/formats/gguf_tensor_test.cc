// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_tensor.h"

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/gguf.h"
#include "formats/temporary_folder_test.h"
#include "kernels/quant/block_types.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

using R = GgufRows;
using S = GgufShape;
using V = GgufValues;

constexpr uint32_t kF32 = 0, kQ8 = 8;

// A file in the making: metadata of numbers and texts, tensors of ascending float32 or of Q8_0 blocks.
class FileMaker {
 public:
  FileMaker& number(std::string_view key, uint32_t value) { return field(key, 4).put(value); }
  FileMaker& text(std::string_view key, std::string_view value) { return field(key, 8).put_text(value); }
  FileMaker& tensor(const std::string& name, std::vector<uint64_t> sizes, uint32_t type = kF32) {
    tensors_.push_back({name, std::move(sizes), type});
    return *this;
  }
  std::string finish() const {
    FileMaker out;
    out.put<uint32_t>(0x46554747).put<uint32_t>(3).put<uint64_t>(tensors_.size()).put<uint64_t>(fields_);
    out.bytes_ += bytes_;
    std::string data;
    for (const Tensor& tensor : tensors_) {
      out.put_text(tensor.name).put(static_cast<uint32_t>(tensor.sizes.size()));
      uint64_t count = 1;
      for (size_t i = tensor.sizes.size(); i-- > 0; count *= tensor.sizes[i]) out.put(tensor.sizes[i]);
      out.put(tensor.type).put<uint64_t>(data.size());
      append(data, tensor.type, count);
    }
    out.bytes_.resize((out.bytes_.size() + 31) / 32 * 32);
    return out.bytes_ + data;
  }

 private:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> sizes;  // as Hugging Face has them
    uint32_t type;
  };
  template <typename T>
  FileMaker& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  FileMaker& put_text(std::string_view value) {
    put<uint64_t>(value.size());
    bytes_ += value;
    return *this;
  }
  FileMaker& field(std::string_view key, uint32_t type) {
    ++fields_;
    return put_text(key).put(type);
  }
  // Values 0, 1, 2, ...; in blocks the scale is 1 and the codes count anew in each.
  static void append(std::string& data, uint32_t type, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      if (type == kQ8) {
        if (i % 32 == 0) data += std::string("\x00\x3c", 2);
        data += static_cast<char>(i / 32);
      } else {
        const auto value = static_cast<float>(i);
        data.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
    }
    data.resize((data.size() + 31) / 32 * 32);
  }
  std::string bytes_;
  uint64_t fields_ = 0;
  std::vector<Tensor> tensors_;
};

std::vector<float> floats_of(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.shape.count()));
  convert_to_float(view.data, view.dtype, view.shape.count(), values.data());
  return values;
}

class GgufTensors : public testing::Test, public TemporaryFolder {
 protected:
  // One tensor of a file through one rule.
  std::vector<float> through(const GgufTensorRule& rule, const GgufSizes& sizes, std::vector<uint64_t> stored,
                             uint32_t type = kF32, int64_t layer = 0) {
    write("x.gguf", FileMaker().tensor("t", std::move(stored), type).finish());
    const GgufFile file(at("x.gguf"));
    const GgufTensorPlan plan({{file.find("t"), &rule, layer, 0}}, sizes, "x.gguf");
    shape = plan.shape();
    dtype = plan.dtype();
    std::vector<std::byte> bytes(static_cast<size_t>(plan.size_bytes()));
    if (!plan.column_order().empty()) {
      TensorView view = TensorView::contiguous(file.data_of(*file.find("t")) + plan.offset().value(), dtype, shape);
      view.column_order = plan.column_order().data();
      return to_float_vector(view);
    }
    plan.assemble(file, bytes.data());
    static ThreadPool pool(3);
    std::vector<std::byte> by_threads(bytes.size());
    plan.assemble(file, by_threads.data(), &pool);
    EXPECT_EQ(by_threads, bytes);
    return floats_of(TensorView::contiguous(bytes.data(), dtype, shape));
  }
  std::string refusal(const std::string& file) const {
    write("x.gguf", file);
    try {
      GgufWeights(at("x.gguf")).config_json();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  Shape shape;
  DType dtype = DType::kFloat32;
};

GgufSizes delta_sizes(int64_t head_v_dim) {
  GgufSizes sizes;
  sizes.num_k_heads = 2;
  sizes.num_v_heads = 4;
  sizes.head_k_dim = 1;
  sizes.head_v_dim = head_v_dim;
  return sizes;
}

TEST_F(GgufTensors, PairsAreTakenApart) {
  GgufSizes sizes;
  sizes.num_heads = 2;
  const GgufTensorRule rule{"t", "t", S::kAsStored, V::kAsStored, R::kQueryPairs};
  EXPECT_EQ(through(rule, sizes, {8}), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
}

// Stored k0v0 k1v0 k0v1 k1v1; ours has the heads of a key together.
TEST_F(GgufTensors, TiledHeadsComeBackToTheirKeys) {
  const GgufSizes sizes = delta_sizes(2);
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kAsStored, R::kTiledHeads}, sizes, {4}),
            (std::vector<float>{0, 2, 1, 3}));
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kAsStored, R::kTiledRows}, sizes, {8, 1}),
            (std::vector<float>{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kAsStored, R::kTiledTail}, sizes, {12, 1}),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 8, 9, 6, 7, 10, 11}));
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kAsStored, R::kTiledColumns}, sizes, {1, 8}),
            (std::vector<float>{0, 1, 4, 5, 2, 3, 6, 7}));
}

TEST_F(GgufTensors, ColumnsMoveAsBlocksWhereTheyFitInAHeadAndStayWhereTheyDoNot) {
  const GgufTensorRule rule{"t", "t", S::kAsStored, V::kAsStored, R::kTiledColumns};
  const std::vector<float> whole = through(rule, delta_sizes(32), {1, 128}, kQ8);
  EXPECT_EQ(dtype_name(dtype), "Q8_0");
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(whole[i], (std::vector<float>{0, 2, 1, 3}[i / 32])) << i;
  const std::vector<float> cut = through(rule, delta_sizes(16), {1, 64}, kQ8);
  EXPECT_EQ(dtype_name(dtype), "Q8_0");
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(cut[i], (std::vector<float>{0, 1, 0, 1}[i / 16])) << i;
}

TEST_F(GgufTensors, PartsOfKeyHeadsAreGathered) {
  const GgufTensorRule rule{"t", "t", S::kAsStored, V::kAsStored, R::kPartOfKeyHeads, 1, 2};
  EXPECT_EQ(through(rule, delta_sizes(2), {8, 1}), (std::vector<float>{2, 3, 6, 7}));
}

TEST_F(GgufTensors, MatricesAreTurned) {
  const GgufTensorRule rule{"t", "t", S::kAsStored, V::kAsStored, R::kTransposed};
  EXPECT_EQ(through(rule, {}, {2, 2, 3}), (std::vector<float>{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));
  EXPECT_EQ(shape, (Shape{2, 3, 2}));
}

// `through` compares with what one thread makes; these are cut into many pieces.
TEST_F(GgufTensors, AreTheSameByManyThreads) {
  const GgufSizes sizes = delta_sizes(128);
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kAsStored, R::kTiledRows}, sizes, {512, 1024}).size(), 512U * 1024);
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kAsStored, R::kTiledColumns}, sizes, {700, 512}, kQ8).size(),
            700U * 512);
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kMinusOne, R::kTiledColumns}, sizes, {700, 512}, kQ8).size(),
            700U * 512);
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kMinusOne}, {}, {300001})[300000], 299999.0f);
  const std::vector<float> turned =
      through({"t", "t", S::kAsStored, V::kAsStored, R::kTransposed}, sizes, {3, 301, 517});
  EXPECT_EQ(turned[(2 * 517 + 400) * 301 + 300], static_cast<float>((2 * 301 + 300) * 517 + 400));
}

TEST_F(GgufTensors, ValuesAreUndone) {
  GgufSizes sizes;
  sizes.rescale_every = 2;
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kMinusOne}, {}, {3}), (std::vector<float>{-1, 0, 1}));
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kRescaled}, sizes, {3}, kF32, 5), (std::vector<float>{0, 4, 8}));
  EXPECT_EQ(through({"t", "t", S::kAsStored, V::kRescaled}, sizes, {1, 32}, kQ8, 1).size(), 32U);
  EXPECT_EQ(dtype_name(dtype), "Q8_0") << "where nothing was divided the blocks stay";
  EXPECT_EQ(through({"t", "t", S::kConv}, {}, {1, 2, 1, 3}).size(), 6U);
  EXPECT_EQ(shape, (Shape{2, 1, 3}));
}

FileMaker qwen(uint32_t value_heads = 4, uint64_t rows = 12) {
  FileMaker file;
  file.text("general.architecture", "qwen35");
  const std::pair<const char*, uint32_t> numbers[] = {
      {"block_count", 1},     {"embedding_length", 4}, {"feed_forward_length", 4}, {"attention.head_count", 1},
      {"ssm.group_count", 2}, {"ssm.state_size", 1},   {"ssm.inner_size", 8},      {"ssm.conv_kernel", 4}};
  for (const auto& [key, value] : numbers) file.number(std::string("qwen35.") + key, value);
  file.number("qwen35.ssm.time_step_rank", value_heads);
  return file.tensor("token_embd.weight", {8, 4})
      .tensor("blk.0.ssm_conv1d.weight", {12, 4})
      .tensor("blk.0.attn_qkv.weight", {rows, 4});
}

TEST_F(GgufTensors, SizesThatDoNotFitTheMetadataAreRefused) {
  EXPECT_EQ(refusal(qwen().finish()), "accepted");
  EXPECT_NE(refusal(qwen(4, 13).finish()).find("'blk.0.attn_qkv.weight' has the shape [13, 4]; expected 12 rows"),
            std::string::npos);
  EXPECT_NE(refusal(qwen(3).finish()).find("expected a multiple of 2 heads of keys"), std::string::npos);
  EXPECT_NE(refusal(qwen().tensor("blk.0.ffn_gate_exps.weight", {4, 4}).finish()).find("experts"), std::string::npos);
  EXPECT_NE(refusal(qwen().tensor("blk.0.attn_qkv.scale", {1}).finish()).find("NVFP4"), std::string::npos);
  EXPECT_NE(refusal(FileMaker().text("general.architecture", "arwkv7").tensor("a", {1}).finish()).find("'arwkv7'"),
            std::string::npos);
}

TEST_F(GgufTensors, MetadataThatCannotBeIsRefused) {
  const auto mamba = [] {
    return FileMaker().text("general.architecture", "mamba2").tensor("token_embd.weight", {8, 4});
  };
  EXPECT_NE(refusal(mamba().number("mamba2.block_count", 4000000000U).finish()).find("block_count"), std::string::npos);
  EXPECT_NE(refusal(mamba().number("mamba2.block_count", 9).finish()).find("the file has 1 tensors"),
            std::string::npos);
  EXPECT_NE(refusal(mamba().number("mamba2.block_count", 1).finish()).find("embedding_length' is missing"),
            std::string::npos);
  EXPECT_NE(refusal(mamba().text("mamba2.block_count", "two").finish()).find("another type"), std::string::npos);
}

TEST_F(GgufTensors, LayersBehindTheModelAreLeftAside) {
  FileMaker file = qwen().number("qwen35.nextn_predict_layers", 0);
  write("x.gguf", file.tensor("blk.1.attn_norm.weight", {4}).finish());
  const GgufWeights weights(at("x.gguf"));
  EXPECT_TRUE(weights.contains("mtp.layers.1.attn_norm.weight"));
  EXPECT_FALSE(weights.contains("model.layers.1.input_layernorm.weight"));
}

}  // namespace
}  // namespace coluber
