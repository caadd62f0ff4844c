// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/hub_pull.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "apps/hub/blob_file.h"
#include "apps/hub/digest.h"
#include "apps/hub/hub_cache.h"
#include "apps/hub/hub_files.h"
#include "apps/hub/hub_repository.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/printable.h"

namespace coluber::hub {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIndex = 256 << 20;
constexpr int kFetches = 2;  // of a file whose contents came wrong

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_on(const char* name) {
  const std::string value = variable(name);
  if (value.empty() || value == "0" || value == "false" || value == "FALSE" || value == "no" || value == "NO" ||
      value == "off" || value == "OFF")
    return false;
  return true;
}

std::string token_of_environment() {
  std::string token = variable("HF_TOKEN");
  if (token.empty()) {
    std::string path = variable("HF_TOKEN_PATH");
    if (path.empty() && !variable("HF_HOME").empty()) path = variable("HF_HOME") + "/token";
    if (path.empty() && !variable("HOME").empty()) path = variable("HOME") + "/.cache/huggingface/token";
    if (!path.empty() && file_exists(path)) token = read_text_file(path, 1 << 16);
  }
  const size_t begin = token.find_first_not_of(" \t\r\n");
  token = begin == std::string::npos ? "" : token.substr(begin, token.find_last_not_of(" \t\r\n") - begin + 1);
  for (const char c : token) {
    if (c <= 0x20 || c >= 0x7f)
      throw Error(ErrorCode::kInvalidArgument,
                  "HF_TOKEN holds white space or other characters that no token has; expected something like hf_...");
  }
  return token;
}

std::string model_path(const HubCache& cache, const std::string& commit, const WeightFiles& weights,
                       std::string_view wanted) {
  const std::string folder = cache.snapshot(commit);
  return wanted.empty() ? folder : folder + "/" + weights.files.front();
}

// The files of one model, fetched in an order that makes a snapshot with weights a whole one.
class Pull {
 public:
  Pull(const HubReference& reference, const HubOptions& options)
      : reference_(reference),
        options_(options),
        cache_(options.cache_folder, reference.repository),
        repository_({options.endpoint, options.token, options.retries, options.cancelled, options.notice}, reference) {}

  HubModel plan() {
    choose();
    return model();
  }

  HubModel run() {
    choose();
    done_ = 0;
    for (const HubFile& file : files_) total_ += std::max<int64_t>(file.bytes, 0);
    for (HubFile& file : files_) get(file);
    cache_.set_commit(reference_, listing_.commit);
    HubModel result = model();
    result.fetched_bytes = fetched_;
    return result;
  }

 private:
  void choose() {
    listing_ = repository_.list();
    const std::vector<std::string> names = listing_.names();
    weights_ = choose_weights(names, reference_.file, reference_.repository);
    // A GGUF file that was asked for by name holds all of its model.
    const bool whole = !reference_.file.empty() && weights_.files.front().ends_with(".gguf");
    if (!whole) add(files_beside_weights(names));
    if (!weights_.index.empty()) {
      HubFile index = known(weights_.index);
      get(index);
      weights_.files = files_of_index(read_text_file(cache_.snapshot(listing_.commit) + "/" + index.name, kMaxIndex),
                                      index.name, names);
      files_.push_back(index);
    }
    add(weights_.files);
  }

  HubFile known(const std::string& name) {
    HubFile file = *listing_.find(name);
    if (file.etag.empty() || file.bytes < 0) repository_.look_up(listing_.commit, file);
    if (!is_name_of_blob(file.etag))
      throw make_error(ErrorCode::kInvalidData, "{} says no checksum or ETag of {} that a file could be kept under",
                       options_.endpoint, printable(name));
    return file;
  }

  void add(const std::vector<std::string>& names) {
    for (const std::string& name : names) files_.push_back(known(name));
  }

  HubModel model() const {
    HubModel result;
    result.path = model_path(cache_, listing_.commit, weights_, reference_.file);
    result.commit = listing_.commit;
    for (const HubFile& file : files_) result.files.push_back({file.name, file.bytes, is_here(file)});
    return result;
  }

  bool is_here(const HubFile& file) const {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(cache_.blob(file.etag), error);
    return !error && (file.bytes < 0 || bytes == static_cast<uintmax_t>(file.bytes));
  }

