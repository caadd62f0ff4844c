// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/http_transfer.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "base/ascii.h"
#include "base/error.h"
#include "base/printable.h"

namespace coluber::hub {
namespace {

constexpr int kMaxRedirects = 10;
constexpr long kConnectSeconds = 15;
constexpr long kStallSeconds = 30;  // without a byte
constexpr size_t kMaxErrorText = 64 << 10;
constexpr size_t kMaxHeaders = 256;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// "https://host:port", whose change ends a token's reach; empty where `url` is no http address.
std::string origin_of(const std::string& url) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (ascii::lower(url.substr(0, scheme.size())) != scheme) continue;
    return ascii::lower(url.substr(0, std::min(url.find_first_of("/?#", scheme.size()), url.size())));
  }
  return {};
}

bool is_secure(const std::string& url) { return ascii::lower(url.substr(0, 8)) == "https://"; }
bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string joined_url(const std::string& base, const std::string& reference) {
  CURLU* handle = curl_url();
  char* whole = nullptr;
  std::string result;
  if (curl_url_set(handle, CURLUPART_URL, base.c_str(), 0) == CURLUE_OK &&
      curl_url_set(handle, CURLUPART_URL, reference.c_str(), CURLU_URLENCODE) == CURLUE_OK &&
      curl_url_get(handle, CURLUPART_URL, &whole, 0) == CURLUE_OK) {
    result = whole;
  }
  curl_free(whole);
  curl_url_cleanup(handle);
  return result;
}

void set_header(HttpReply& reply, std::string name, std::string value) {
  for (auto& [known, old] : reply.headers) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  if (reply.headers.size() < kMaxHeaders) reply.headers.emplace_back(std::move(name), std::move(value));
}

// A file of trusted certificates named by the environment, as other tools read it; null: the system's.
const char* certificates_of_environment() {
  for (const char* name : {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}) {
    if (const char* path = std::getenv(name); path != nullptr && *path != '\0') return path;
  }
  return nullptr;
}

}  // namespace

const std::string* HttpReply::header(std::string_view name) const noexcept {
  for (const auto& [known, value] : headers) {
    if (known == name) return &value;
  }
  return nullptr;
}

struct HttpClient::Impl {
  CURL* curl = nullptr;
  char reason[CURL_ERROR_SIZE] = {};
  std::function<bool()> cancelled;
  // Of the transfer that runs:
  HttpReply* reply = nullptr;
  const std::function<void(const HttpReply&)>* begin = nullptr;
  const std::function<void(std::string_view)>* body = nullptr;
  bool begun = false;
  bool stopped = false;
  std::exception_ptr thrown;  // by the caller's functions: libcurl is C, nothing may pass through it

  static size_t on_header(char* data, size_t size, size_t count, void* self_) noexcept {
    Impl& self = *static_cast<Impl*>(self_);
    const std::string_view line(data, size * count);
    try {
      const size_t colon = line.find(':');
      if (line.starts_with("HTTP/")) {
        const size_t space = line.find(' ');
        self.reply->status = space == std::string_view::npos ? 0 : std::atoi(std::string(line.substr(space)).c_str());
      } else if (colon != std::string_view::npos) {
        set_header(*self.reply, ascii::lower(trimmed(line.substr(0, colon))),
                   std::string(trimmed(line.substr(colon + 1))));
      }
      return size * count;
    } catch (...) {
      self.thrown = std::current_exception();
      return 0;
    }
  }

  static size_t on_body(char* data, size_t size, size_t count, void* self_) noexcept {
    Impl& self = *static_cast<Impl*>(self_);
    const std::string_view bytes(data, size * count);
    try {
      HttpReply& reply = *self.reply;
      if (!reply.ok() || self.body == nullptr) {
        reply.text += bytes.substr(0, kMaxErrorText - std::min(kMaxErrorText, reply.text.size()));
      } else {
        self.begin_once();
        (*self.body)(bytes);
      }
      return bytes.size();
    } catch (...) {
      self.thrown = std::current_exception();
      return 0;
    }
  }

  static int on_progress(void* self_, curl_off_t, curl_off_t, curl_off_t, curl_off_t) noexcept {
    Impl& self = *static_cast<Impl*>(self_);
    self.stopped = self.stopped || (self.cancelled && self.cancelled());
    return self.stopped ? 1 : 0;
  }

  void begin_once() {
    if (begun) return;
    begun = true;
    if (begin != nullptr) (*begin)(*reply);
  }

