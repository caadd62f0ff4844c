// SPDX-License-Identifier: Apache-2.0
#include "models/hybrid_fields.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace coluber {
namespace {

AttentionConfig read(const std::string& config, int64_t default_kv_heads, int64_t default_head_dim = 0) {
  const Json json = parse_config(config, "config.json");
  ConfigFields fields(json, "config.json");
  const AttentionConfig attention = read_attention_fields(fields, 60, default_kv_heads, default_head_dim);
  fields.finish();
  return attention;
}

TEST(HybridFields, NoKeyValueHeadsMeansTheFamilysDefaultAndNullMeansAsManyAsHeads) {
  EXPECT_EQ(read(R"({"num_attention_heads": 4})", 2).num_kv_heads, 2);
  EXPECT_EQ(read(R"({"num_attention_heads": 4, "num_key_value_heads": null})", 2).num_kv_heads, 4);
  EXPECT_EQ(read(R"({"num_attention_heads": 4, "num_key_value_heads": 1})", 2).num_kv_heads, 1);
  EXPECT_EQ(read(R"({"num_attention_heads": 4})", 0).num_kv_heads, 4);
  EXPECT_THROW(read(R"({"num_attention_heads": 4})", 8), Error);
}

TEST(HybridFields, AHeadHasItsShareOfTheWidthOrTheFamilysDefault) {
  EXPECT_EQ(read(R"({"num_attention_heads": 4})", 0).head_dim, 15);
  EXPECT_EQ(read(R"({"num_attention_heads": 4})", 0, 128).head_dim, 128);
  EXPECT_EQ(read(R"({"num_attention_heads": 4, "head_dim": 20})", 0, 128).head_dim, 20);
  EXPECT_THROW(read(R"({"num_attention_heads": 8})", 0), Error);
  EXPECT_EQ(read(R"({"num_attention_heads": 8})", 0, 128).head_dim, 128);
}

}  // namespace
}  // namespace coluber
