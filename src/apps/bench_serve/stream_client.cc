// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_serve/stream_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/error.h"

namespace coluber::bench_serve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLongestPollMs = 100;  // between two looks at Ctrl-C
constexpr size_t kMaxAnswerBytes = size_t{64} << 20;

struct Running {
  CURL* curl = nullptr;
  Transfer transfer;
  std::string body;
  size_t bytes = 0;
  Clock::time_point start;
};

size_t on_body(char* data, size_t size, size_t count, void* running_) noexcept {
  Running& running = *static_cast<Running*>(running_);
  running.bytes += size * count;
  if (running.bytes > kMaxAnswerBytes) return 0;
  try {
    running.transfer.pieces.push_back(
        {std::chrono::duration<double>(Clock::now() - running.start).count(), std::string(data, size * count)});
  } catch (...) {
    return 0;
  }
  return size * count;
}

}  // namespace

std::string Transfer::body() const {
  std::string all;
  for (const Piece& piece : pieces) all += piece.bytes;
  return all;
}

struct StreamClient::Impl {
  std::string base;
  double timeout_s = 0.0;
  Clock::time_point start = Clock::now();
  CURLM* multi = nullptr;
  curl_slist* headers = nullptr;
  std::vector<CURL*> idle;  // used again
  std::map<CURL*, std::unique_ptr<Running>> running;

  double now() const { return std::chrono::duration<double>(Clock::now() - start).count(); }

  void begin(size_t id, std::string_view path, const std::string* body) {
    CURL* curl = idle.empty() ? curl_easy_init() : idle.back();
    if (curl == nullptr) throw Error(ErrorCode::kResourceExhausted, "bench serve: no further request can be made");
    if (!idle.empty()) idle.pop_back();
    auto made = std::make_unique<Running>();
    made->curl = curl;
    made->start = start;
    made->transfer.id = id;
    if (body != nullptr) made->body = *body;
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, (base + std::string(path)).c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_s * 1000.0));
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, made.get());
    if (body != nullptr) {
      curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(made->body.size()));
      curl_easy_setopt(curl, CURLOPT_POSTFIELDS, made->body.c_str());
    }
    made->transfer.begun_s = now();
    curl_multi_add_handle(multi, curl);
    running.emplace(curl, std::move(made));
    int count = 0;
    curl_multi_perform(multi, &count);  // it leaves now, not with the next wait
  }

  std::vector<Transfer> ended() {
    std::vector<Transfer> all;
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* curl = message->easy_handle;
      const CURLcode result = message->data.result;
      const auto found = running.find(curl);
      Transfer transfer = std::move(found->second->transfer);
      transfer.ended_s = now();
      long status = 0;
      curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
      transfer.status = static_cast<int>(status);
      if (result != CURLE_OK) transfer.error = curl_easy_strerror(result);
      curl_multi_remove_handle(multi, curl);
      running.erase(found);
      idle.push_back(curl);
      all.push_back(std::move(transfer));
    }
    return all;
  }

  ~Impl() {
    for (const auto& [curl, transfer] : running) {
      curl_multi_remove_handle(multi, curl);
      curl_easy_cleanup(curl);
    }
    for (CURL* curl : idle) curl_easy_cleanup(curl);
    curl_multi_cleanup(multi);
    curl_slist_free_all(headers);
  }
};

StreamClient::StreamClient(std::string url, const std::string& key, double timeout_s)
    : impl_(std::make_unique<Impl>()) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
  while (url.ends_with("/")) url.pop_back();
  if (!url.ends_with("/v1")) url += "/v1";
  impl_->base = std::move(url);
  impl_->timeout_s = timeout_s;
  impl_->multi = curl_multi_init();
  const auto header = [this](const std::string& line) {
    impl_->headers = curl_slist_append(impl_->headers, line.c_str());
  };
  header("Content-Type: application/json");
  header("Expect:");  // long bodies go at once
  if (!key.empty()) header("Authorization: Bearer " + key);
}

StreamClient::~StreamClient() = default;

double StreamClient::now_s() const { return impl_->now(); }

void StreamClient::post(size_t id, std::string_view path, std::string body) { impl_->begin(id, path, &body); }

std::vector<Transfer> StreamClient::wait(double until_s) {
  for (;;) {
    int count = 0;
    curl_multi_perform(impl_->multi, &count);
    std::vector<Transfer> all = impl_->ended();
    const double left = until_s - impl_->now();
    if (!all.empty() || left <= 0.0) return all;
    curl_multi_poll(impl_->multi, nullptr, 0, static_cast<int>(std::min(left * 1000.0 + 1.0, double{kLongestPollMs})),
                    nullptr);
  }
}

Transfer StreamClient::get(std::string_view path) {
  impl_->begin(0, path, nullptr);
  for (;;) {
    std::vector<Transfer> all = wait(now_s() + 1.0);
    if (!all.empty()) return std::move(all.front());
  }
}

}  // namespace coluber::bench_serve
