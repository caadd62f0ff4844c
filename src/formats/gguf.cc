// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace coluber {
namespace {

// "12" of "12.attn_q.weight"; -1 where there is no number.
int64_t layer_number(std::string_view text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

}  // namespace

bool is_gguf_file(std::string_view name) noexcept { return name.ends_with(".gguf"); }

bool is_first_gguf_file(std::string_view name) noexcept {
  constexpr std::string_view kFirst = "-00001-of-00001.gguf";
  if (!is_gguf_file(name) || name.size() < kFirst.size()) return is_gguf_file(name);
  const std::string_view tail = name.substr(name.size() - kFirst.size());
  const bool is_split = tail[0] == '-' && tail.substr(6, 4) == "-of-" && tail.find_first_not_of("0123456789", 1) == 6 &&
                        tail.find_first_not_of("0123456789", 10) == 15;
  return !is_split || tail.substr(0, 6) == kFirst.substr(0, 6);
}

GgufWeights::GgufWeights(const std::string& path, ThreadPool* pool)
    : file_(path), architecture_(&gguf_architecture(file_)), sizes_(gguf_sizes(file_)), pool_(pool) {
  Sources sources;
  for (const GgufTensor& tensor : file_.tensors()) add(tensor, sources);
  for (auto& [name, parts] : sources) {
    // As the rules stand, whatever the order in the file.
    std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.rule < b.rule; });
    check_sources(name, parts);
    plans_.emplace(name, GgufTensorPlan(std::move(parts), sizes_, file_.path()));
  }
}

// A tensor that no rule names keeps its name, so that `inspect` tells of it.
void GgufWeights::add(const GgufTensor& tensor, Sources& sources) const {
  constexpr std::string_view kLayer = "blk.", kScale = ".scale";
  const std::string_view name = tensor.name;
  if (name.ends_with(kScale))
    throw make_error(ErrorCode::kUnsupported,
                     "{}: tensor '{}' is a scale of another tensor (NVFP4), which is not read; quantise the model to "
                     "another type",
                     file_.path(), tensor.name);
  const size_t dot = name.starts_with(kLayer) ? name.find('.', kLayer.size()) : std::string_view::npos;
  if (dot == std::string_view::npos) {
    add_by_rules(tensor, name, {}, sources);
    return;
  }
  const std::string_view layer = name.substr(kLayer.size(), dot - kLayer.size());
  if (layer_number(layer) >= sizes_.num_layers) {
    sources["mtp.layers." + std::string(name.substr(kLayer.size()))].push_back({&tensor});
  } else {
    add_by_rules(tensor, name.substr(dot + 1), layer, sources);
  }
}

// `layer`: its number, or empty.
void GgufWeights::add_by_rules(const GgufTensor& tensor, std::string_view stored, std::string_view layer,
                               Sources& sources) const {
  const auto& rules = layer.empty() ? architecture_->whole : architecture_->layer;
  const int64_t number = layer.empty() ? 0 : layer_number(layer);
  bool known = false;
  for (const GgufTensorRule& rule : rules) {
    if (rule.stored != stored) continue;
    known = true;
    if (!rule.beside.empty() && file_.find(fmt::format("blk.{}.{}", layer, rule.beside)) == nullptr) continue;
    if (rule.name.empty() || (rule.not_in_first_layer && number == 0)) continue;
    const std::string prefix = layer.empty() ? "" : fmt::format("{}{}.", architecture_->layer_prefix, layer);
    const int64_t experts = count_of_experts(tensor, rule, file_.path());
    for (int64_t expert = 0; expert < experts; ++expert) {
      std::string name = prefix + std::string(rule.name);
      if (const size_t place = name.find("{}"); place != std::string::npos)
        name.replace(place, 2, std::to_string(expert));
      sources[std::move(name)].push_back({&tensor, &rule, number, expert});
    }
  }
  if (!known) sources[tensor.name].push_back({&tensor});
}

// Only parts of one tensor may go by one name, each part once.
void GgufWeights::check_sources(const std::string& name, const std::vector<GgufSource>& sources) const {
  for (size_t i = 1; i < sources.size(); ++i) {
    const GgufTensorRule *rule = sources[i].rule, *before = sources[i - 1].rule;
    const bool joins = rule != nullptr && (rule->rows == GgufRows::kAppended || rule->rows == GgufRows::kLatentValues);
    if (joins && before != rule) continue;
    throw make_error(ErrorCode::kInvalidData, "{}: two tensors stand for '{}', the second is '{}'", file_.path(), name,
                     sources[i].tensor->name);
  }
}

const GgufTensorPlan& GgufWeights::plan_of(std::string_view name) const {
  const auto found = plans_.find(name);
  if (found == plans_.end())
    throw make_error(ErrorCode::kNotFound, "{}: there is no tensor for '{}' among its {}", file_.path(),
                     std::string(name), plans_.size());
  if (const GgufTensor* unread = found->second.unread())
    throw make_error(ErrorCode::kUnsupported,
                     "{}: tensor '{}' has the ggml type {}, which is not read; quantise the model to another type",
                     file_.path(), unread->name, unread->ggml_type);
  return found->second;
}

TensorView GgufWeights::peek(std::string_view name) const {
  const GgufTensorPlan& plan = plan_of(name);
  TensorView view =
      TensorView::contiguous(file_.data_of(plan.first()) + plan.offset().value_or(0), plan.dtype(), plan.shape());
  if (!plan.column_order().empty()) view.column_order = plan.column_order().data();
  return view;
}

TensorView GgufWeights::get(std::string_view name) const {
  const GgufTensorPlan& plan = plan_of(name);
  if (plan.offset()) return peek(name);
  const std::lock_guard lock(mutex_);
  Assembled& assembled = assembled_[std::string(name)];
  if (assembled.data.get() == nullptr) {
    assembled.data = spare_.take(plan.size_bytes());
    plan.assemble(file_, assembled.data.get(), pool_);
  }
  ++assembled.takers;
  return TensorView::contiguous(assembled.data.get(), plan.dtype(), plan.shape());
}

std::vector<std::string> GgufWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, plan] : plans_) {
    if (plan.unread() == nullptr) names.push_back(name);
  }
  return names;
}

// Who took a tensor and keeps its view does not release it.
void GgufWeights::release(const TensorView& view) const noexcept {
  const auto bytes = static_cast<size_t>(view.size_bytes());
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  for (auto item = assembled_.begin(); item != assembled_.end(); ++item) {
    const std::byte* data = item->second.data.get();
    const auto size = static_cast<size_t>(plans_.find(item->first)->second.size_bytes());
    if (view.data < data || view.data >= data + size) continue;
    if (bytes != size || --item->second.takers > 0) return;
    spare_.put_back(std::move(item->second.data));
    assembled_.erase(item);
    return;
  }
  file_.release({view.data, bytes});
}

}  // namespace coluber
