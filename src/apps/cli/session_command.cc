// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/layer_strip.h"
#include "apps/cli/output.h"
#include "base/error.h"
#include "engine/limits.h"
#include "cache/session_file.h"

namespace coluber::cli {
namespace {

constexpr std::string_view kElastic = "elastic";
constexpr std::string_view kShared = "shared";

std::string_view packing_name(StatePacking packing) { return packing == StatePacking::kAligned ? kElastic : kShared; }

ConvLayout conv_of(const SessionLayout& layout) {
  for (const SavedLayer& layer : layout.layers)
    for (const SavedState& state : layer.states)
      if (state.conv == ConvLayout::kDs) return ConvLayout::kDs;
  return ConvLayout::kSd;
}

int64_t layer_bytes(const SessionImage& image, const SavedLayer& layer) {
  const int64_t block = image.layout.block_size;
  return layer.attention ? layer.attention->bytes(block) * std::ssize(image.bytes.pages) : layer.state_bytes();
}

struct KindFacts {
  std::string kind;
  int64_t layers = 0;
  int64_t bytes = 0;
};

std::vector<KindFacts> by_kind(const SessionImage& image) {
  std::vector<KindFacts> facts;
  for (const SavedLayer& layer : image.layout.layers) {
    auto found = std::find_if(facts.begin(), facts.end(), [&](const KindFacts& f) { return f.kind == layer.kind; });
    if (found == facts.end()) found = facts.insert(facts.end(), {layer.kind, 0, 0});
    ++found->layers;
    found->bytes += layer_bytes(image, layer);
  }
  return facts;
}

Json layout_json(const SessionLayout& layout) {
  return Json::Object{{"cache_layout", packing_name(layout.packing)},
                      {"conv_layout", conv_of(layout) == ConvLayout::kDs ? "DS" : "SD"},
                      {"tensor_parallel_size", layout.rank.size},
                      {"tensor_parallel_rank", layout.rank.rank},
                      {"block_size", layout.block_size}};
}

Json image_json(const SessionImage& image) {
  Json::Array layers, kinds;
  for (const SavedLayer& layer : image.layout.layers) {
    Json::Array states;
    for (const SavedState& state : layer.states)
      states.emplace_back(Json::Object{{"name", state.name},
                                       {"dtype", dtype_name(state.dtype)},
                                       {"shape", Json::Array(state.shape.begin(), state.shape.end())}});
    Json& facts = layers.emplace_back(Json::Object{{"name", layer.name},
                                                   {"kind", layer.kind},
                                                   {"bytes", layer_bytes(image, layer)},
                                                   {"states", std::move(states)}});
    if (layer.attention) facts.set("page_dtype", dtype_name(layer.attention->dtype));
  }
  for (const KindFacts& facts : by_kind(image))
    kinds.emplace_back(Json::Object{{"kind", facts.kind}, {"layers", facts.layers}, {"bytes", facts.bytes}});
  const SessionSampler& sampler = image.sampler;
  Json out;
  out.set("model", Json::Object{{"name", image.model_name},
                                {"architecture", image.architecture},
                                {"fingerprint", image.fingerprint.to_string()},
                                {"vocab_size", image.vocab_size}});
  out.set("tokens", image.num_computed_tokens);
  out.set("pending_tokens", std::ssize(image.tokens) - image.num_computed_tokens);
  out.set("token_ids", Json::Array(image.tokens.begin(), image.tokens.end()));
  out.set("layout", layout_json(image.layout));
  out.set("bytes", Json::Object{{"states", image.layout.slot_bytes},
                                {"attention", image.layout.page_bytes * std::ssize(image.bytes.pages)}});
  out.set("kinds", std::move(kinds));
  out.set("layers", std::move(layers));
  out.set("sampler", sampler.has_seed ? Json(Json::Object{{"seed", std::to_string(sampler.seed)},
                                                          {"numbers_used", sampler.position}})
                                      : Json());
  return out;
}

void print_image(const SessionImage& image, const std::string& path) {
  const SessionLayout& layout = image.layout;
  const int64_t pending = std::ssize(image.tokens) - image.num_computed_tokens;
  const int64_t pages = std::ssize(image.bytes.pages);
  output().print("{}: {} tokens of '{}' ({}){}\n\n", path, image.num_computed_tokens, image.model_name,
                 image.architecture, pending > 0 ? fmt::format(", {} more to be read", pending) : "");
  std::vector<std::string> kinds;
  for (const SavedLayer& layer : layout.layers) kinds.push_back(layer.kind);
  std::map<std::string, int64_t> bytes;
  for (const KindFacts& facts : by_kind(image)) bytes[facts.kind] = facts.bytes;
  const LayerStrip strip(stdout_has_colors());
  output().write("Layers with a cache, first to last\n");
  output().write(strip.draw(kinds, [&](const std::string& kind) { return ", " + bytes_text(bytes[kind]); }));
  output().print("\nStates       {}, whatever the length\n", bytes_text(layout.slot_bytes));
  output().print("Attention    {}\n",
                 pages == 0 ? "nothing"
                            : fmt::format("{} in {} pages of {} tokens", bytes_text(layout.page_bytes * pages), pages,
                                          layout.block_size));
  output().print(
      "Layout       {}, convolutions {}{}\n", packing_name(layout.packing),
      conv_of(layout) == ConvLayout::kDs ? "DS" : "SD",
      layout.rank.size > 1 ? fmt::format(", the share of rank {} of {}", layout.rank.rank, layout.rank.size) : "");
  output().print("Sampler      {}\n", image.sampler.has_seed ? fmt::format("seed {}, {} numbers used",
                                                                           image.sampler.seed, image.sampler.position)
                                                             : "nothing sampled yet");
  output().print("Model        fingerprint {}\n", image.fingerprint.to_string());
  output().write("Checksums    all right\n");
}

int show(const std::vector<std::string>& args) {
  Arguments arguments("session show", "What a session file holds. Reads and verifies all of it; needs no model.");
  std::string file;
  bool json = false;
  arguments.positional("FILE", &file, "a session file", true);
  arguments.section("Output");
  arguments.flag("--json", &json, "one JSON object with the same facts and the token ids");
  arguments.example("coluber session show chat.session", "tokens, memory by kind of layer, layout");
  if (!arguments.parse(args)) return 0;
  const SessionImage image = read_session_file(file);
  if (json)
    output().write(json_line(image_json(image)));
  else
    print_image(image, file);
  return 0;
}

// What export and import share: the layout that is wanted.
struct LayoutFlags {
  std::string cache_layout, conv_layout, output;
  int64_t tensor_parallel_size = 1;

