// SPDX-License-Identifier: Apache-2.0
//
// Sequences that are put aside in files because no memory is left for them: they go on as if nothing had been, and are
// computed anew where the disk is full.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <map>

#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::options_for;
using families::prompt_of;

// A new folder, which goes at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "coluber-parking-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for a test");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// No file of this process may grow beyond `bytes`: writes fail as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    before_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_handler_);
  }

 private:
  rlimit before_{};
  void (*before_handler_)(int) = nullptr;
};

EngineOptions parking_options(const std::string& name, const std::string& folder) {
  EngineOptions options = options_for(name);
  options.deterministic = true;
  options.block_size = 4;
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = 16;
  options.kv_cache_memory_bytes = int64_t{64} << 20;
  options.preemption = PreemptionMode::kPark;
  options.parking_memory_bytes = 1;
  options.parking_dir = folder;
  options.scheduling_policy = SchedulingPolicy::kPriority;
  options.verify_states = true;
  return options;
}

using Answers = std::map<RequestId, std::vector<int32_t>>;

// Two that run, and two more urgent ones that take their places.
Answers run_with_preemptions(Engine& engine) {
  Answers answers;
  const auto step = [&] {
    for (const RequestOutput& output : engine.step()) {
      EXPECT_EQ(output.error, "");
      for (const TokenOutput& token : output.tokens) answers[output.id].push_back(token.id);
    }
    EXPECT_EQ(engine.audit(), "");
  };
  for (uint32_t i = 0; i < 2; ++i) {
    Request request{prompt_of(20 + i, i), greedy(14)};
    request.priority = 1;
    engine.add_request(request);
  }
  for (int i = 0; i < 6; ++i) step();
  for (uint32_t i = 2; i < 4; ++i) engine.add_request({prompt_of(20 + i, i), greedy(14)});
  while (engine.has_unfinished_requests()) step();
  return answers;
}

class Parking : public testing::TestWithParam<std::string> {};

TEST_P(Parking, InFilesGivesTheSameBitsAndLeavesNothing) {
  EngineOptions roomy = parking_options(GetParam(), "");
  roomy.max_num_seqs = 4;
  const Answers expected = run_with_preemptions(*Engine::load(roomy));
  const Folder folder;
  auto engine = Engine::load(parking_options(GetParam(), folder.path()));
  EXPECT_EQ(run_with_preemptions(*engine), expected);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.parked_to_files, 2);
  EXPECT_EQ(stats.parked, 2);
  EXPECT_EQ(stats.recomputed_tokens, 0);
  EXPECT_EQ(stats.parked_file_bytes, 0);
  EXPECT_EQ(stats.parked_bytes, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST_P(Parking, OnAFullDiskComputesAnew) {
  EngineOptions roomy = parking_options(GetParam(), "");
  roomy.max_num_seqs = 4;
  const Answers expected = run_with_preemptions(*Engine::load(roomy));
  const Folder folder;
  EngineOptions options = parking_options(GetParam(), folder.path());
  options.enable_prefix_caching = false;  // or nothing would be lost
  auto engine = Engine::load(options);
  const FullDisk full(64);
  EXPECT_EQ(run_with_preemptions(*engine), expected);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.preemptions, 2);
  EXPECT_EQ(stats.parked, 0);
  EXPECT_GT(stats.recomputed_tokens, 0);
  EXPECT_EQ(stats.parked_file_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, Parking, testing::ValuesIn(families::names()),
                         [](const auto& param) { return param.param; });

TEST(ParkingFolder, MustBeThere) {
  EngineOptions options = parking_options("lfm2", "/nowhere/at/all");
  try {
    Engine::load(options);
    FAIL() << "a folder that is not there was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("found '/nowhere/at/all'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coluber
