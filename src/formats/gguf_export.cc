// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_export.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/block_type.h"
#include "base/error.h"
#include "formats/gguf_assembly.h"
#include "formats/gguf_families.h"
#include "formats/hf_config.h"

namespace coluber {
namespace {

using R = GgufRows;

constexpr int64_t kMostExperts = 1 << 14;

std::string with_number(std::string_view pattern, int64_t number) {
  std::string text(pattern);
  if (const size_t place = text.find("{}"); place != std::string::npos) text.replace(place, 2, std::to_string(number));
  return text;
}

// A checkpoint's tensors under the names of the rules, whatever it calls and stacks them.
class RuleTensors {
 public:
  RuleTensors(const WeightSource& weights, const GgufFamily& family) : weights_(weights), family_(family) {}

  // `name` is behind `prefix`; "{}" in it stands for the expert.
  std::optional<GgufPiece> find(const std::string& prefix, std::string_view name, int64_t expert) const {
    for (const std::string& whole_name : respelt(prefix + with_number(name, expert)))
      if (auto piece = whole(whole_name)) return piece;
    for (const GgufFamily::Alias& alias : family_.aliases) {
      if (alias.ours != name) continue;
      for (const std::string& theirs : respelt(prefix + with_number(alias.theirs, expert)))
        if (auto piece = aliased(theirs, alias, expert)) return piece;
    }
    return std::nullopt;
  }
  bool is_used(const std::string& source) const { return used_.contains(source); }
  void use(const GgufPiece& piece) { used_.insert(piece.source); }
  const WeightSource& weights() const noexcept { return weights_; }

 private:
  // As it is, and with another beginning.
  std::vector<std::string> respelt(const std::string& name) const {
    std::vector<std::string> all = {name};
    for (const GgufFamily::Alias& alias : family_.aliases)
      if (alias.ours.ends_with('.') && name.starts_with(alias.ours))
        all.push_back(std::string(alias.theirs) + name.substr(alias.ours.size()));
    return all;
  }

  std::optional<GgufPiece> whole(const std::string& name) const {
    if (!weights_.contains(name)) return std::nullopt;
    std::vector<int64_t> sizes;
    const Shape shape = weights_.peek(name).shape;
    std::copy_if(shape.begin(), shape.end(), std::back_inserter(sizes), [](int64_t size) { return size != 1; });
    const int64_t cols = sizes.size() < 2 ? 1 : sizes.back();
    return GgufPiece{name, 0, shape.count() / std::max<int64_t>(cols, 1), cols};
  }

  // Of a stack [E, N, K] an expert's rows, or, where several names go by one stack, one's share of them.
  std::optional<GgufPiece> aliased(const std::string& name, const GgufFamily::Alias& alias, int64_t expert) const {
    if (alias.ours.find("{}") == std::string_view::npos || alias.theirs.find("{}") != std::string_view::npos)
      return whole(name);
    if (!weights_.contains(name)) return std::nullopt;
    const Shape shape = weights_.peek(name).shape;
    if (shape.rank() != 3 || expert >= shape[0]) return std::nullopt;
    int64_t part = 0, parts = 0;
    for (const GgufFamily::Alias& other : family_.aliases) {
      if (other.theirs != alias.theirs) continue;
      if (other.ours == alias.ours) part = parts;
      ++parts;
    }
    const int64_t rows = shape[1] / parts;
    return GgufPiece{name, expert * shape[1] + part * rows, rows, shape[2]};
  }

  const WeightSource& weights_;
  const GgufFamily& family_;
  std::set<std::string> used_;
};

// The tensors that one architecture's row stores.
class Planner {
 public:
  Planner(const GgufArchitecture& row, const GgufFamily& family, RuleTensors& tensors, bool is_tied)
      : row_(row), family_(family), tensors_(tensors), is_tied_(is_tied) {}

  // "output.weight", "blk.3.attn_q.weight".
  std::optional<Shape> shape_of(std::string_view name) const {
    const auto [layer, stored] = split(name);
    for (const GgufTensorRule* rule : rules_of(stored, layer)) {
      auto piece = tensors_.find(prefix_of(layer), rule->name, 0);
      if (!piece) continue;
      cut_appended(*rule, layer, *piece);
      return piece->cols == 1 ? Shape{piece->rows} : Shape{piece->rows, piece->cols};
    }
    return std::nullopt;
  }

