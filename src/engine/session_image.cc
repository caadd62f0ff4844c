// SPDX-License-Identifier: Apache-2.0
#include "engine/session_image.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>

#include "attention/backend_names.h"
#include "base/error.h"

namespace coluber {
namespace {

std::string kind_of(const AttentionLayerBase& layer) {
  if (const auto* recurrent = dynamic_cast<const MambaBase*>(&layer))
    if (recurrent->mamba_type() == MambaAttentionBackendEnum::kCustom && !recurrent->custom_backend().empty())
      return std::string(recurrent->custom_backend());
  const std::string_view class_name = layer.get_attn_backend().name();
  const BackendNames* names = find_backend_names(class_name);
  return std::string(names != nullptr ? names->kind : class_name);
}

SavedLayer recurrent_layer(const MambaBase& layer, const StateLayout::Layer& placed) {
  SavedLayer saved{layer.layer_name(), kind_of(layer), {}, {}};
  const std::vector<DeclaredState> declared = layer.declared_states();
  for (size_t i = 0; i < declared.size(); ++i) {
    SavedState state;
    state.name = declared[i].name;
    state.dtype = declared[i].dtype;
    state.shape = state.whole_shape = declared[i].shape;
    state.split = declared[i].split;
    state.order = declared[i].order;
    state.offset = placed.offset + placed.state_offsets[i];
    saved.states.push_back(std::move(state));
  }
  return saved;
}

SavedLayer attention_layer(const AttentionLayerBase& layer, const FullAttentionSpec& spec, int64_t offset) {
  SavedAttention saved{spec.dtype, spec.planes, spec.num_kv_heads, spec.num_kv_heads, spec.stored_head_size(),
                       0,          offset};
  // What a page holds beyond its planes is what the layer notes about each token.
  saved.extra = (spec.page_size_bytes() - saved.bytes(spec.block_size)) / dtype_bytes(spec.dtype, spec.block_size);
  return {layer.layer_name(), kind_of(layer), {}, saved};
}

// Bytes of the page that hold a token at or after `used`, set to zero: what was there before is nobody's business.
void clear_unused(const SessionLayout& layout, int64_t used, std::byte* page) {
  for (const SavedLayer& layer : layout.layers) {
    if (!layer.attention) continue;
    const SavedAttention& a = *layer.attention;
    const int64_t element = dtype_size(a.dtype);
    std::byte* plane = page + a.offset;
    const auto clear = [&](int64_t row_bytes) {
      std::memset(plane + used * row_bytes, 0, static_cast<size_t>((layout.block_size - used) * row_bytes));
      plane += layout.block_size * row_bytes;
    };
    for (int64_t i = 0; i < a.planes; ++i) clear(a.kv_heads * a.head_size * element);
    clear(a.extra * element);
  }
}

// Of a model's config or weights, what a person calls the model: the folder, or the file where it is alone.
std::string name_of(const std::filesystem::path& path) {
  return path.filename() == "config.json" ? path.parent_path().filename().string() : path.filename().string();
}

}  // namespace

SessionLayout session_layout(const EngineConfig& config, const StateLayout& states, const AttentionLayout& attention) {
  SessionLayout layout;
  layout.packing = states.packing;
  layout.slot_bytes = states.state_bytes;
  layout.block_size = attention.block_size;
  layout.page_bytes = attention.page_bytes;
  layout.rank = {config.parallel.tensor_parallel_size, config.parallel.tensor_parallel_rank};
  auto state = states.layers.begin();
  auto page = attention.layers.begin();
  for (const AttentionLayerBase* layer : config.layers) {
    const KVCacheSpec spec = layer->get_kv_cache_spec(config);
    if (std::holds_alternative<MambaSpec>(spec))
      layout.layers.push_back(recurrent_layer(dynamic_cast<const MambaBase&>(*layer), *state++));
    else
      layout.layers.push_back(attention_layer(*layer, std::get<FullAttentionSpec>(spec), (page++)->offset));
  }
  return layout;
}

SessionImage make_session_image(const LoadedModel& loaded, const StateCache& cache, const Sequence& sequence) {
  const ModelInfo& info = loaded.model->info();
  SessionImage image;
  image.model_name = name_of(loaded.path);
  image.architecture = info.architecture;
  image.fingerprint = cache.fingerprint();
  image.vocab_size = info.vocab_size;
  image.tokens = sequence.tokens;
  image.num_computed_tokens = sequence.num_computed_tokens;
  image.long_positions = sequence.long_rope;
  image.layout = session_layout(*loaded.config, cache.state_layout(), cache.attention_layout());
  image.bytes = cache.saved_bytes(sequence);
  const int64_t used = image.layout.block_size > 0 ? sequence.num_computed_tokens % image.layout.block_size : 0;
  if (used > 0) {
    std::span<const std::byte>& last = image.bytes.pages.back();
    auto cleared = std::make_shared<std::vector<std::byte>>(last.begin(), last.end());
    clear_unused(image.layout, used, cleared->data());
    last = *cleared;
    image.bytes.owners.push_back(std::move(cleared));
  }
  return image;
}

void copy_bytes(SessionImage& image) {
  const auto own = [&image](std::span<const std::byte>& bytes) {
    auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    bytes = *copy;
    image.bytes.owners.push_back(std::move(copy));
  };
  own(image.bytes.states);
  for (std::span<const std::byte>& page : image.bytes.pages) own(page);
}

void check_session_image(const LoadedModel& loaded, const StateCache& cache, const SessionImage& image,
                         const std::string& path) {
  const EngineConfig& config = *loaded.config;
  const auto refuse = [&path](ErrorCode code, const std::string& why) {
    throw make_error(code, "the session '{}' cannot go on here: {}", path, why);
  };
  if (image.fingerprint != cache.fingerprint())
    refuse(ErrorCode::kInvalidData,
           fmt::format("it is of another model ('{}', {}, fingerprint {}; this one is {}, fingerprint {}); load that "
                       "model, or begin a new session",
                       image.model_name, image.architecture, image.fingerprint.to_string(),
                       loaded.model->info().architecture, cache.fingerprint().to_string()));
  if (image.layout.rank.size != 1)
    refuse(ErrorCode::kInvalidData,
           fmt::format("it is the share of rank {} of {}; 'coluber session import' puts the shares together",
                       image.layout.rank.rank, image.layout.rank.size));
  const SessionLayout layout = session_layout(config, cache.state_layout(), cache.attention_layout());
  if (const std::string why = difference(image.layout, layout); !why.empty())
    refuse(ErrorCode::kInvalidConfig,
           fmt::format("the file's states and this engine's differ: {} (the file's first); start with the cache dtypes "
                       "(--mamba-cache-dtype, --mamba-ssm-cache-dtype, --kv-cache-dtype) that it was saved with",
                       why));
  if (std::ssize(image.tokens) > config.max_model_len)
    refuse(ErrorCode::kContextLength,
           fmt::format("it holds {} tokens and the context limit is {}", image.tokens.size(), config.max_model_len));
}

void restore_session_image(const LoadedModel& loaded, StateCache& cache, const SessionImage& image,
                           Sequence& sequence) {
  const SessionLayout layout = session_layout(*loaded.config, cache.state_layout(), cache.attention_layout());
  const SessionPart part{&image.layout, &image.bytes};
  const SessionBytes bytes = convert_session({&part, 1}, layout, image.num_computed_tokens);
  Sequence restored;
  if (!cache.reserve(restored, image.num_computed_tokens))
    throw make_error(ErrorCode::kResourceExhausted,
                     "no state slot or attention pages are free for a session of {} tokens", image.num_computed_tokens);
  restored.tokens = image.tokens;
  restored.num_computed_tokens = restored.num_prompt_tokens = image.num_computed_tokens;
  restored.long_rope = image.long_positions;
  cache.restore(restored, bytes);
  sequence = std::move(restored);
}

}  // namespace coluber
