// SPDX-License-Identifier: Apache-2.0
//
// Random traffic for COLUBER_SOAK_SECONDS (default 30) over every family, and the proof that it finds what it is for:
// each of the faults that the cache can be told to make is found. `make soak` runs it long. COLUBER_SOAK_SEED repeats a
// run.
#include "soak_traffic.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

namespace coluber {
namespace {

using soak::shrunk;
using soak::Trace;
using soak::Traffic;

constexpr double kShrinkSeconds = 60.0;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int64_t number_from(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoll(text, nullptr, 10) : otherwise;
}

TEST(Soak, RandomTrafficIsAnsweredAsByOneSequenceAlone) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = static_cast<double>(number_from("COLUBER_SOAK_SECONDS", 30));
  const auto seed = static_cast<uint64_t>(number_from("COLUBER_SOAK_SEED", std::random_device{}()));
  std::mt19937_64 seeds(seed);
  int64_t operations = 0;
  int64_t traces = 0;
  std::vector<std::string> names = families::names();
  const std::vector<std::string>& sharing = families::sharing_names();
  names.insert(names.end(), sharing.begin(), sharing.end());
  while (seconds_since(begin) < seconds) {
    Trace trace;
    trace.family = names[static_cast<size_t>(seeds() % names.size())];
    trace.seed = seeds() % 1000000000;
    Traffic traffic(trace);
    const std::string problem = traffic.run();
    ASSERT_EQ(problem, "") << traffic.describe() << "\n"
                           << shrunk(trace, traffic.script(), problem, kShrinkSeconds)
                           << "\nCOLUBER_SOAK_SEED=" << seed;
    operations += traffic.operations();
    ++traces;
  }
  std::printf("soak: %lld operations in %lld traces over %zu families, COLUBER_SOAK_SEED=%llu\n",
              static_cast<long long>(operations), static_cast<long long>(traces), names.size(),
              static_cast<unsigned long long>(seed));
}

struct OldFault {
  PlantedFault fault;
  Trace trace;
};

// Operations of which each is followed by so many steps.
std::vector<std::string> with_steps(int64_t steps, const std::vector<std::string>& operations) {
  std::vector<std::string> script;
  for (const std::string& operation : operations) {
    script.push_back(operation);
    for (int64_t i = 0; script.size() > 1 && i < steps; ++i) script.push_back("step");
  }
  return script;
}

// Each with what was wrong: and it still is, where the engine makes that mistake.
const OldFault kOldFaults[] = {
    // A sequence's own place in the tree kept copies of its pages from giving way, and it could not grow.
    {PlantedFault::kKeepOwnPlace,
     {.family = "jamba_bf16",
      .script = with_steps(
          45, {"engine mode=2 block=2 tokens=2 few=5", "add longer=1 length=59 text=1 max_tokens=13",
               "add longer=1 length=59 text=2 max_tokens=13", "add said=1 longer=1 length=59 text=3 max_tokens=13",
               "add said=2 text=4 max_tokens=13 scored=1"})}},
};

TEST(Soak, TracesThatFailedOnceStayRight) {
  for (OldFault old : kOldFaults) {
    EXPECT_EQ(Traffic(old.trace).run(), "");
    old.trace.fault = old.fault;
    EXPECT_NE(Traffic(old.trace).run(), "") << "the trace no longer shows what it was kept for";
  }
}

// What a trace that fails is told as must do the same again, or it is no help: every operation with every number drawn.
TEST(Soak, AScriptDoesWhatItWasWrittenDownFrom) {
  std::mt19937_64 seeds(11);
  const std::vector<std::string> names = families::names();
  for (int i = 0; i < 6; ++i) {
    Trace trace;
    trace.family = names[static_cast<size_t>(seeds() % names.size())];
    trace.seed = seeds() % 1000000000;
    Traffic drawn(trace);
    EXPECT_EQ(drawn.run(), "");
    trace.script = drawn.script();
    Traffic written(trace);
    EXPECT_EQ(written.run(), "");
    EXPECT_EQ(written.describe(), drawn.describe());
    EXPECT_EQ(written.operations(), drawn.operations());
  }
}

struct NamedFault {
  const char* name;
  PlantedFault fault;
};

class PlantedFaults : public testing::TestWithParam<NamedFault> {};

// Counted in traces, since a sanitizer or a busy machine makes a minute of any length; four hundred take half a minute.
TEST_P(PlantedFaults, AreFound) {
  std::mt19937_64 seeds(7);
  std::string found;
  int64_t traces = 0;
  for (; found.empty() && traces < 400; ++traces) {
    Trace trace;
    trace.family = seeds() % 2 == 0 ? "lfm2" : "jamba_bf16";
    if (GetParam().fault == PlantedFault::kDropRing) trace.family = "mamba2_replay";
    trace.seed = seeds() % 1000000000;
    trace.fault = GetParam().fault;
    trace.plain = true;
    found = Traffic(trace).run();
    if (found.empty()) continue;
    trace.fault = PlantedFault::kNone;
    Traffic without(trace);
    ASSERT_EQ(without.run(), "") << "it is the fault that was found: " << without.describe();
  }
  EXPECT_NE(found, "") << GetParam().name;
  RecordProperty("traces", std::to_string(traces));
}

INSTANTIATE_TEST_SUITE_P(Each, PlantedFaults,
                         testing::Values(NamedFault{"SkipScrub", PlantedFault::kSkipScrub},
                                         NamedFault{"TagOffByOne", PlantedFault::kTagOffByOne},
                                         NamedFault{"SwapSlots", PlantedFault::kSwapSlots},
                                         NamedFault{"PublishBeforeWrite", PlantedFault::kPublishBeforeWrite},
                                         NamedFault{"ForkWithoutStates", PlantedFault::kForkWithoutStates},
                                         NamedFault{"LeakPageReference", PlantedFault::kLeakPageReference},
                                         NamedFault{"LeakSlot", PlantedFault::kLeakSlot},
                                         NamedFault{"LeakLock", PlantedFault::kLeakLock},
                                         NamedFault{"StaleHit", PlantedFault::kStaleHit},
                                         NamedFault{"WriteSharedPage", PlantedFault::kWriteSharedPage},
                                         NamedFault{"DropPark", PlantedFault::kDropPark},
                                         NamedFault{"WrongBlockSize", PlantedFault::kWrongBlockSize},
                                         NamedFault{"ForgetSalt", PlantedFault::kForgetSalt},
                                         NamedFault{"DropRing", PlantedFault::kDropRing},
                                         NamedFault{"RestoreOffByOne", PlantedFault::kRestoreOffByOne},
                                         NamedFault{"KeepLaterState", PlantedFault::kKeepLaterState},
                                         NamedFault{"SaveWithoutConv", PlantedFault::kSaveWithoutConv},
                                         NamedFault{"ForkSharesPage", PlantedFault::kForkSharesPage}),
                         [](const testing::TestParamInfo<NamedFault>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace coluber
