// SPDX-License-Identifier: Apache-2.0
//
// One HTTP request at a time, for downloads and for what is handed to a collector. Redirects of downloads are followed
// here, so that a token never leaves the host it was meant for and no https address leads to a plain one; what is
// posted goes nowhere else. Proxies are those of the environment (https_proxy, no_proxy, ...). What a status means is
// the caller's; not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coluber::hub {

struct HttpRequest {
  std::string url;
  std::string bearer_token;  // sent to the host of `url` alone; empty: none
  bool head = false;         // headers only
  int64_t resume_from = 0;   // bytes that are there already: asks for the rest
};

struct HttpPost {
  std::string url;
  std::string_view content_type;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string_view body;
  double timeout_s = 0.0;  // for all of it; 0: as long as bytes move
};

struct HttpReply {
  int status = 0;
  std::vector<std::pair<std::string, std::string>>
      headers;       // names in lower case; of all replies on the way, last wins
  std::string url;   // that answered, after redirects
  std::string text;  // of a reply that is no success, or to a post: its first 64 KiB
  const std::string* header(std::string_view name) const noexcept;
  bool ok() const noexcept { return status >= 200 && status < 300; }
};

// The connection failed, stalled or ended early: trying again may help.
struct TransferFailure {
  std::string reason;
  bool unreachable = false;  // there was not even a connection
};

class HttpClient {
 public:
  // `cancelled` is asked several times a second; a transfer then ends with Error(kCancelled).
  HttpClient(std::string user_agent, std::function<bool()> cancelled);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // `begin` sees a successful reply's status and headers before its body; `body` gets the bytes in order. Either may
  // throw, which ends the transfer. Throws TransferFailure; Error(kInvalidData) for redirects that lead nowhere or to
  // where they must not; Error(kInvalidArgument) for an address that is none.
  HttpReply get(const HttpRequest& request, const std::function<void(const HttpReply&)>& begin,
                const std::function<void(std::string_view)>& body);
  // The whole body of a successful reply as text, at most `max_bytes`.
  std::pair<HttpReply, std::string> text(const HttpRequest& request, size_t max_bytes);
  // Throws TransferFailure; Error(kInvalidArgument) for an address that is none.
  HttpReply post(const HttpPost& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber::hub