  void declare(Arguments& arguments) {
    arguments.section("Layout");
    arguments.choice(
        "--cache-layout", &cache_layout, {std::string(kElastic), std::string(kShared)},
        "elastic: each state at a multiple of 128 bytes, as this program keeps them; shared: back to back");
    arguments.choice("--conv-layout", &conv_layout, {"SD", "DS"},
                     "convolution windows as (tokens, channels) or (channels, tokens)");
  }
  void declare_output(Arguments& arguments) {
    arguments.section("Output");
    arguments.text("-o,--output", &output, "FILE", "where to write; several ranks make FILE.0, FILE.1 and so on");
  }
  void check() const {
    if (output.empty())
      throw Error(ErrorCode::kInvalidArgument, "session: there is no output; name the file to write with --output");
  }
  LayoutChange change(int64_t rank) const {
    LayoutChange change;
    change.packing = cache_layout == kShared ? StatePacking::kContract : StatePacking::kAligned;
    change.conv = conv_layout == "DS" ? ConvLayout::kDs : ConvLayout::kSd;
    change.rank = {tensor_parallel_size, rank};
    return change;
  }
};

int export_session(const std::vector<std::string>& args) {
  Arguments arguments("session export",
                      "Writes a session in another layout, or shared out to tensor-parallel ranks. No value changes.");
  std::string file;
  LayoutFlags flags{.cache_layout = std::string(kElastic), .conv_layout = "SD", .output = {}};
  arguments.positional("FILE", &file, "a session file", true);
  flags.declare(arguments);
  arguments.integer("--tensor-parallel-size", &flags.tensor_parallel_size, {1, kMostShards},
                    "one file for each of so many ranks");
  flags.declare_output(arguments);
  arguments.example("coluber session export chat.session --cache-layout shared --conv-layout DS -o chat.ds",
                    "as engines keep states that send them to one another");
  arguments.example("coluber session export chat.session --tensor-parallel-size 2 -o chat.tp2",
                    "chat.tp2.0 and chat.tp2.1");
  if (!arguments.parse(args)) return 0;
  flags.check();
  const SessionImage image = read_session_file(file);
  if (image.layout.rank.size > 1)
    throw make_error(ErrorCode::kInvalidArgument,
                     "'{}' is the share of rank {} of {}; put the shares together first, with 'coluber session import'",
                     file, image.layout.rank.rank, image.layout.rank.size);
  for (int64_t rank = 0; rank < flags.tensor_parallel_size; ++rank) {
    const std::string path = flags.tensor_parallel_size == 1 ? flags.output : fmt::format("{}.{}", flags.output, rank);
    write_session_file(path, convert_session_image({&image, 1}, flags.change(rank)));
  }
  return 0;
}

int import_session(const std::vector<std::string>& args) {
  Arguments arguments("session import",
                      "Makes one session of the shares of all ranks, or of a file in another layout.");
  std::vector<std::string> files;
  LayoutFlags flags{.cache_layout = std::string(kElastic), .conv_layout = "SD", .output = {}};
  arguments.positionals("FILE...", &files, "the files of all ranks, in any order");
  flags.declare(arguments);
  flags.declare_output(arguments);
  arguments.example("coluber session import chat.tp2.0 chat.tp2.1 -o chat.session", "the shares of two ranks");
  if (!arguments.parse(args)) return 0;
  flags.check();
  std::vector<SessionImage> parts;
  for (const std::string& file : files) parts.push_back(read_session_file(file));
  std::stable_sort(parts.begin(), parts.end(), [](const SessionImage& a, const SessionImage& b) {
    return a.layout.rank.rank < b.layout.rank.rank;
  });
  write_session_file(flags.output, convert_session_image(parts, flags.change(0)));
  return 0;
}

}  // namespace

int session_command(const std::vector<std::string>& args) {
  Arguments arguments("session", "Files that 'coluber run --session FILE' goes on with.");
  arguments.command("show", "what a session file holds", show);
  arguments.command("export", "write it in another layout, or shared out to ranks", export_session);
  arguments.command("import", "make one session of the ranks' shares", import_session);
  arguments.footnote("'coluber session COMMAND --help' explains a command.");
  if (const std::optional<int> status = arguments.dispatch(args)) return *status;
  const bool is_name = !args.empty() && !args.front().starts_with("-");
  if (!is_name && !arguments.parse(args)) return 0;
  throw make_error(ErrorCode::kInvalidArgument, "session: {}; the commands are show, export and import",
                   is_name ? fmt::format("there is no command '{}'", args.front()) : "which command");
}

}  // namespace coluber::cli