  // How many of the checkpoint's names this row accounts for: which of several rows fits.
  int64_t covered(int64_t num_layers) const {
    int64_t count = 0;
    for (int64_t layer = -1; layer < num_layers; ++layer)
      for (const GgufTensorRule& rule : layer < 0 ? row_.whole : row_.layer)
        count += !rule.name.empty() && tensors_.find(prefix_of(layer), rule.name, 0) ? 1 : 0;
    return count;
  }

  void plan(const GgufExportFields& fields, const GgufExportSizes& sizes, GgufExport& out) {
    for (int64_t layer = -1; layer < fields.num_layers(); ++layer) {
      std::set<std::string_view> done;
      for (const GgufTensorRule& rule : layer < 0 ? row_.whole : row_.layer)
        if (done.insert(rule.stored).second) add(rule.stored, rule.stored, layer, fields, sizes, out);
      if (layer < 0 && is_tied_ && differ_in_factor(fields)) {
        add("output.weight", "token_embd.weight", layer, fields, sizes, out);
        out.added_parameters = out.tensors.back().values.shape.count();
      }
    }
  }

 private:
  static std::pair<int64_t, std::string_view> split(std::string_view name) {
    if (!name.starts_with("blk.")) return {-1, name};
    const size_t dot = name.find('.', 4);
    return {std::stoll(std::string(name.substr(4, dot - 4))), name.substr(dot + 1)};
  }
  std::string prefix_of(int64_t layer) const {
    return layer < 0 ? std::string() : fmt::format("{}{}.", row_.layer_prefix, layer);
  }

  // Whether tensors of the checkpoint stand for this name.
  bool is_there(std::string_view stored, int64_t layer) const {
    const auto& rules = layer < 0 ? row_.whole : row_.layer;
    return std::any_of(rules.begin(), rules.end(), [&](const GgufTensorRule& rule) {
      return rule.stored == stored && !rule.name.empty() && tensors_.find(prefix_of(layer), rule.name, 0);
    });
  }
  bool is_written(std::string_view stored, int64_t layer) const {
    const auto lists = [&](const auto& names) { return std::find(names.begin(), names.end(), stored) != names.end(); };
    if (lists(family_.skipped) || (is_tied_ && stored == "output.weight")) return false;
    return std::none_of(family_.either.begin(), family_.either.end(), [&](const GgufFamily::Either& either) {
      return lists(is_there(either.beside, layer) ? either.without : either.with);
    });
  }
  std::vector<const GgufTensorRule*> rules_of(std::string_view stored, int64_t layer) const {
    std::vector<const GgufTensorRule*> rules;
    if (!is_written(stored, layer)) return rules;
    for (const GgufTensorRule& rule : layer < 0 ? row_.whole : row_.layer) {
      if (rule.stored != stored || rule.name.empty()) continue;
      if (rule.beside.empty() || is_there(rule.beside, layer)) rules.push_back(&rule);
    }
    return rules;
  }

  // Of the tensor that several stored names share in equal runs, the run of this one.
  void cut_appended(const GgufTensorRule& rule, int64_t layer, GgufPiece& piece) const {
    int64_t part = 0, parts = 0;
    for (const GgufTensorRule& other : layer < 0 ? row_.whole : row_.layer) {
      if (other.name != rule.name || !is_written(other.stored, layer)) continue;
      if (other.stored == rule.stored) part = parts;
      ++parts;
    }
    if (rule.rows != R::kAppended || parts < 2) return;
    piece.rows /= parts;
    piece.first_row += part * piece.rows;
  }

  std::vector<GgufPiece> pieces_of(const std::vector<const GgufTensorRule*>& rules, int64_t layer) {
    std::vector<GgufPiece> pieces;
    const bool experts = rules[0]->rows == R::kExperts;
    for (int64_t expert = 0; expert < (experts ? kMostExperts : 1); ++expert) {
      size_t found = 0;
      for (const GgufTensorRule* rule : rules) {
        std::optional<GgufPiece> piece = tensors_.find(prefix_of(layer), rule->name, expert);
        if (!piece) continue;
        cut_appended(*rule, layer, *piece);
        pieces.push_back(*piece);
        ++found;
      }
      if (found == 0) break;
      // Names of which one is enough are told apart by what stands beside them; parts must all be there.
      if (found != rules.size() && rules[0]->parts > 1)
        throw make_error(ErrorCode::kUnsupported, "{}: of the parts of '{}' in layer {} only {} of {} are there",
                         tensors_.weights().describe(), rules[0]->stored, layer, found, rules.size());
    }
    return pieces;
  }

