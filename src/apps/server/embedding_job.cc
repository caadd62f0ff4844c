// SPDX-License-Identifier: Apache-2.0
#include "apps/server/embedding_job.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "apps/server/json_fields.h"
#include "base/log.h"

namespace coluber::server {
namespace {

constexpr int kClientGone = 499;

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

EmbeddingJob::EmbeddingJob(Serving& serving, std::shared_ptr<HttpStream> stream, HttpHeaders headers, OnDone on_done)
    : serving_(serving), stream_(std::move(stream)), headers_(std::move(headers)), on_done_(std::move(on_done)) {}

void EmbeddingJob::begin(std::string body) {
  stream_->on_close([self = shared_from_this()] {
    if (self->done_) return;
    self->cancelled_ = true;
    self->abort_requests();
    self->finish(kClientGone);
  });
  serving_.workers.push([self = shared_from_this(), body = std::move(body)] { self->prepare(body); });
}

Result<EmbeddingJob::Wanted> EmbeddingJob::parse(const std::string& body) const {
  const Result<Json> json = parse_body(body);
  if (!json) return tl::unexpected(json.error());
  JsonFields fields(*json);
  Wanted wanted;
  check_model(fields, serving_.facts);
  const Engine& engine = serving_.engine.engine();
  read_prompts(fields, "input", serving_.facts, engine, &wanted.inputs, nullptr);
  std::string format = "float", pooling(pooling_name(wanted.pooling));
  fields.text("encoding_format", &format, 16);
  if (format != "float" && format != "base64")
    fields.problem("encoding_format", "'encoding_format' must be \"float\" or \"base64\"");
  wanted.base64 = format == "base64";
  fields.text("pooling", &pooling, 16);
  const auto known = parse_pooling(pooling);
  if (!known || *known == Pooling::kNone) fields.problem("pooling", "'pooling' must be \"last\" or \"mean\"");
  wanted.pooling = known.value_or(Pooling::kLast);
  fields.integer("dimensions", 1, engine.model_info().hidden_size, &wanted.dimensions);
  fields.integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                 &wanted.priority);
  fields.text("cache_salt", &wanted.cache_salt, 256);
  fields.refuse("truncate_prompt_tokens", "inputs are never cut");
  fields.note("user");
  if (auto failure = fields.finish()) return tl::unexpected(std::move(*failure));
  return wanted;
}

void EmbeddingJob::prepare(const std::string& body) {
  if (cancelled_) return;
  Failure failure;
  try {
    Result<Wanted> parsed = parse(body);
    if (parsed) return submit(std::make_shared<Wanted>(std::move(*parsed)));
    failure = std::move(parsed.error());
  } catch (const Error& error) {
    failure = {error.code(), error.what(), {}};
  } catch (const std::exception& error) {
    log_warn("a request could not be prepared: {}", error.what());
    failure = {ErrorCode::kInternal, "internal error", {}};
  }
  serving_.http.post([self = shared_from_this(), error = api_error(failure)] { self->end_with(error); });
}

void EmbeddingJob::submit(std::shared_ptr<Wanted> wanted) {
  std::vector<RequestId> ids;
  try {
    for (size_t input = 0; input < wanted->inputs.size() && !cancelled_; ++input) {
      Request request;
      request.prompt_ids = wanted->inputs[input];
      request.pooling = wanted->pooling;
      request.priority = wanted->priority;
      request.cache_salt = wanted->cache_salt;
      ids.push_back(serving_.engine.add_request(
          std::move(request), [self = shared_from_this(), input](const RequestOutput& output) {
            self->serving_.http.post([self, input, output] { self->take(input, output); });
          }));
    }
  } catch (...) {
    for (const RequestId id : ids) serving_.engine.abort(id);
    throw;
  }
  serving_.http.post([self = shared_from_this(), wanted, ids = std::move(ids)] {
    self->ids_ = ids;
    if (self->done_) return self->abort_requests();
    self->wanted_ = wanted;
    self->embeddings_.resize(wanted->inputs.size());
    const auto early = std::exchange(self->early_, {});
    for (const auto& [input, output] : early) self->take(input, output);
  });
}

void EmbeddingJob::take(size_t input, RequestOutput output) {
  if (done_) return;
  if (!wanted_) {
    early_.emplace_back(input, std::move(output));
    return;
  }
  if (output.finish_reason == FinishReason::kError)
    return end_with(api_error(Failure{output.error_code, output.error, {}}));
  if (output.finish_reason == FinishReason::kAbort)
    return end_with(api_error(503, "the request was stopped by the server", "cancelled"));
  if (output.finish_reason == FinishReason::kNone) return;
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
  HttpHeaders headers = headers_;
  headers.emplace_back("Content-Type", "application/json");
  const Json answer(Json::Object{{"object", "list"},
                                 {"data", std::move(data)},
                                 {"model", serving_.facts.served_names.front()},
                                 {"usage", Json::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
  stream_->respond(200, headers, answer.dump());
  finish(200);
}

void EmbeddingJob::end_with(const ApiError& error) {
  if (done_) return;
  cancelled_ = true;
  abort_requests();
  HttpHeaders headers = headers_;
  headers.emplace_back("Content-Type", "application/json");
  stream_->respond(error.status, headers, error.json().dump());
  finish(error.status);
}

void EmbeddingJob::abort_requests() {
  if (ids_.empty()) return;
  serving_.workers.push_urgent([&engine = serving_.engine, ids = std::move(ids_)] {
    for (const RequestId id : ids) engine.abort(id);
  });
  ids_.clear();
}

void EmbeddingJob::finish(int status) {
  done_ = true;
  early_.clear();
  stream_->on_close(nullptr);
  if (const OnDone done = std::move(on_done_)) done(status);
}

}  // namespace coluber::server
