// SPDX-License-Identifier: Apache-2.0
#include "layers/weight_loader.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "layers/memory_weights_test.h"

namespace coluber {
namespace {

class Loader : public ::testing::Test {
 protected:
  MemoryWeights weights_;
  LoadHarness harness_{weights_};
};

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST_F(Loader, TakesByScopedNameAndCountsWhatWasUsed) {
  weights_.add("model.layers.0.w", Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  weights_.add("model.layers.0.b", Shape{3}, {7, 8, 9}, DType::kBFloat16);
  WeightLoader loader(harness_.context());
  WeightLoader layer = loader.scoped("model").scoped("layers.0");
  EXPECT_EQ(layer.full_name("w"), "model.layers.0.w");
  EXPECT_EQ(layer.take("w", Shape{0, 3}).as<float>()[5], 6.0f);
  EXPECT_EQ(layer.take_float("b", Shape{3}), (std::vector<float>{7, 8, 9}));
  layer.count_matmul(6, 24);
  ModelInfo info;
  loader.finish(info);
  EXPECT_EQ(info.parameters, 9);
  EXPECT_EQ(info.weight_bytes, 6 * 4 + 3 * 2);
  ASSERT_EQ(info.parameters_by_dtype.size(), 2u);
  EXPECT_EQ(info.parameters_by_dtype[0], (std::pair<DType, int64_t>{DType::kFloat32, 6}));
  EXPECT_EQ(info.matmul_parameters, 6);
  EXPECT_EQ(info.streamed_bytes, 24);
  EXPECT_TRUE(info.notes.empty());
}

TEST_F(Loader, ListsEveryMissingOrMisshapenTensorInOneMessage) {
  weights_.add("a", Shape{2, 2}, {1, 2, 3, 4});
  weights_.add_raw("ids", Shape{1}, DType::kInt64, 8);
  WeightLoader loader(harness_.context());
  EXPECT_FALSE(loader.describe_only());
  const TensorView stand_in = loader.take("a", Shape{3, 2});
  EXPECT_EQ(stand_in.shape, (Shape{3, 2}));
  EXPECT_EQ(stand_in.as<float>()[5], 0.0f);
  EXPECT_EQ(loader.take_float("gone", Shape{4, 0}), std::vector<float>(4));
  loader.take("ids", Shape{1});
  EXPECT_TRUE(loader.describe_only());  // nothing more is worth packing
  ModelInfo info;
  const std::string message = message_of([&] { loader.finish(info); });
  for (const char* part : {"'a' has the shape [2, 2]; expected [3, 2]", "'gone' is missing; expected the shape [4, ?]",
                           "'ids' holds int64", "test weights", "config.json"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

TEST_F(Loader, RefusesHugeStandInsInsteadOfAllocatingThem) {
  WeightLoader loader(harness_.context());
  loader.take("first", Shape{2});
  const std::string message = message_of([&] { loader.take("gone", Shape{int64_t{1} << 40, int64_t{1} << 40}); });
  EXPECT_NE(message.find("'first'"), std::string::npos);
  EXPECT_NE(message.find("'gone'"), std::string::npos);
}

TEST_F(Loader, StopsOnceAThousandTensorsAreWrong) {
  WeightLoader loader(harness_.context());
  int taken = 0;
  const std::string message = message_of([&] {
    for (; taken < 1 << 20; ++taken) loader.take(fmt::format("t{}", taken), Shape{2});
  });
  EXPECT_EQ(taken, 999);
  EXPECT_NE(message.find("'t99'"), std::string::npos);
  EXPECT_NE(message.find("and at least 900 more"), std::string::npos);
}

TEST_F(Loader, StopsBeforeCopiesOfWhatIsMissingFillMemory) {
  WeightLoader loader(harness_.context());
  loader.take("a_large_matrix", Shape{1 << 16, 1 << 16});  // 16 GiB that nobody reads cost nothing
  int64_t copied = 0;
  const std::string message = message_of([&] {
    for (int i = 0; i < 1000; ++i)
      copied += static_cast<int64_t>(loader.take_float(fmt::format("v{}", i), Shape{1 << 20}).size());
  });
  EXPECT_EQ(copied * 4, int64_t{16} << 20);
  EXPECT_NE(message.find("'a_large_matrix'"), std::string::npos);
  EXPECT_NE(message.find("perhaps more"), std::string::npos);
}

TEST_F(Loader, AScaleBesideEightBitFloatsIsNotIgnored) {
  weights_.add("plain", Shape{2}, {1, 2}, DType::kFloat8E4M3);
  weights_.add("w", Shape{2}, {1, 2}, DType::kFloat8E4M3);
  weights_.add("w_scale_inv", Shape{1}, {64});
  WeightLoader loader(harness_.context());
  EXPECT_EQ(loader.take_float("plain", Shape{2}), (std::vector<float>{1, 2}));
  loader.take("w", Shape{2});
  ModelInfo info;
  const std::string message = message_of([&] { loader.finish(info); });
  EXPECT_NE(message.find("'w_scale_inv'"), std::string::npos);
  EXPECT_EQ(message.find("plain"), std::string::npos);
}

TEST_F(Loader, CutsALongListOfProblems) {
  WeightLoader loader(harness_.context());
  for (int i = 0; i < 150; ++i) loader.take(fmt::format("t{}", i), Shape{2});
  ModelInfo info;
  const std::string message = message_of([&] { loader.finish(info); });
  EXPECT_NE(message.find("and 50 more"), std::string::npos);
}

TEST_F(Loader, NotesWhatIsLeftOutAndWhatNothingUses) {
  weights_.add("w", Shape{1}, {1});
  weights_.add("model.decay.0", Shape{1}, {1});
  weights_.add("model.decay.1", Shape{1}, {1});
  weights_.add("surprise", Shape{1}, {1});
  WeightLoader loader(harness_.context());
  loader.take("w", Shape{1});
  loader.scoped("model").ignore("decay", "computed from the configuration");
  loader.ignore("nothing.here", "not in this checkpoint");
  ModelInfo info;
  loader.finish(info);
  ASSERT_EQ(info.notes.size(), 2u);
  EXPECT_EQ(info.notes[0], "left out 'model.decay' (2 tensors): computed from the configuration");
  EXPECT_NE(info.notes[1].find("'surprise'"), std::string::npos);
  EXPECT_EQ(info.parameters, 1);
}

TEST_F(Loader, NotesOneKindOfTensorOnceHoweverManyLayersHaveIt) {
  WeightLoader loader(harness_.context());
  for (int layer = 0; layer < 12; ++layer) {
    weights_.add(fmt::format("layers.{}.slope", layer), Shape{1}, {1});
    weights_.add(fmt::format("layers.{}.decay", layer), Shape{1}, {1});
  }
  weights_.add("mtp.w", Shape{1}, {1});
  for (int layer = 0; layer < 12; ++layer) {
    for (const char* name : {"slope", "decay"})
      loader.scoped(fmt::format("layers.{}", layer)).ignore(name, "computed from the configuration");
  }
  loader.ignore("mtp.", "prediction of several tokens");
  ModelInfo info;
  loader.finish(info);
  ASSERT_EQ(info.notes.size(), 2u);
  EXPECT_EQ(info.notes[0], "left out 24 tensors, e.g. 'layers.0.slope': computed from the configuration");
  EXPECT_EQ(info.notes[1], "left out 'mtp.' (1 tensor): prediction of several tokens");
}

TEST_F(Loader, FindsTheSpellingThatIsThere) {
  weights_.add("embedding.weight", Shape{1}, {1});
  const WeightLoader loader(harness_.context());
  EXPECT_EQ(loader.first_of({"embeddings.weight", "embedding.weight"}), "embedding.weight");
  EXPECT_EQ(loader.first_of({"x", "y"}), "x");
  EXPECT_TRUE(loader.has("embedding.weight"));
  EXPECT_FALSE(loader.has("embedding"));
}

TEST_F(Loader, ReportsProgressOnceATensor) {
  weights_.add("a", Shape{2}, {1, 2});
  weights_.add("b", Shape{3}, {1, 2, 3});
  std::vector<std::pair<int64_t, int64_t>> calls;
  harness_.context().progress = [&](int64_t done, int64_t total) { calls.emplace_back(done, total); };
  WeightLoader loader(harness_.context());
  loader.take("a", Shape{2});
  loader.take("a", Shape{2});
  loader.take("b", Shape{3});
  EXPECT_EQ(calls, (std::vector<std::pair<int64_t, int64_t>>{{8, 20}, {20, 20}}));
}

// The host's memory under another name.
class ElsewhereDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "elsewhere"; }
  bool is_host() const noexcept override { return false; }
  void* allocate(int64_t bytes) override { return cpu_device().allocate(bytes); }
  void deallocate(void* memory, int64_t bytes) noexcept override { cpu_device().deallocate(memory, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override {
    copied_bytes += bytes;
    cpu_device().copy(to, from, bytes);
  }
  void fill(void* memory, std::byte value, int64_t bytes) override { cpu_device().fill(memory, value, bytes); }
  void synchronize() override {}
  int64_t slab_bytes() const noexcept override { return cpu_device().slab_bytes(); }
  void* reserve(int64_t bytes) override { return cpu_device().reserve(bytes); }
  void release(void* base, int64_t bytes) noexcept override { cpu_device().release(base, bytes); }
  void map(void* address, int64_t bytes) override { cpu_device().map(address, bytes); }
  void unmap(void* address, int64_t bytes) noexcept override { cpu_device().unmap(address, bytes); }

  int64_t copied_bytes = 0;
};

TEST_F(Loader, PlacesWeightsOnTheDeviceOfTheModel) {
  weights_.add("w", Shape{3}, {1, 2, 3});
  ElsewhereDevice device;
  harness_.context().device = &device;
  WeightLoader loader(harness_.context());
  const FloatArray array = loader.take_array("w", Shape{3});
  EXPECT_EQ(device.copied_bytes, 12);
  EXPECT_EQ((std::vector<float>(array.data(), array.data() + array.size())), (std::vector<float>{1, 2, 3}));
  ModelInfo info;
  EXPECT_NO_THROW(loader.finish(info));
}

TEST_F(Loader, LayersThatKeepWeightsOnTheHostAreRefusedOnADeviceAllInOneMessage) {
  weights_.add("a.w", Shape{2}, {1, 2});
  weights_.add("b.w", Shape{2}, {1, 2});
  ElsewhereDevice device;
  harness_.context().device = &device;
  WeightLoader loader(harness_.context());
  loader.scoped("a").take_float("w", Shape{2});
  EXPECT_TRUE(loader.describe_only()) << "what follows is not worth packing";
  loader.scoped("b").take_float("w", Shape{2});
  ModelInfo info;
  try {
    loader.finish(info);
    FAIL() << "two layers of the host ran on a device";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    const std::string text = error.what();
    EXPECT_NE(text.find("'a.w'"), std::string::npos) << text;
    EXPECT_NE(text.find("'b.w'"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace coluber