  void get(const HubFile& file) {
    if (!is_here(file) || (options_.verify && !is_right(file))) {
      const FileLock lock(cache_.lock(file.etag), [this] { return options_.cancelled && options_.cancelled(); });
      if (!is_here(file)) download(file);
    }
    cache_.link(listing_.commit, file.name, file.etag);
    done_ += std::max<int64_t>(file.bytes, 0);
    report(0, file);
  }

  // A blob that is not what its name says is removed.
  bool is_right(const HubFile& file) {
    const std::string found = checksum_of(cache_.blob(file.etag), file.etag, options_.cancelled);
    if (found == file.etag) return true;
    if (options_.notice) options_.notice(fmt::format("{} is damaged in the cache and is fetched again", file.name));
    fs::remove(cache_.blob(file.etag));
    return false;
  }

  void download(const HubFile& file) {
    std::string found;
    for (int fetch = 0; fetch < kFetches; ++fetch) {
      BlobFile blob(cache_.blob(file.etag), file.etag, file.bytes, options_.cancelled);
      if (file.bytes < 0 || blob.size() < file.bytes) {
        const int64_t before = blob.size();
        repository_.fetch(
            listing_.commit, file, [&] { return blob.size(); }, [&](int64_t from) { blob.go_on_from(from); },
            [&](std::string_view bytes) {
              blob.append(bytes);
              report(blob.size(), file);
            });
        fetched_ += std::max<int64_t>(0, blob.size() - before);
      }
      found = blob.finish();
      if (found.empty()) return;
      if (options_.notice) options_.notice(fmt::format("{}: {}; fetching it again", file.name, found));
    }
    throw make_error(ErrorCode::kInvalidData, "{} of {} came wrong {} times: {}", file.name, reference_.repository,
                     kFetches, found);
  }

  void report(int64_t of_file, const HubFile& file) {
    if (options_.progress) options_.progress(done_ + of_file, total_, file.name);
  }

  const HubReference reference_;
  const HubOptions& options_;
  HubCache cache_;
  HubRepository repository_;
  HubListing listing_;
  WeightFiles weights_;
  std::vector<HubFile> files_;
  int64_t total_ = 0, done_ = 0, fetched_ = 0;
};

HubModel from_cache(const HubReference& reference, const HubOptions& options) {
  if (std::optional<std::string> path = cached_model(reference, options.cache_folder)) {
    HubModel model;
    model.path = *path;
    model.commit = HubCache(options.cache_folder, reference.repository).commit_of(reference).value_or("");
    return model;
  }
  throw make_error(ErrorCode::kNotFound,
                   "{} is not in '{}', or not all of it, and HF_HUB_OFFLINE (or --offline) forbids to fetch it",
                   printable(reference.text()), printable(options.cache_folder));
}

}  // namespace

HubOptions hub_options_of_environment() {
  HubOptions options;
  if (std::string endpoint = variable("HF_ENDPOINT"); !endpoint.empty()) {
    if (!endpoint.starts_with("http://") && !endpoint.starts_with("https://"))
      throw make_error(ErrorCode::kInvalidArgument,
                       "HF_ENDPOINT is '{}'; expected an address that begins with https:// or http://",
                       printable(endpoint));
    options.endpoint = std::move(endpoint);
  }
  options.token = token_of_environment();
  options.cache_folder = default_cache_folder();
  options.offline = is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
  return options;
}

HubModel pull(const HubReference& reference, const HubOptions& options) {
  return options.offline ? from_cache(reference, options) : Pull(reference, options).run();
}

HubModel plan_pull(const HubReference& reference, const HubOptions& options) {
  return options.offline ? from_cache(reference, options) : Pull(reference, options).plan();
}

std::optional<std::string> cached_model(const HubReference& reference, const std::string& cache_folder) {
  const HubCache cache(cache_folder, reference.repository);
  const std::optional<std::string> commit = cache.commit_of(reference);
  if (!commit) return std::nullopt;
  const std::vector<std::string> names = cache.files(*commit);
  try {
    WeightFiles weights = choose_weights(names, reference.file, reference.repository);
    if (!weights.index.empty())
      files_of_index(read_text_file(cache.snapshot(*commit) + "/" + weights.index, kMaxIndex), weights.index, names);
    return model_path(cache, *commit, weights, reference.file);
  } catch (const Error&) {  // weights are missing, or some of them
    return std::nullopt;
  }
}

}  // namespace coluber::hub
