// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/engine_options.h"
#include "apps/cli/inspect_facts.h"
#include "apps/cli/layer_strip.h"
#include "apps/cli/output.h"
#include "base/printable.h"
#include "engine/description.h"
#include "engine/limits.h"

namespace coluber::cli {
namespace {

constexpr int kBarCells = 48;
constexpr int64_t kLongestDrawn = 1 << 20;

std::string count_text(int64_t count) {
  const double value = static_cast<double>(count);
  if (value < 1e6) return fmt::format("{}", count);
  if (value < 1e9) return fmt::format("{:.1f} M", value / 1e6);
  return fmt::format("{:.2f} B", value / 1e9);
}

std::string tokens_text(int64_t tokens) {
  if (tokens >= (1 << 20) && tokens % (1 << 20) == 0) return fmt::format("{}M", tokens >> 20);
  return tokens >= 1024 && tokens % 1024 == 0 ? fmt::format("{}K", tokens >> 10) : std::to_string(tokens);
}

// In the mode that keeps a state a block a sequence's states grow with it.
bool states_grow(const ModelFacts& facts) {
  return std::any_of(facts.layers.begin(), facts.layers.end(), [&facts](const LayerFacts& layer) {
    const MambaSpec* spec = layer.spec ? std::get_if<MambaSpec>(&*layer.spec) : nullptr;
    return spec != nullptr && spec->max_memory_usage_bytes(1) != spec->max_memory_usage_bytes(facts.max_model_len);
  });
}

// Draws with or without colours.
class Painter {
 public:
  explicit Painter(bool colors) : strip_(colors) {}

  void headline(const ModelFacts& facts) const {
    const ModelInfo& info = facts.info;
    output().print("{}: {} parameters, {} layers, width {}, vocabulary {}\n\n", info.architecture,
                   count_text(info.parameters), info.num_layers, info.hidden_size, info.vocab_size);
  }

  void strip(const ModelFacts& facts) const {
    std::vector<std::string> kinds;
    for (const LayerFacts& layer : facts.layers)
      kinds.push_back(layer.feed_forward.empty() ? layer.kind : layer.kind + " + " + layer.feed_forward);
    output().write("Layers, first to last\n" + strip_.draw(kinds) + "\n");
  }

  void sizes(const ModelFacts& facts) const {
    const ModelInfo& info = facts.info;
    output().print("Weights            {}\n", bytes_text(info.weight_bytes));
    for (const auto& [dtype, count] : info.parameters_by_dtype) {
      output().print("  {:<16} {} in {} parameters\n", dtype_name(dtype), bytes_text(dtype_bytes(dtype, count)),
                     count_text(count));
    }
    output().print("State, a sequence  {}{}\n", bytes_text(facts.state_bytes_per_sequence),
                   states_grow(facts) ? fmt::format(" at {} tokens", facts.max_model_len) : ", whatever its length");
    output().print("Attention, a token {}\n",
                   facts.kv_bytes_per_token == 0 ? "nothing" : bytes_text(facts.kv_bytes_per_token));
    output().print("Context            {}\n", info.max_position_embeddings == 0 && facts.max_model_len > kLongestDrawn
                                                  ? "the model sets no limit"
                                                  : fmt::format("{} tokens", facts.max_model_len));
    output().print("Prefill checkpoint {}\n\n",
                   facts.prefill_checkpoint_alignment
                       ? (*facts.prefill_checkpoint_alignment == 1
                              ? std::string("at every token")
                              : fmt::format("every {} tokens", *facts.prefill_checkpoint_alignment))
                       : "none: a layer cannot export a state inside a prefill");
  }

  // One bar a context length: weights, then what the sequence keeps.
  void memory(const ModelFacts& facts) const {
    // A model without a limit is drawn up to a million tokens.
    const int64_t longest =
        facts.info.max_position_embeddings == 0 ? std::min(facts.max_model_len, kLongestDrawn) : facts.max_model_len;
    std::vector<int64_t> lengths;
    for (int64_t tokens = 1024; tokens < longest; tokens *= 4) lengths.push_back(tokens);
    lengths.push_back(longest);
    const int64_t weights = facts.info.weight_bytes;
    const double most = static_cast<double>(std::max<int64_t>(1, weights + facts.cache_bytes(lengths.back())));
    output().print("Memory against context, one sequence   {} weights  {} states and attention\n", strip_.cell(0),
                   strip_.cell(1));
    for (const int64_t tokens : lengths) {
      const int64_t cache = facts.cache_bytes(tokens);
      const int first = static_cast<int>(static_cast<double>(weights) / most * kBarCells + 0.5);
      const int both = static_cast<int>(static_cast<double>(weights + cache) / most * kBarCells + 0.5);
      // A part that is there is shown, however small.
      const int second = cache > 0 ? std::max(1, both - first) : 0;
      output().print("  {:>8} {}{} {}\n", tokens_text(tokens), strip_.bar(0, first), strip_.bar(1, second),
                     bytes_text(weights + cache));
    }
    output().write("\n");
  }

