// SPDX-License-Identifier: Apache-2.0
//
// Steps of decoding allocate nothing once they have run for a while: every call of operator new in this
// program is counted. A binary of its own, for that.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <numeric>

#include "coluber/engine.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (std::getenv("COLUBER_ALLOCATION_ABORTS") != nullptr) std::abort();  // for a look with a debugger
  }
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, 1); }
void* operator new[](std::size_t bytes) { return counted(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace coluber {
namespace {

std::vector<std::string> models() {
  const std::filesystem::path root = COLUBER_SOURCE_DIR;
  std::vector<std::string> found = {(root / "models/asp-7m").string()};
  for (const auto& entry : std::filesystem::directory_iterator(root / "tests/data"))
    if (std::filesystem::exists(entry.path() / "golden.json")) found.push_back(entry.path().string());
  std::sort(found.begin(), found.end());
  return found;
}

class SteadySteps : public testing::TestWithParam<std::string> {};

constexpr int64_t kSequences = 12, kWarm = 150, kMeasured = 100, kRest = 50;

// The lengths differ, so that pages end in different steps.
void ask(Engine& engine) {
  for (int64_t i = 0; i < kSequences; ++i) {
    Request request;
    request.prompt_ids.resize(static_cast<size_t>(5 + 3 * i));
    std::iota(request.prompt_ids.begin(), request.prompt_ids.end(), static_cast<int32_t>(3 + i));
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = kWarm + kMeasured + kRest;
    engine.add_request(std::move(request));
  }
}

EngineOptions options_for(const std::string& model) {
  EngineOptions options;
  options.model = model;
  options.num_threads = 2;
  options.max_num_seqs = kSequences;
  options.kv_cache_memory_bytes = int64_t{256} << 20;
  options.verify_states = true;
  return options;
}

void expect_no_allocation(const EngineOptions& options) {
  const auto engine = Engine::load(options);
  std::vector<RequestOutput> outputs;
  // Once to the end: pools and buffers have then been as large as they will be.
  ask(*engine);
  while (engine->has_unfinished_requests()) engine->step(outputs);
  engine->clear_prefix_cache();
  ask(*engine);
  for (int64_t i = 0; i < kWarm; ++i) engine->step(outputs);
  allocations = 0;
  counting = true;
  size_t answered = 0;
  for (int64_t i = 0; i < kMeasured; ++i) {
    engine->step(outputs);
    answered += outputs.size();
  }
  counting = false;
  EXPECT_EQ(answered, static_cast<size_t>(kSequences * kMeasured));
  EXPECT_EQ(allocations.load(), 0);
}

TEST_P(SteadySteps, OfDecodingAllocateNothing) { expect_no_allocation(options_for(GetParam())); }

// Expanded to float32 and rounded back in scratch that is there.
TEST(NarrowSteadySteps, OfDecodingAllocateNothing) {
  for (const char* family : {"jamba_bf16", "falcon_h1_bf16", "minimax", "qwen3_next_bf16", "rwkv7_fla"}) {
    SCOPED_TRACE(family);
    EngineOptions options = options_for(std::string(COLUBER_SOURCE_DIR) + "/tests/data/" + family);
    options.mamba_ssm_cache_dtype = DType::kInt16;
    options.kv_cache_dtype = DType::kFloat8E4M3;
    expect_no_allocation(options);
  }
}

TEST(Allocations, AreCounted) {
  allocations = 0;
  counting = true;
  const std::vector<int> some(100, 1);
  counting = false;
  EXPECT_GE(allocations.load(), 1);
  EXPECT_EQ(some[50], 1);
}

INSTANTIATE_TEST_SUITE_P(Models, SteadySteps, testing::ValuesIn(models()), [](const auto& info) {
  std::string name = std::filesystem::path(info.param).filename().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace coluber
