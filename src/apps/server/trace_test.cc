// SPDX-License-Identifier: Apache-2.0
#include "apps/server/trace.h"

#include <gtest/gtest.h>

#include <set>

namespace coluber::server {
namespace {

const std::string kTraceId = "4bf92f3577b34da6a3ce929d0e0e4736", kParentId = "00f067aa0ba902b7";

TEST(TraceParent, IsReadAsTheStandardSays) {
  const auto sampled = parse_traceparent("00-" + kTraceId + "-" + kParentId + "-01");
  ASSERT_TRUE(sampled);
  EXPECT_EQ(sampled->trace_id, kTraceId);
  EXPECT_EQ(sampled->parent_id, kParentId);
  EXPECT_TRUE(sampled->sampled);
  // Of the flags one bit alone counts, and later versions may say more.
  EXPECT_FALSE(parse_traceparent("00-" + kTraceId + "-" + kParentId + "-fe")->sampled);
  EXPECT_TRUE(parse_traceparent("cc-" + kTraceId + "-" + kParentId + "-03-more")->sampled);
}

TEST(TraceParent, WhatIsNoneIsNone) {
  const std::string rest = "-" + kParentId + "-01";
  for (const std::string& wrong :
       {std::string(), std::string("00"), "00-" + kTraceId, "ff-" + kTraceId + rest, "0g-" + kTraceId + rest,
        "00-" + std::string(32, '0') + rest, "00-" + kTraceId + "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736" + rest, "00-" + kTraceId + rest + "-more", "00-" + kTraceId + rest + "x",
        "cc-" + kTraceId + rest + "x", "00_" + kTraceId + rest, "00-" + kTraceId + "-" + kParentId + "_01",
        "00-" + kTraceId + "-" + kParentId + "-0x", std::string(4096, 'a'), "00-" + kTraceId.substr(1) + rest})
    EXPECT_FALSE(parse_traceparent(wrong)) << wrong;
}

TEST(TraceIds, AreHexadecimalAndNeverTheSame) {
  TraceIds ids;
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string trace = ids.trace_id(), span = ids.span_id();
    EXPECT_TRUE(parse_traceparent(fmt::format("00-{}-{}-01", trace, span))) << trace << ' ' << span;
    EXPECT_TRUE(seen.insert(trace).second);
    EXPECT_TRUE(seen.insert(span).second);
  }
  EXPECT_NE(TraceIds().trace_id(), TraceIds().trace_id());
}

TEST(OtlpJson, HasTheShapeOfAnExportTraceServiceRequest) {
  Span whole{"POST /v1/completions", "0000000000000001", kParentId, Span::Kind::kServer, 1, 3};
  whole.attributes = {{"text", "x"}, {"count", 7}, {"share", 0.5}, {"is", true}, {"list", Json::Array{Json("stop")}}};
  whole.failed = true;
  const Span part{"queue", "0000000000000002", whole.id, Span::Kind::kInternal, 1, 2};
  const Json json = otlp_json({Trace{kTraceId, "vendor=1", true, {whole, part}}}, {{"service.name", "coluber"}});
  const Json& resource = json.at("resourceSpans").as_array().at(0);
  EXPECT_EQ(resource.at("resource").dump(),
            R"({"attributes":[{"key":"service.name","value":{"stringValue":"coluber"}}]})");
  const auto& spans = resource.at("scopeSpans").as_array().at(0).at("spans").as_array();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].dump(),
            R"({"traceId":")" + kTraceId + R"(","spanId":"0000000000000001","traceState":"vendor=1","parentSpanId":")" +
                kParentId +
                R"(","flags":769,"name":"POST /v1/completions","kind":2,"startTimeUnixNano":"1","endTimeUnixNano":"3",)"
                R"("attributes":[{"key":"text","value":{"stringValue":"x"}},{"key":"count","value":{"intValue":"7"}},)"
                R"({"key":"share","value":{"doubleValue":0.5}},{"key":"is","value":{"boolValue":true}},)"
                R"({"key":"list","value":{"arrayValue":{"values":[{"stringValue":"stop"}]}}}],"status":{"code":2}})");
  EXPECT_EQ(spans[1].at("parentSpanId").as_string(), whole.id);
  EXPECT_EQ(spans[1].at("flags").as_int(), 257);
  EXPECT_EQ(spans[1].find("status"), nullptr);
}

TEST(KeyValues, AreReadAsTheVariablesOfOpenTelemetryHaveThem) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(parse_key_values("", "V"), Pairs());
  EXPECT_EQ(parse_key_values("a=1, authorization = Bearer%20x%3D ,,c=%zz", "V"),
            (Pairs{{"a", "1"}, {"authorization", "Bearer x="}, {"c", "%zz"}}));
  for (const char* wrong : {"a", "=1", "a=1,b", "a=x%0d%0aInjected: 1"}) {
    try {
      parse_key_values(wrong, "OTEL_X");
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("OTEL_X"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace coluber::server
