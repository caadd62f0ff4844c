// SPDX-License-Identifier: Apache-2.0
//
// For tests of the spellings under which checkpoints are published: a golden checkpoint from beside the repository is
// copied, respelt and run. Its logits must be what they were, or it must be refused by name.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "model_copy.h"

namespace coluber {

class RespeltGolden : public testing::Test {
 protected:
  using Respell = std::function<void(ModelCopy&)>;

  static std::string golden(const std::string& family) { return "../../../shared/golden/" + family; }
  void SetUp() override {
    if (!std::filesystem::exists(families::options_for(golden("mamba")).model + "/config.json"))
      GTEST_SKIP() << "no golden checkpoints beside the repository";
  }

  static std::vector<float> logits_with(const EngineOptions& options) {
    const auto engine = Engine::load(options);
    const auto session = engine->open_session();
    return families::logits_of(*session, families::prompt_of(20));
  }
  static std::vector<float> respelt(const std::string& family, const Respell& respell) {
    ModelCopy copy(golden(family));
    respell(copy);
    copy.write_all();
    return logits_with(copy.options());
  }
  static std::vector<float> as_stored(const std::string& family) {
    return respelt(family, [](ModelCopy&) {});
  }
  static void expect_same(const std::string& family, const Respell& respell) {
    EXPECT_EQ(respelt(family, respell), as_stored(family)) << family;
  }
  static void expect_refused(const std::string& family, const Respell& respell,
                             std::initializer_list<const char*> words) {
    try {
      respelt(family, respell);
      ADD_FAILURE() << family << " was not refused";
    } catch (const Error& error) {
      for (const char* word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " in: " << error.what();
    }
  }
};

// Every tensor with `from` in its name.
inline void rename_everywhere(ModelCopy& copy, const std::string& from, const std::string& to) {
  std::vector<std::string> names;
  for (const auto& entry : copy.tensors())
    if (entry.first.find(from) != std::string::npos) names.push_back(entry.first);
  ASSERT_FALSE(names.empty()) << from;
  for (const std::string& name : names) {
    std::string renamed = name;
    renamed.replace(renamed.find(from), from.size(), to);
    copy.rename_tensor(name, renamed);
  }
}

}  // namespace coluber
