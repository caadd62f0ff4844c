// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/hub_repository.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <thread>

#include "apps/hub/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"

namespace coluber::hub {
namespace {

constexpr size_t kMaxListing = 64 << 20;
constexpr double kFirstWait = 0.5, kLongestWait = 30.0, kLongestAskedWait = 300.0;  // seconds
constexpr int kUnauthorized = 401, kForbidden = 403, kNotFound = 404, kTooMany = 429, kBadRange = 416;

bool may_pass(int status) { return status == 408 || status == kTooMany || status >= 500; }

std::string unquoted(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

int64_t number_or(const std::string* text, int64_t otherwise) {
  int64_t value = 0;
  if (text == nullptr) return otherwise;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  return error == std::errc() && end == text->data() + text->size() && value >= 0 ? value : otherwise;
}

// "bytes 100-199/200"
struct ContentRange {
  int64_t from = -1;
  int64_t total = -1;
};

ContentRange content_range(const std::string* text) {
  ContentRange range;
  if (text == nullptr || !text->starts_with("bytes ")) return range;
  const size_t dash = text->find('-'), slash = text->find('/');
  if (dash == std::string::npos || slash == std::string::npos || slash < dash) return range;
  const std::string from = text->substr(6, dash - 6), total = text->substr(slash + 1);
  range.from = number_or(&from, -1);
  range.total = number_or(&total, -1);
  return range;
}

std::string said_by(const HttpReply& reply) {
  if (const std::string* message = reply.header("x-error-message")) return ": " + printable(message->substr(0, 300));
  return {};
}

HubFile file_of(const Json& sibling) {
  HubFile file;
  file.name = sibling.at("rfilename").as_string();
  if (const Json* size = sibling.find("size"); size != nullptr && size->is_int()) file.bytes = size->as_int();
  const Json* lfs = sibling.find("lfs");
  const Json* sum = lfs != nullptr && lfs->is_object() ? lfs->find("sha256") : sibling.find("blobId");
  if (sum != nullptr && sum->is_string() && Digest::knows(sum->as_string())) file.etag = sum->as_string();
  return file;
}

// Names come from the hub and become paths.
bool is_safe(const HubFile& file, const std::string& repository) {
  try {
    return parse_hub_reference(repository + ":" + file.name).has_value();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

const HubFile* HubListing::find(std::string_view name) const noexcept {
  for (const HubFile& file : files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

std::vector<std::string> HubListing::names() const {
  std::vector<std::string> result;
  for (const HubFile& file : files) result.push_back(file.name);
  return result;
}

HubRepository::HubRepository(HubConnection connection, HubReference reference)
    : connection_(std::move(connection)),
      reference_(std::move(reference)),
      client_("coluber/" COLUBER_VERSION, connection_.cancelled) {
  while (connection_.endpoint.ends_with('/')) connection_.endpoint.pop_back();
}

HttpRequest HubRepository::request(std::string url) const {
  HttpRequest request;
  request.url = std::move(url);
  request.bearer_token = connection_.token;
  return request;
}

std::string HubRepository::file_url(const std::string& commit, const std::string& name) const {
  return fmt::format("{}/{}/resolve/{}/{}", connection_.endpoint, reference_.repository, commit,
                     url_escaped(name, true));
}

void HubRepository::refuse(const HttpReply& reply, std::string_view what) const {
  const std::string* code = reply.header("x-error-code");
  const std::string kind = code == nullptr ? std::string() : *code;
  const std::string& repository = reference_.repository;
  if (kind == "GatedRepo" || reply.status == kForbidden)
    throw make_error(ErrorCode::kNotFound,
                     "{} gives its files only to who was let in: ask at {}/{} and set HF_TOKEN to a token of that "
                     "account{}",
                     repository, connection_.endpoint, repository, said_by(reply));
  if (kind == "RevisionNotFound")
    throw make_error(ErrorCode::kNotFound, "{} has no revision '{}': expected a branch, a tag or a commit", repository,
                     printable(reference_.revision));
  if (reply.status == kUnauthorized)
    throw make_error(ErrorCode::kNotFound, "{} has no repository {} for {}{}", connection_.endpoint, repository,
                     connection_.token.empty() ? "who has no token; check the name, or set HF_TOKEN"
                                               : "the token of HF_TOKEN; check the name and the token",
                     said_by(reply));
  if (reply.status == kNotFound)
    throw make_error(ErrorCode::kNotFound, "{} of {} at '{}' is not there ({} says 404){}", what, repository,
                     printable(reference_.revision), connection_.endpoint, said_by(reply));
  throw make_error(ErrorCode::kIo, "{} of {}: '{}' answers with status {}{}", what, repository, printable(reply.url),
                   reply.status, said_by(reply));
}

void HubRepository::wait(double seconds, std::string_view what, std::string_view reason) {
  if (connection_.notice)
    connection_.notice(fmt::format("{}: {}; trying again in {:.0f} s", what, reason, std::ceil(seconds)));
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    if (connection_.cancelled && connection_.cancelled())
      throw Error(ErrorCode::kCancelled, "stopped while waiting for the hub");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void HubRepository::with_retries(std::string_view what, const std::function<int64_t()>& have,
                                 const std::function<HttpReply()>& attempt) {
  double pause = kFirstWait;
  for (int failures = 0;;) {
    const int64_t before = have();
    std::string reason;
    double asked = 0;
    try {
      const HttpReply reply = attempt();
      reached_ = true;
      if (reply.ok()) return;
      if (!may_pass(reply.status)) refuse(reply, what);
      reason = fmt::format("'{}' answers with status {}{}", printable(reply.url), reply.status, said_by(reply));
      asked = static_cast<double>(number_or(reply.header("retry-after"), 0));
    } catch (const TransferFailure& failure) {
      reason = printable(failure.reason);
      // A mistyped address or a machine without a network: waiting mends neither.
      if (failure.unreachable && !reached_)
        throw make_error(ErrorCode::kIo, "cannot reach {} for {}: {}", connection_.endpoint, reference_.repository,
                         reason);
    }
    if (have() > before) {
      failures = 0;
      pause = kFirstWait;
    }
    if (++failures > connection_.retries || asked > kLongestAskedWait)
      throw make_error(ErrorCode::kIo,
                       "{} of {} could not be fetched: {}{}; what has come is kept, so the next try goes on", what,
                       reference_.repository, reason,
                       asked > kLongestAskedWait ? fmt::format(" and asks to wait {:.0f} s", asked)
                                                 : fmt::format(" ({} tries)", failures));
    wait(std::max(pause, asked), what, reason);
    pause = std::min(2 * pause, kLongestWait);
  }
}

HubListing HubRepository::list() {
  const std::string url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", connection_.endpoint,
                                      reference_.repository, url_escaped(reference_.revision, false));
  std::string text;
  with_retries(
      "the list of files", [] { return 0; },
      [&] {
        auto [reply, body] = client_.text(request(url), kMaxListing);
        text = std::move(body);
        return reply;
      });
  HubListing listing;
  try {
    const Json parsed = value_or_throw(parse_json(text, url));
    listing.commit = parsed.at("sha").as_string();
    for (const Json& sibling : parsed.at("siblings").as_array()) listing.files.push_back(file_of(sibling));
  } catch (const Error& error) {
    throw make_error(ErrorCode::kInvalidData, "'{}' does not answer as a hub does: {}", url, printable(error.what()));
  }
  HubReference commit;
  commit.revision = listing.commit;
  if (!commit.is_commit())
    throw make_error(ErrorCode::kInvalidData, "'{}' says its commit is '{}'; expected 40 hexadecimal digits", url,
                     printable(listing.commit));
  std::erase_if(listing.files, [&](const HubFile& file) { return !is_safe(file, reference_.repository); });
  return listing;
}

void HubRepository::look_up(const std::string& commit, HubFile& file) {
  HttpRequest head = request(file_url(commit, file.name));
  head.head = true;
  with_retries(
      file.name, [] { return 0; },
      [&] {
        const HttpReply reply = client_.get(head, [](const HttpReply&) {}, [](std::string_view) {});
        if (!reply.ok()) return reply;
        file.bytes = number_or(reply.header("x-linked-size"), number_or(reply.header("content-length"), -1));
        const std::string* etag = reply.header("x-linked-etag");
        if (etag == nullptr) etag = reply.header("etag");
        if (etag != nullptr) file.etag = unquoted(*etag);
        return reply;
      });
}

int64_t HubRepository::fetch(const std::string& commit, const HubFile& file, const std::function<int64_t()>& have,
                             const std::function<void(int64_t from)>& begin,
                             const std::function<void(std::string_view)>& body) {
  int64_t total = -1;
  with_retries(file.name, have, [&] {
    HttpRequest get = request(file_url(commit, file.name));
    get.resume_from = have();
    const auto on_begin = [&](const HttpReply& reply) {
      const ContentRange range = content_range(reply.header("content-range"));
      const bool partial = reply.status == 206;
      if (partial && range.from != get.resume_from)
        throw TransferFailure{fmt::format("asked for the bytes from {} on, the server sends others", get.resume_from)};
      total = partial ? range.total : number_or(reply.header("content-length"), -1);
      begin(partial ? get.resume_from : 0);
    };
    HttpReply reply = client_.get(get, on_begin, body);
    // What is here is more than the file has: it is of another one.
    if (reply.status == kBadRange && get.resume_from > 0) {
      begin(0);
      throw TransferFailure{"the server does not have the rest of what was begun"};
    }
    if (reply.ok() && total >= 0 && have() < total)
      throw TransferFailure{fmt::format("{} bytes came of {}", have(), total)};
    return reply;
  });
  return have();
}

}  // namespace coluber::hub
