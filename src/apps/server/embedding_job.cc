// SPDX-License-Identifier: Apache-2.0
#include "apps/server/embedding_job.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "apps/server/json_fields.h"

namespace coluber::server {
namespace {

// The first `dimensions` values, made a vector of length one.
std::vector<float> shortened(std::vector<float> values, int64_t dimensions) {
  if (dimensions > 0) values.resize(static_cast<size_t>(dimensions));
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  const double scale = sum > 0.0 ? 1.0 / std::sqrt(sum) : 0.0;
  for (float& value : values) value = static_cast<float>(static_cast<double>(value) * scale);
  return values;
}

// Little-endian float32 in base64, as OpenAI's client asks for by default.
std::string base64_of(const std::vector<float>& values) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t left = std::min<size_t>(3, bytes.size() - at);
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) group = group << 8 | (i < left ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    for (size_t i = 0; i < 4; ++i) text += i <= left ? kLetters[group >> (18 - 6 * i) & 63U] : '=';
  }
  return text;
}

}  // namespace

Result<EmbeddingJob::Wanted> EmbeddingJob::read(JsonFields& fields, const ModelFacts& facts, const Engine& engine) {
  Wanted wanted;
  check_model(fields, facts);
  read_prompts(fields, "input", facts, engine, &wanted.inputs, nullptr);
  std::string format = "float", pooling(pooling_name(wanted.pooling));
  fields.choice("encoding_format", {"float", "base64"}, &format);
  wanted.base64 = format == "base64";
  fields.choice("pooling", {pooling_name(Pooling::kLast), pooling_name(Pooling::kMean)}, &pooling);
  wanted.pooling = *parse_pooling(pooling);
  fields.integer("dimensions", 1, engine.model_info().hidden_size, &wanted.dimensions);
  fields.integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                 &wanted.priority);
  fields.text("cache_salt", &wanted.cache_salt, 256);
  fields.refuse("truncate_prompt_tokens", "inputs are never cut");
  fields.note("user");
  if (auto failure = fields.finish()) return tl::unexpected(std::move(*failure));
  return wanted;
}

std::optional<ApiError> EmbeddingJob::accept(const std::string& body) {
  const Result<Json> json = parse_body(body);
  if (!json) return api_error(json.error());
  JsonFields fields(*json);
  Result<Wanted> parsed = read(fields, serving_.facts, serving_.engine.engine());
  if (!parsed) return api_error(parsed.error());
  const auto wanted = std::make_shared<Wanted>(std::move(*parsed));
  const auto at = RequestTimes::Clock::now();
  std::vector<RequestId> ids = add_all(wanted->inputs.size(), [&](size_t input) { return add(*wanted, input); });
  serving_.http.post([job = self<EmbeddingJob>(), wanted, ids = std::move(ids), at] {
    if (job->trace_) job->trace_->times().added = at;
    job->started(wanted, ids);
  });
  return std::nullopt;
}

RequestId EmbeddingJob::add(const Wanted& wanted, size_t input) {
  Request request;
  request.prompt_ids = wanted.inputs[input];
  request.pooling = wanted.pooling;
  request.priority = wanted.priority;
  request.cache_salt = wanted.cache_salt;
  return serving_.engine.add_request(std::move(request),
                                     [job = self<EmbeddingJob>(), input](const RequestOutput& output) {
                                       job->serving_.http.post([job, input, output] { job->take(input, output); });
                                     });
}

void EmbeddingJob::started(std::shared_ptr<const Wanted> wanted, std::vector<RequestId> ids) {
  if (!take_ids(std::move(ids))) return;
  wanted_ = std::move(wanted);
  embeddings_.resize(wanted_->inputs.size());
  const auto early = std::exchange(early_, {});
  for (const auto& [input, output] : early) take(input, output);
}

void EmbeddingJob::take(size_t input, RequestOutput output) {
  if (done_) return;
  if (!wanted_) {
    early_.emplace_back(input, std::move(output));
    return;
  }
  if (trace_) trace_->times().output(output);
  if (failed(output) || output.finish_reason == FinishReason::kNone) return;
  embeddings_[input] = std::move(output.embedding);
  if (++ended_ == wanted_->inputs.size()) complete();
}

void EmbeddingJob::complete() {
  Json::Array data;
  int64_t tokens = 0;
  for (size_t i = 0; i < embeddings_.size(); ++i) {
    const std::vector<float> values = shortened(std::move(embeddings_[i]), wanted_->dimensions);
    Json::Array numbers;
    if (!wanted_->base64)
      for (const float value : values) numbers.emplace_back(static_cast<double>(value));
    data.push_back(Json::Object{{"object", "embedding"},
                                {"index", static_cast<int64_t>(i)},
                                {"embedding", wanted_->base64 ? Json(base64_of(values)) : Json(std::move(numbers))}});
    tokens += std::ssize(wanted_->inputs[i]);
  }
  const Json answer(Json::Object{{"object", "list"},
                                 {"data", std::move(data)},
                                 {"model", serving_.facts.served_names.front()},
                                 {"usage", Json::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
  respond(200, answer);
  if (trace_) {
    trace_->set("gen_ai.operation.name", "embeddings");
    trace_->set("gen_ai.response.model", serving_.facts.served_names.front());
    trace_->set("gen_ai.usage.input_tokens", tokens);
  }
  finish(200);
}

}  // namespace coluber::server