  // One matrix for both ends cannot carry a factor for each.
  bool differ_in_factor(const GgufExportFields& fields) const {
    return family_.factor != nullptr &&
           family_.factor(fields, "token_embd.weight", 0) != family_.factor(fields, "output.weight", 0);
  }

  // `from`: the stored name whose rules tell the tensors.
  void add(std::string_view stored, std::string_view from, int64_t layer, const GgufExportFields& fields,
           const GgufExportSizes& sizes, GgufExport& out) {
    if (layer == 0)
      for (const GgufFamily::Alias& other : family_.stand_ins)
        if (other.ours == stored) from = other.theirs;
    const auto rules = rules_of(from, layer);
    if (rules.empty()) return;
    const std::vector<GgufPiece> pieces = pieces_of(rules, layer);
    if (pieces.empty()) return;
    for (const GgufPiece& piece : pieces) tensors_.use(piece);
    const GgufAssembly assembly(*rules[0], pieces, layer, sizes);
    std::function<double(int64_t)> factor;
    if (family_.factor != nullptr)
      factor = [fields, stored, of = family_.factor](int64_t row) { return of(fields, stored, row); };
    const Shape shape = stored_shape(stored, *rules[0], pieces, assembly.shape(), sizes);
    const std::string name = layer < 0 ? std::string(stored) : fmt::format("blk.{}.{}", layer, stored);
    out.tensors.push_back({name, assembly.values(tensors_.weights(), shape, std::move(factor))});
  }

  Shape stored_shape(std::string_view stored, const GgufTensorRule& rule, const std::vector<GgufPiece>& pieces,
                     const Shape& plain, const GgufExportSizes& sizes) const {
    const auto count = static_cast<int64_t>(pieces.size());
    if (rule.rows == R::kExperts) return Shape{count, plain[0] / count, plain.rank() < 2 ? 1 : plain[1]};
    if (rule.rows == R::kPart && count > 1 && plain.rank() == 1) return Shape{count, 1, 1, plain[0] / count};
    if (rule.shape == GgufShape::kPerHead) return Shape{1, 1, plain.count(), 1};
    for (const GgufFamily::Form& form : family_.forms) {
      if (form.stored != stored) continue;
      const int64_t groups = std::max<int64_t>(sizes.sizes.num_k_heads, 1);
      switch (form.form) {
        case GgufStoredForm::kVector:
          return Shape{plain.count()};
        case GgufStoredForm::kColumn:
          return Shape{plain.count(), 1};
        case GgufStoredForm::kGroups:
          return Shape{groups, plain.count() / groups};
        case GgufStoredForm::kKernel:
          return Shape{1, plain[0], 1, plain.rank() < 2 ? 1 : plain[1]};
      }
    }
    return plain;
  }

