// SPDX-License-Identifier: Apache-2.0
//
// For every family and every narrow dtype of states and pages: logits near float32's however a prompt is cut, the very
// bits again after a fork, a save or an export, and the same answers whatever was cached or parked.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "model_copy.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::logits_of;
using families::options_for;
using families::prompt_of;

struct Mode {
  const char* name;
  std::optional<DType> states, pages;
  double bound;  // of a position's difference (root mean square over its logits), in standard deviations of all logits
};
constexpr Mode kModes[] = {
    {"bf16", DType::kBFloat16, std::nullopt, 0.06},   {"int16", DType::kInt16, std::nullopt, 1e-3},
    {"int8", DType::kInt8, std::nullopt, 0.2},        {"fp8 pages", std::nullopt, DType::kFloat8E4M3, 0.25},
    {"int8 pages", std::nullopt, DType::kInt8, 0.06}, {"int16, int8 pages", DType::kInt16, DType::kInt8, 0.06}};

class NumericModes : public testing::TestWithParam<std::string> {
 protected:
  NumericModes() : path_(std::filesystem::temp_directory_path() / ("coluber_numeric_" + std::to_string(::getpid()))) {}
  ~NumericModes() override { std::filesystem::remove(path_); }

  static EngineOptions options(const Mode& mode) {
    EngineOptions options = options_for(GetParam());
    options.poison_pools = true;
    options.verify_states = true;
    options.mamba_ssm_cache_dtype = mode.states;
    options.kv_cache_dtype = mode.pages;
    return options;
  }

  // Null where no layer of the family has such states.
  static std::unique_ptr<Engine> load(const EngineOptions& options) {
    try {
      return Engine::load(options);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidConfig) throw;
      EXPECT_NE(std::string(error.what()).find("no layer of this model"), std::string::npos) << error.what();
      return nullptr;
    }
  }

  template <typename Run>
  static void each_mode(Run&& run) {
    int64_t ran = 0;
    for (const Mode& mode : kModes) {
      SCOPED_TRACE(mode.name);
      EngineOptions asked = options(mode);
      auto engine = load(asked);
      if (!engine) continue;
      ++ran;
      run(mode, asked, *engine);
    }
    EXPECT_GE(ran, 3) << "pages of bytes can be asked of every model";
  }

  std::filesystem::path path_;
};

double deviation_of(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (const float value : values) sum += value, squares += static_cast<double>(value) * value;
  const auto count = static_cast<double>(values.size());
  return std::sqrt(std::max(0.0, squares / count - sum / count * sum / count));
}

// Of the root mean squares of the positions' differences: experts that are chosen by a hair may change a position.
double median_error(const std::vector<float>& got, const std::vector<float>& expected, size_t positions) {
  const size_t vocab = got.size() / positions;
  std::vector<double> errors;
  for (size_t p = 0; p < positions; ++p) {
    double sum = 0;
    for (size_t i = p * vocab; i < (p + 1) * vocab; ++i) sum += std::pow(double{got[i]} - expected[i], 2);
    errors.push_back(std::sqrt(sum / static_cast<double>(vocab)));
  }
  std::ranges::nth_element(errors, errors.begin() + static_cast<int64_t>(positions / 2));
  return errors[positions / 2];
}

TEST_P(NumericModes, LogitsStayNearFloat32HoweverThePromptIsCut) {
  const auto prompt = prompt_of(70);
  auto plain = Engine::load(options({}));
  const std::vector<float> expected = logits_of(*plain->open_session(), prompt);
  const double unit = deviation_of(expected);
  each_mode([&](const Mode& mode, const EngineOptions&, Engine& engine) {
    for (const int64_t chunk : {0, 13, 1}) {
      const std::vector<float> got = logits_of(*engine.open_session(), prompt, chunk);
      ASSERT_EQ(got.size(), expected.size());
      const double error = median_error(got, expected, prompt.size());
      EXPECT_LE(error / unit, mode.bound) << "in chunks of " << chunk;
    }
  });
}

