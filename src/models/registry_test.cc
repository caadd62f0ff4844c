// SPDX-License-Identifier: Apache-2.0
#include "coluber/registry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "coluber/error.h"

namespace coluber {
namespace {

ModelFamily family_of(std::string model_type, std::vector<std::string> architectures) {
  return {std::move(model_type), std::move(architectures), [](ModelLoadContext&) { return std::unique_ptr<Model>(); }};
}

TEST(ModelRegistry, FindsFamiliesByTypeAndArchitecture) {
  ModelRegistry registry;
  registry.add(family_of("zeta", {"ZetaForCausalLM"}));
  registry.add(family_of("alpha", {"AlphaForCausalLM", "AlphaLM"}));
  EXPECT_EQ(registry.find("alpha")->model_type, "alpha");
  EXPECT_EQ(registry.find_architecture("AlphaLM")->model_type, "alpha");
  EXPECT_EQ(registry.find("beta"), nullptr);
  EXPECT_EQ(registry.find_architecture("Beta"), nullptr);
  EXPECT_EQ(registry.names(), (std::vector<std::string>{"alpha", "zeta"}));
}

TEST(ModelRegistry, RefusesTakenNamesAndFamiliesThatCannotLoad) {
  ModelRegistry registry;
  registry.add(family_of("alpha", {"AlphaForCausalLM"}));
  EXPECT_THROW(registry.add(family_of("alpha", {})), Error);
  EXPECT_THROW(registry.add(family_of("beta", {"AlphaForCausalLM"})), Error);
  EXPECT_THROW(registry.add(family_of("", {})), Error);
  EXPECT_THROW(registry.add({"gamma", {}, nullptr}), Error);
  EXPECT_EQ(registry.names().size(), 1u);
}

}  // namespace
}  // namespace coluber