  const GgufArchitecture& row_;
  const GgufFamily& family_;
  RuleTensors& tensors_;
  bool is_tied_;
};

GgufExportSizes sizes_of(const GgufExportFields& fields) {
  GgufExportSizes out;
  GgufSizes& s = out.sizes;
  s.num_layers = fields.num_layers();
  s.num_heads = fields.number("attention.head_count");
  s.num_kv_heads = fields.number("attention.head_count_kv");
  s.num_k_heads = fields.number("ssm.group_count");
  s.num_v_heads = fields.number("ssm.time_step_rank");
  s.head_k_dim = fields.number("ssm.state_size");
  s.head_v_dim = s.num_v_heads > 0 ? fields.number("ssm.inner_size") / s.num_v_heads : 0;
  s.rescale_every = fields.number("rescale_every_n_layers");
  out.latent_keys = fields.number("attention.key_length_mla") - fields.number("rope.dimension_count");
  return out;
}

// "7.7M"
std::string size_label(int64_t parameters) {
  constexpr std::pair<double, char> kUnits[] = {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}};
  for (const auto& [unit, letter] : kUnits) {
    const double scaled = static_cast<double>(parameters) / unit;
    if (scaled < 1 && letter != 'K') continue;
    return scaled < 9.95 ? fmt::format("{:.1f}{}", scaled, letter) : fmt::format("{:.0f}{}", scaled, letter);
  }
  return {};
}

void put_general(const GgufExportSource& source, GgufExport& out) {
  int64_t total = 0, experts = 0;
  for (const GgufExportTensor& tensor : out.tensors) {
    const int64_t count = tensor.values.shape.count();
    const bool stacked = tensor.name.find("_exps.") != std::string::npos;
    experts = std::max(experts, stacked ? tensor.values.shape[0] : 0);
    total += stacked ? count / tensor.values.shape[0] : count;
  }
  std::string folder = std::filesystem::weakly_canonical(source.folder).filename().string();
  if (folder.empty()) folder = "model";
  out.metadata.emplace_back("general.type", std::string("model"));
  out.metadata.emplace_back("general.name", folder);
  out.metadata.emplace_back("general.size_label",
                            experts > 0 ? fmt::format("{}x{}", experts, size_label(total)) : size_label(total));
}

[[noreturn]] void refuse_form(const GgufExportSource& source) {
  throw make_error(
      ErrorCode::kUnsupported,
      "{}: a GGUF file of '{}' is made from a checkpoint in Hugging Face's form: a config.json, and tensors "
      "under the names that go with it",
      source.path, source.architecture);
}

void note_left_out(const RuleTensors& tensors, GgufExport& out) {
  int64_t count = 0;
  std::string names;
  for (const std::string& name : tensors.weights().names()) {
    if (tensors.is_used(name)) continue;
    if (++count <= 5) names += (names.empty() ? "" : ", ") + name;
  }
  if (count > 0)
    out.notes.push_back(fmt::format("{} tensors have no place in the file and were left out: {}{}", count, names,
                                    count > 5 ? ", ..." : ""));
}

}  // namespace

GgufExport plan_gguf_export(const GgufExportSource& source) {
  const GgufFamily* family = find_gguf_family(source.architecture);
  if (family == nullptr)
    throw make_error(ErrorCode::kUnsupported,
                     "{}: GGUF has no architecture for '{}'; it has one for {}. --to safetensors writes every family",
                     source.path, source.architecture, gguf_family_names());
  if (source.config_json.empty()) refuse_form(source);
  const Json config = parse_config(source.config_json, source.path);
  RuleTensors tensors(source.weights, *family);
  const Json* tied = config.find("tie_word_embeddings");
  const bool is_tied = tied != nullptr && tied->is_bool() && tied->as_bool();
  std::optional<Planner> planner;
  GgufExportFields fields(config, source.path, [&](std::string_view name) {
    return planner ? planner->shape_of(name) : std::optional<Shape>();
  });
  // The architecture may hang on the tensors, and which row of it fits does.
  std::string_view name;
  int64_t best = -1;
  for (const GgufArchitecture& row : gguf_architectures()) {
    planner.emplace(row, *family, tensors, is_tied);
    if (family->architecture(fields) != row.name) continue;
    const int64_t covered = planner->covered(fields.num_layers());
    if (covered > best) {
      best = covered;
      name = row.name;
    }
  }
  for (const GgufArchitecture& row : gguf_architectures()) {
    planner.emplace(row, *family, tensors, is_tied);
    if (row.name == name && planner->covered(fields.num_layers()) == best) break;
  }
  if (!planner->shape_of("token_embd.weight")) refuse_form(source);
  COLUBER_CHECK(best >= 0, "no row of the GGUF tables is called as the family {} wants", family->model_type);
  GgufExport out;
  fields.set_architecture(name);
  family->describe(fields);
  // Readers take it from the tokenizer, which need not be there.
  if (fields.number("vocab_size") == 0) fields.put("vocab_size", (*planner->shape_of("token_embd.weight"))[0]);
  fields.finish();
  planner->plan(fields, sizes_of(fields), out);
  out.num_layers = fields.num_layers();
  out.num_experts = fields.number("expert_count");
  put_general(source, out);
  for (auto& entry : fields.take()) out.metadata.push_back(std::move(entry));
  out.notes = fields.take_notes();
  note_left_out(tensors, out);
  return out;
}

}  // namespace coluber