TEST_P(NumericModes, ForksAndRestoredSessionsGoOnWithTheSameBits) {
  const auto prompt = prompt_of(37), next = prompt_of(12, 2);
  each_mode([&](const Mode&, const EngineOptions& asked, Engine& engine) {
    auto session = engine.open_session();
    session->extend(prompt, 10);
    session->save(path_);
    auto fork = session->fork();
    const SessionCheckpoint here = session->checkpoint();
    const std::vector<float> expected = logits_of(*session, next, 5);
    EXPECT_EQ(logits_of(*fork, next, 5), expected) << "forked";
    session->rollback(here);
    EXPECT_EQ(logits_of(*session, next, 5), expected) << "rolled back";
    EngineOptions other = asked;
    other.block_size = 7;
    auto another = Engine::load(other);
    auto restored = another->open_session();
    restored->load(path_);
    EXPECT_EQ(logits_of(*restored, next, 5), expected) << "restored";
    const std::vector<ExportedState> states = restored->export_states();
    for (const ExportedState& state : states)
      for (const float value : state.values) ASSERT_TRUE(std::isfinite(value)) << state.name;
  });
}

TEST_P(NumericModes, ExportedStatesAreNearThoseOfFloat32) {
  auto plain = Engine::load(options({}));
  auto reference = plain->open_session();
  reference->extend(prompt_of(40));
  const std::vector<ExportedState> expected = reference->export_states();
  const Mode mode{"", DType::kInt16, std::nullopt, 0};
  auto engine = load(options(mode));
  if (!engine) GTEST_SKIP() << "no recurrent states of that kind";
  auto session = engine->open_session();
  session->extend(prompt_of(40));
  const std::vector<ExportedState> got = session->export_states();
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].name, expected[i].name);
    ASSERT_EQ(got[i].shape, expected[i].shape);
    float top = 0;
    for (const float value : expected[i].values) top = std::max(top, std::fabs(value));
    for (size_t j = 0; j < got[i].values.size(); ++j)
      ASSERT_NEAR(got[i].values[j], expected[i].values[j], 1e-3f * top + 1e-6f) << got[i].name << ", element " << j;
  }
}

// Log-probabilities of the answers' first tokens, beside one that computes the prompt whole and one in the steps'
// chunks: a cut in another place is another rounding, and what experts are chosen by a hair may hang on it.
TEST_P(NumericModes, CachedAndParkedRequestsAnswerAsOneAlone) {
  each_mode([&](const Mode& mode, const EngineOptions& asked, Engine&) {
    EngineOptions tiny = asked;
    tiny.max_num_seqs = 2;
    tiny.max_num_batched_tokens = 16;
    tiny.preemption = PreemptionMode::kPark;
    tiny.scheduling_policy = SchedulingPolicy::kPriority;
    tiny.mamba_cache_mode = MambaCacheMode::kAuto;
    tiny.kv_cache_memory_bytes = int64_t{64} << 20;
    auto engine = Engine::load(tiny);
    auto plain = Engine::load(asked);
    SamplingParams sampling = greedy(12);
    sampling.logprobs = 1;
    std::map<RequestId, std::vector<int32_t>> prompts;
    std::map<RequestId, float> found;
    const auto step = [&] {
      for (const RequestOutput& output : engine->step()) {
        EXPECT_NE(output.finish_reason, FinishReason::kError) << output.error;
        for (const TokenOutput& token : output.tokens) found.emplace(output.id, token.top_logprobs[0].logprob);
      }
      ASSERT_EQ(engine->audit(), "");
    };
    for (uint32_t i = 0; i < 6; ++i) {
      std::vector<int32_t> prompt = prompt_of(20 + 26 * (i / 2), 30 + i / 2);  // each twice
      Request request{prompt, sampling};
      request.priority = -static_cast<int64_t>(i);
      prompts[engine->add_request(std::move(request))] = prompt;
      for (int steps = 0; steps < 3; ++steps) step();
    }
    while (engine->has_unfinished_requests()) step();
    EXPECT_GT(engine->stats().parked, 0);
    EXPECT_EQ(engine->stats().broken_states, 0);
    EXPECT_EQ(engine->stats().leaked_slots, 0);
    for (const auto& [id, prompt] : prompts) {
      float nearest = INFINITY;
      for (const int64_t chunk : {int64_t{0}, tiny.max_num_batched_tokens}) {
        auto session = plain->open_session();
        session->extend(prompt, chunk);
        const float alone = session->generate(sampling).tokens[0].top_logprobs[0].logprob;
        nearest = std::min(nearest, std::fabs(found.at(id) - alone));
      }
      EXPECT_LE(nearest, 4 * mode.bound) << prompt.size() << " tokens";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Families, NumericModes, testing::ValuesIn(families::names()),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Sharing, NumericModes, testing::ValuesIn(families::sharing_names()),
                         [](const auto& info) { return info.param; });

std::optional<DType> state_dtype_of(const EngineOptions& options) {
  const ModelDescription model = describe_model(options);
  for (const AttentionLayerBase* layer : model.config->layers)
    if (const auto* recurrent = dynamic_cast<const MambaBase*>(layer)) return recurrent->get_state_dtype()[1];
  return std::nullopt;
}

TEST(NumericModes, StatesAreWhatTheConfigSaysUnlessTheUserSaysOtherwise) {
  struct Said {
    const char* name;
    DType dtype;
  };
  for (const Said& said :
       {Said{"float32", DType::kFloat32}, Said{"auto", DType::kFloat32}, Said{"bfloat16", DType::kBFloat16},
        Said{"torch.float16", DType::kFloat16}, Said{"int16", DType::kInt16}}) {
    for (const char* key : {"mamba_ssm_cache_dtype", "mamba_ssm_dtype"}) {
      SCOPED_TRACE(said.name);
      ModelCopy copy("mamba2");
      copy.config().set(key, said.name);
      copy.write_all();
      EngineOptions options = copy.options();
      EXPECT_EQ(state_dtype_of(options), said.dtype);
      options.deterministic = true;
      EXPECT_EQ(state_dtype_of(options), DType::kFloat32) << "no less than it says";
      options.deterministic = false;
      options.mamba_ssm_cache_dtype = DType::kInt8;
      EXPECT_EQ(state_dtype_of(options), DType::kInt8);
    }
  }
  ModelCopy inner("qwen3_5_vl");
  Json text = inner.config().at("text_config");
  text.set("mamba_ssm_dtype", "bfloat16");
  inner.config().set("text_config", text);
  inner.write_all();
  EXPECT_EQ(state_dtype_of(inner.options()), DType::kBFloat16);
}

TEST(NumericModes, AStateDtypeOfAConfigThatStatesCannotBeIsRefusedByName) {
  for (const char* name : {"float64", "fp8", "nonsense"}) {
    ModelCopy copy("mamba2");
    copy.config().set("mamba_ssm_cache_dtype", name);
    copy.write_all();
    EngineOptions options = copy.options();
    try {
      Engine::load(options);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
      EXPECT_NE(std::string(error.what()).find("mamba_ssm_cache_dtype is '" + std::string(name)), std::string::npos)
          << error.what();
    }
    options.mamba_ssm_cache_dtype = DType::kFloat32;
    EXPECT_NO_THROW(Engine::load(options));
  }
}

TEST(NumericModes, DeterministicRefusesStatesThatRoundWhereStepsEnd) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kInt16, DType::kInt8}) {
    EngineOptions options = options_for("mamba2");
    options.deterministic = true;
    options.mamba_ssm_cache_dtype = dtype;
    try {
      Engine::load(options);
      ADD_FAILURE() << dtype_name(dtype);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("mamba_ssm_cache_dtype"), std::string::npos) << error.what();
    }
  }
}

