// SPDX-License-Identifier: Apache-2.0
// Flags of flash-linear-attention that no checkpoint of tests/data has: the logits are those that its modelling code
// gives (tests/data/fla).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model_copy.h"

namespace coluber {
namespace {

TEST(FlaFlags, GiveTheLogitsOfThePublishedCode) {
  const std::string root = std::string(COLUBER_SOURCE_DIR) + "/tests/data/";
  const Json cases = read_json_file(root + "fla/fla.json");
  for (const Json& expected : cases.as_array()) {
    const std::string checkpoint = expected.at("checkpoint").as_string();
    SCOPED_TRACE(checkpoint + " with " + expected.at("changes").dump());
    ModelCopy copy(checkpoint);
    for (const auto& [key, value] : expected.at("changes").as_object()) copy.config().set(key, value);
    copy.write_all();
    const auto engine = Engine::load(copy.options());
    const auto session = engine->open_session();
    const FileWeights golden(root + checkpoint + "/golden.safetensors");
    const TensorView ids = golden.get("input_ids.17");
    const int64_t* first = ids.as<int64_t>();
    for (int64_t chunk : {17, 5, 1}) {
      session->reset();
      session->extend(std::vector<int32_t>(first, first + 17), chunk);
      const std::span<const float> got = session->last_logits();
      const Json::Array& want = expected.at("logits").as_array();
      ASSERT_EQ(got.size(), want.size());
      double worst = 0;
      for (size_t i = 0; i < want.size(); ++i)
        worst = std::max(worst, std::isfinite(got[i]) ? std::fabs(got[i] - want[i].as_double()) : INFINITY);
      EXPECT_LE(worst, 1e-4) << "chunks of " << chunk;
    }
  }
  EXPECT_GE(cases.as_array().size(), 11u);
}

}  // namespace
}  // namespace coluber
