// SPDX-License-Identifier: Apache-2.0
//
// Where a model may run: what is asked for wrongly, what is not there and what a model cannot do are told apart, and
// `auto` runs everywhere. What runs on a device is held to the golden folders by tests/parity.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/source_folder_test.h"
#include "coluber/engine.h"
#include "coluber/error.h"
#include "coluber/registry.h"
#include "tensor/cuda_library.h"

namespace coluber {
namespace {

EngineOptions options_of(const std::string& family, const std::string& device) {
  EngineOptions options;
  options.model = source_folder() + "/tests/data/" + family;
  options.num_threads = 1;
  options.device = device;
  return options;
}

std::string refusal_of(const EngineOptions& options, ErrorCode code) {
  try {
    Engine::load(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << options.device << " was accepted";
  return {};
}

TEST(DeviceChoice, RefusesNamesThatAreNoDevice) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda1", "CPU"})
    EXPECT_NE(refusal_of(options_of("mamba2", name), ErrorCode::kInvalidArgument).find("device must be"),
              std::string::npos)
        << name;
}

TEST(DeviceChoice, RefusesAShareOfMemoryThatIsNone) {
  for (const double share : {0.0, -0.5, 1.5}) {
    EngineOptions options = options_of("mamba2", "auto");
    options.gpu_memory_utilization = share;
    EXPECT_NE(refusal_of(options, ErrorCode::kInvalidArgument).find("gpu_memory_utilization"), std::string::npos);
  }
}

TEST(DeviceChoice, AutoRunsWhatNoDeviceCan) {
  EXPECT_NO_THROW(Engine::load(options_of("rwkv6", "auto")));
  EXPECT_NO_THROW(Engine::load(options_of("mamba2", "auto")));
}

TEST(DeviceChoice, WithoutALibraryOrADriverTheReasonIsTold) {
  std::string why;
  if (CudaLibrary::find(&why) != nullptr) GTEST_SKIP() << "there is a library and a device";
  EXPECT_EQ(refusal_of(options_of("mamba2", "cuda"), ErrorCode::kUnsupported), why);
}

TEST(DeviceChoice, ModelsAndOptionsOfTheCpuAloneAreRefusedOnADevice) {
  std::string why;
  if (CudaLibrary::find(&why) == nullptr) GTEST_SKIP() << why;
  EXPECT_NE(refusal_of(options_of("rwkv6", "cuda"), ErrorCode::kUnsupported).find("rwkv6"), std::string::npos);
  EngineOptions options = options_of("mamba2", "cuda");
  options.use_replayssm = ReplayMode::kOn;
  EXPECT_NE(refusal_of(options, ErrorCode::kUnsupported).find("use_replayssm"), std::string::npos);
  EXPECT_NE(refusal_of(options_of("mamba2", "cuda:1000"), ErrorCode::kInvalidArgument).find("cuda:1000"),
            std::string::npos);
}

TEST(DeviceChoice, TheDocsNameEveryFamilyThatRunsOnDevicesAndNoOther) {
  std::ifstream file(source_folder() + "/docs/cuda.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = text.find("| models |");
  ASSERT_NE(begin, std::string::npos);
  const std::string models = text.substr(begin, text.find('\n', begin) - begin);
  for (const std::string& name : ModelRegistry::instance().names())
    EXPECT_EQ(models.find("`" + name + "`") != std::string::npos, ModelRegistry::instance().find(name)->runs_on_cuda)
        << name;
}

}  // namespace
}  // namespace coluber
