// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "apps/hub/hub_pull.h"
#include "base/error.h"
#include "base/printable.h"

namespace coluber::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostRetries = 1000;

struct PullFlags {
  std::string model, cache_dir;
  bool offline = false, verify = false, dry_run = false, json = false;
  int64_t retries = hub::HubOptions{}.retries;
};

void declare(Arguments& arguments, PullFlags& flags) {
  arguments.positional("MODEL", &flags.model,
                       "org/name, org/name@revision, or org/name:file for one of many GGUF files", true);
  arguments.section("How to fetch");
  arguments.text("--cache-dir", &flags.cache_dir, "DIR",
                 "keep downloads there instead of in HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub");
  arguments.flag("--dry-run", &flags.dry_run, "say which files the model needs and which are there; fetch no weights");
  arguments.flag("--verify", &flags.verify,
                 "check the contents of files that are there already; fetch damaged ones anew");
  arguments.flag("--offline", &flags.offline, "fetch nothing: say where the model is, or fail (as HF_HUB_OFFLINE=1)");
  arguments.integer("--retries", &flags.retries, {0, kMostRetries},
                    "how often to try again in a row when nothing came");
  arguments.flag("--json", &flags.json, "the result as one line of JSON");
  arguments.example("coluber pull state-spaces/mamba2-130m", "what the model needs, no weights twice");
  arguments.example("coluber pull org/model-GGUF:Q4_K_M", "one file of a repository with many");
  arguments.example("coluber serve org/model", "serve, run and the others fetch by themselves what is not there yet");
  arguments.footnote(
      "The cache is that of Hugging Face's own tools: what they fetched is found, and they find this. A download that "
      "is "
      "cut goes on where it ended; contents are checked against the hub's checksums. Read from the environment: "
      "HF_TOKEN "
      "(for repositories that are not open to all), HF_ENDPOINT (another hub), HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, "
      "https_proxy, no_proxy, CURL_CA_BUNDLE.");
}

std::string amount(int64_t bytes) {
  if (bytes < 0) return "?";
  return bytes < 10'000'000 ? fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6)
                            : fmt::format("{:.0f} MB", static_cast<double>(bytes) / 1e6);
}

int64_t total_of(const hub::HubModel& model) {
  int64_t total = 0;
  for (const hub::HubFileState& file : model.files) total += std::max<int64_t>(file.bytes, 0);
  return total;
}

Json to_json(const hub::HubModel& model) {
  Json result;
  result.set("path", model.path);
  result.set("commit", model.commit);
  result.set("fetched_bytes", model.fetched_bytes);
  Json::Array files;
  for (const hub::HubFileState& file : model.files) {
    Json entry;
    entry.set("name", file.name);
    entry.set("bytes", file.bytes < 0 ? Json() : Json(file.bytes));
    entry.set("here", file.here);
    files.push_back(std::move(entry));
  }
  result.set("files", std::move(files));
  return result;
}

hub::HubModel pull_with_progress(const hub::HubReference& reference, hub::HubOptions options) {
  ProgressBar bar("pulling " + reference.repository, "B");
  options.progress = [&bar](int64_t done, int64_t total, std::string_view file) {
    bar.update(done, total, "  " + printable(file));
  };
  options.cancelled = interrupted;
  options.notice = [&bar](std::string_view text) {
    bar.finish();
    notice(text);
  };
  return hub::pull(reference, options);
}

}  // namespace

std::optional<std::string> find_on_hub(const std::string& name) {
  std::error_code error;
  if (fs::exists(name, error)) return std::nullopt;
  const std::optional<hub::HubReference> reference = hub::parse_hub_reference(name);
  if (!reference) return std::nullopt;
  // "models/mistyped" beside a folder "models" was meant as a path.
  const std::string parent = reference->repository.substr(0, reference->repository.find('/'));
  if (fs::exists(parent, error)) return std::nullopt;
  const hub::HubOptions options = hub::hub_options_of_environment();
  if (std::optional<std::string> path = hub::cached_model(*reference, options.cache_folder)) return path;
  if (!options.offline)
    notice(fmt::format("there is no '{}' here; looking for it at {}", reference->text(), options.endpoint));
  return pull_with_progress(*reference, options).path;
}

int pull_command(const std::vector<std::string>& args) {
  Arguments arguments("pull",
                      "Fetches what a model needs from a hub (Hugging Face's, or that of HF_ENDPOINT) into the cache, "
                      "and says where it is.");
  PullFlags flags;
  declare(arguments, flags);
  if (!arguments.parse(args)) return 0;
  const std::optional<hub::HubReference> reference = hub::parse_hub_reference(flags.model);
  if (!reference)
    throw make_error(ErrorCode::kInvalidArgument,
                     "pull: '{}' is no model on a hub; expected org/name, org/name@revision or org/name:file",
                     printable(flags.model));
  hub::HubOptions options = hub::hub_options_of_environment();
  if (!flags.cache_dir.empty()) options.cache_folder = flags.cache_dir;
  options.offline = options.offline || flags.offline;
  options.verify = flags.verify;
  options.retries = static_cast<int>(flags.retries);
  options.cancelled = interrupted;
  options.notice = [](std::string_view text) { notice(text); };
  const hub::HubModel model =
      flags.dry_run ? hub::plan_pull(*reference, options) : pull_with_progress(*reference, options);
  if (flags.json) {
    output().write(json_line(to_json(model)));
    return 0;
  }
  if (flags.dry_run) {
    for (const hub::HubFileState& file : model.files)
      output().print("{:>12}  {:<10}{}\n", amount(file.bytes), file.here ? "here" : "to fetch", printable(file.name));
    output().print("{:>12}  in {} file{}\n", amount(total_of(model)), model.files.size(),
                   model.files.size() == 1 ? "" : "s");
    return 0;
  }
  if (!model.files.empty())
    notice(fmt::format("{}: {} files, {}, of which {} came now", reference->text(), model.files.size(),
                       amount(total_of(model)), amount(model.fetched_bytes)));
  output().print("{}\n", model.path);
  return 0;
}

}  // namespace coluber::cli