  void prepare(const HttpRequest& request, const std::string& url, bool with_token) {
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_NOBODY, request.head ? 1L : 0L);
    if (!request.head) curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
    curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(0));
    const std::string range = fmt::format("{}-", request.resume_from);
    curl_easy_setopt(curl, CURLOPT_RANGE, request.resume_from > 0 ? range.c_str() : nullptr);
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, with_token ? CURLAUTH_BEARER : CURLAUTH_NONE);
    curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, with_token ? request.bearer_token.c_str() : nullptr);
  }

  // Of a download before it nothing is left.
  void prepare(const HttpPost& request, const curl_slist* headers) {
    prepare(HttpRequest{}, request.url, false);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.data());
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout_s * 1000.0));
  }

  // One reply, no redirect followed.
  void perform() {
    begun = false;
    thrown = nullptr;
    reason[0] = '\0';
    const CURLcode code = curl_easy_perform(curl);
    if (thrown) std::rethrow_exception(thrown);
    if (stopped) throw Error(ErrorCode::kCancelled, "stopped in mid-transfer");
    if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL)
      throw make_error(ErrorCode::kInvalidArgument, "'{}' is no http address: {}", printable(reply->url), reason);
    if (code == CURLE_OK) return;
    throw TransferFailure{reason[0] != '\0' ? std::string(reason) : std::string(curl_easy_strerror(code)),
                          code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY ||
                              code == CURLE_COULDNT_CONNECT || code == CURLE_PEER_FAILED_VERIFICATION ||
                              code == CURLE_SSL_CACERT_BADFILE};
  }
};

HttpClient::HttpClient(std::string user_agent, std::function<bool()> cancelled) : impl_(std::make_unique<Impl>()) {
  static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);
  impl_->curl = kReady == CURLE_OK ? curl_easy_init() : nullptr;
  if (impl_->curl == nullptr) throw Error(ErrorCode::kInternal, "the library for downloads could not be started");
  impl_->cancelled = std::move(cancelled);
  CURL* curl = impl_->curl;
  curl_easy_setopt(curl, CURLOPT_USERAGENT, user_agent.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L << 10);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, impl_->reason);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Impl::on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, impl_.get());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Impl::on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, impl_.get());
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Impl::on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, impl_.get());
  if (const char* path = certificates_of_environment()) curl_easy_setopt(curl, CURLOPT_CAINFO, path);
}

HttpClient::~HttpClient() {
  if (impl_->curl != nullptr) curl_easy_cleanup(impl_->curl);
}

HttpReply HttpClient::get(const HttpRequest& request, const std::function<void(const HttpReply&)>& begin,
                          const std::function<void(std::string_view)>& body) {
  HttpReply reply;
  reply.url = request.url;
  impl_->reply = &reply;
  impl_->begin = &begin;
  impl_->body = &body;
  const std::string home = origin_of(request.url);
  for (int redirects = 0;; ++redirects) {
    reply.text.clear();
    // Those of a redirect are not those of the file.
    std::erase_if(reply.headers, [](const auto& header) { return header.first.starts_with("content-"); });
    impl_->prepare(request, reply.url, !request.bearer_token.empty() && origin_of(reply.url) == home);
    impl_->perform();
    if (!is_redirect(reply.status)) break;
    const std::string* location = reply.header("location");
    const std::string next = location == nullptr ? std::string() : joined_url(reply.url, *location);
    if (origin_of(next).empty() || (is_secure(reply.url) && !is_secure(next)) || redirects == kMaxRedirects)
      throw make_error(ErrorCode::kInvalidData, "'{}' leads to '{}', which is not followed: expected {}",
                       printable(reply.url), printable(location == nullptr ? "nowhere" : *location),
                       redirects == kMaxRedirects ? fmt::format("at most {} redirects", kMaxRedirects)
                                                  : "an http address, an https one from an https one");
    reply.url = next;
  }
  if (reply.ok()) impl_->begin_once();
  return reply;
}

HttpReply HttpClient::post(const HttpPost& request) {
  HttpReply reply;
  reply.url = request.url;
  impl_->reply = &reply;
  impl_->begin = nullptr;
  impl_->body = nullptr;
  curl_slist* headers = curl_slist_append(nullptr, fmt::format("Content-Type: {}", request.content_type).c_str());
  // Of a large body curl would ask first whether it may come, and wait for the answer.
  headers = curl_slist_append(headers, "Expect:");
  for (const auto& [name, value] : request.headers)
    headers = curl_slist_append(headers, fmt::format("{}: {}", name, value).c_str());
  struct Borrowed {  // the handle forgets what ends with this call
    CURL* curl;
    curl_slist* headers;
    ~Borrowed() {
      curl_easy_setopt(curl, CURLOPT_HTTPHEADER, nullptr);
      curl_easy_setopt(curl, CURLOPT_POSTFIELDS, nullptr);
      curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 0L);
      curl_slist_free_all(headers);
    }
  } borrowed{impl_->curl, headers};
  impl_->prepare(request, headers);
  impl_->perform();
  return reply;
}

std::pair<HttpReply, std::string> HttpClient::text(const HttpRequest& request, size_t max_bytes) {
  std::string text;
  HttpReply reply = get(
      request, [](const HttpReply&) {},
      [&](std::string_view bytes) {
        if (text.size() + bytes.size() > max_bytes)
          throw make_error(ErrorCode::kInvalidData, "'{}' answers with more than the {} MB that were expected",
                           printable(request.url), max_bytes >> 20);
        text += bytes;
      });
  return {std::move(reply), std::move(text)};
}

}  // namespace coluber::hub