TEST(NumericModes, DtypesThatNothingIsKeptInAreRefusedByName) {
  const auto message = [](auto change) {
    EngineOptions options = options_for("jamba_bf16");
    change(options);
    try {
      Engine::load(options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message([](EngineOptions& o) {
              o.mamba_cache_dtype = DType::kInt16;
            }).find("mamba_cache_dtype must be float32, bfloat16 or float16, found int16"),
            std::string::npos);
  EXPECT_NE(message([](EngineOptions& o) {
              o.mamba_ssm_cache_dtype = DType::kFloat8E4M3;
            }).find("mamba_ssm_cache_dtype must be float32, bfloat16, float16, int16 or int8, found float8_e4m3fn"),
            std::string::npos);
  EXPECT_NE(message([](EngineOptions& o) { o.kv_cache_dtype = DType::kInt16; }).find("kv_cache_dtype must be float32"),
            std::string::npos);
}

TEST(NumericModes, DeterministicPagesOfBytesKeepTheirBitsHoweverAPromptIsCut) {
  for (const DType dtype : {DType::kFloat8E4M3, DType::kInt8}) {
    EngineOptions options = options_for("jamba_bf16");
    options.deterministic = true;
    options.kv_cache_dtype = dtype;
    auto engine = Engine::load(options);
    const auto prompt = prompt_of(90);
    const std::vector<float> expected = logits_of(*engine->open_session(), prompt);
    for (const int64_t chunk : {1, 7, 64}) EXPECT_EQ(logits_of(*engine->open_session(), prompt, chunk), expected);
  }
}

TEST(NumericModes, AModelWithoutSuchStatesRefusesThemByName) {
  EngineOptions options = options_for("lfm2");
  options.mamba_ssm_cache_dtype = DType::kInt16;
  try {
    Engine::load(options);
    ADD_FAILURE() << "loaded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("int16, and no layer"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coluber