  void table(const ModelFacts& facts) const {
    size_t name_width = 5, kind_width = 16;
    for (const LayerFacts& layer : facts.layers) {
      name_width = std::max(name_width, layer.name.size());
      kind_width = std::max(kind_width, layer.kind.size());
    }
    output().print("{:<{}}  {:<{}} {:<10} {:<12} {:>11}  {:>5}  {}\n", "layer", name_width, "kind", kind_width,
                   "mamba_type", "backend", "page bytes", "align", "states");
    for (const LayerFacts& layer : facts.layers) {
      std::string states;
      for (size_t i = 0; i < layer.state_shapes.size(); ++i) {
        states += fmt::format("{}{} {}", i == 0 ? "" : ", ", layer.state_shapes[i].to_string(),
                              dtype_name(layer.state_dtypes[i]));
      }
      const auto dash = [](const std::string& text) { return text.empty() ? std::string("-") : text; };
      output().print("{:<{}}  {:<{}} {:<10} {:<12} {:>11}  {:>5}  {}\n", layer.name, name_width, layer.kind, kind_width,
                     dash(layer.mamba_type), dash(layer.backend), layer.page_size_bytes,
                     layer.prefill_checkpoint_alignment ? std::to_string(*layer.prefill_checkpoint_alignment) : "-",
                     dash(states));
    }
    for (const std::string& note : facts.info.notes) output().print("note: {}\n", printable(note));
  }

 private:
  LayerStrip strip_;
};

}  // namespace

int inspect_command(const std::vector<std::string>& args) {
  Arguments arguments("inspect",
                      "What a model is and what it will take, before it runs: layers by kind, parameters, the state "
                      "that a sequence keeps, what attention adds for every token. Reads headers, not weights.");
  EngineFlags engine_flags;
  int64_t tensor_parallel_size = 1, num_speculative_tokens = 0;
  std::string mamba_cache_mode = "none";
  bool json = false;
  engine_flags.declare_model(arguments);
  arguments.section("Figures");
  arguments.integer("--tensor-parallel-size", &tensor_parallel_size, {1, kMostShards},
                    "states of one of so many shards");
  arguments.integer("--num-speculative-tokens", &num_speculative_tokens, {0, kMostSpeculativeTokens},
                    "states kept for drafted tokens");
  arguments.choice("--mamba-cache-mode", &mamba_cache_mode, {"none", "all", "align"},
                   "which states a request keeps: one, one a block, or those at step ends");
  arguments.section("Output");
  arguments.flag("--json", &json, "one JSON object with the same facts");
  engine_flags.declare(arguments);
  arguments.example("coluber inspect", "the built-in model");
  arguments.example("coluber inspect path/to/model --max-model-len 32768", "memory for long contexts");
  arguments.example("coluber inspect path/to/model --tensor-parallel-size 4", "what one shard of four keeps");
  arguments.example("coluber inspect path/to/model --json", "for a program");
  if (!arguments.parse(args)) return 0;

  EngineOptions options = engine_flags.options();
  options.tensor_parallel_size = tensor_parallel_size;
  options.num_speculative_tokens = num_speculative_tokens;
  options.mamba_cache_mode = *parse_mamba_cache_mode(mamba_cache_mode);
  const ModelDescription description = describe_model(options);
  const ModelFacts facts = gather_facts(description.model->info(), *description.config);
  if (json) {
    output().write(json_line(facts_json(facts)));
    return 0;
  }
  const Painter painter(stdout_has_colors());
  painter.headline(facts);
  painter.strip(facts);
  painter.sizes(facts);
  painter.memory(facts);
  painter.table(facts);
  return 0;
}

}  // namespace coluber::cli
