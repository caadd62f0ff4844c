// SPDX-License-Identifier: Apache-2.0
//
// Rules about one layer: its shapes, page, views, spec, backend, and the alignment over several.
#include <fmt/core.h>

#include <array>
#include <memory>

#include "cache/state_shape.h"
#include "coluber/mamba_base.h"
#include "apps/conformance/rules.h"

namespace coluber::conformance {
namespace {

// A layer that answers with what a case declares.
class DeclaredLayer : public MambaBase {
 public:
  using MambaBase::MambaBase;
  std::vector<Shape> get_state_shape() const override { return shapes; }
  std::vector<DType> get_state_dtype() const override { return dtypes; }
  MambaAttentionBackendEnum mamba_type() const override { return type; }
  bool is_kv_cache_tp_replicated() const noexcept override { return tp_replicated; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return alignment; }

  std::vector<Shape> shapes = {Shape{1, 1}};
  std::vector<DType> dtypes = {DType::kFloat32};
  MambaAttentionBackendEnum type = MambaAttentionBackendEnum::kMamba2;
  bool tp_replicated = false;
  std::optional<int64_t> alignment;
};

Json optional_json(std::optional<int64_t> value) { return value ? Json(*value) : Json(); }

Json shape_json(const Shape& shape, int first = 0) {
  Json::Array sizes;
  for (int i = first; i < shape.rank(); ++i) sizes.emplace_back(shape[i]);
  return Json(std::move(sizes));
}

std::vector<Shape> read_shapes(const Input& input) {
  std::vector<Shape> shapes;
  for (const Json& entry : input.array("shapes")) {
    if (!entry.is_array()) throw CaseError("the case's 'shapes' is no array of arrays");
    std::vector<int64_t> sizes;
    for (const Json& size : entry.as_array()) sizes.push_back(to_integer(size, "shapes"));
    shapes.emplace_back(std::span<const int64_t>(sizes));
  }
  return shapes;
}

std::vector<DType> read_dtypes(const Input& input) {
  std::vector<DType> dtypes;
  for (const Json& entry : input.array("dtypes")) {
    const std::optional<DType> dtype = entry.is_string() ? parse_dtype(entry.as_string()) : std::nullopt;
    if (!dtype) throw CaseError("the case's 'dtypes' holds a name that is no dtype");
    dtypes.push_back(*dtype);
  }
  return dtypes;
}

std::vector<Shape> shapes_of_kind(const Input& in) {
  const std::string kind = in.text("kind");
  const bool replicated = in.boolean("tp_replicated", false);
  const int64_t tp = state_tp_size(in.integer("tp_size", 1), replicated);
  const int64_t spec = in.integer("num_speculative_tokens", 0);
  if (kind == "mamba1")
    return mamba1_state_shape(tp, in.integer("intermediate_size"), in.integer("state_size"), in.integer("conv_kernel"));
  if (kind == "mamba2")
    return mamba2_state_shape(tp,
                              {in.integer("intermediate_size"), in.integer("n_groups"), in.integer("num_heads"),
                               in.integer("head_dim"), in.integer("state_size"), in.integer("conv_kernel")},
                              spec);
  if (kind == "linear_attention")
    return linear_attention_state_shape(tp, in.integer("num_heads"), in.integer("head_dim"));
  if (kind == "short_conv")
    return short_conv_state_shape(tp, in.integer("intermediate_size"), in.integer("conv_kernel"), spec);
  if (kind == "ple_short_conv")
    return ple_short_conv_state_shape(in.integer("intermediate_size"), in.integer("conv_kernel"), spec);
  if (kind == "gdn")
    return gated_delta_net_state_shape(tp,
                                       {in.integer("num_k_heads"), in.integer("num_v_heads"), in.integer("head_k_dim"),
                                        in.integer("head_v_dim"), in.integer("conv_kernel")},
                                       spec);
  if (kind == "kda")
    return kda_state_shape(tp,
                           {in.integer("num_heads"), in.integer("head_dim"), in.optional_integer("num_k_heads"),
                            in.optional_integer("head_k_dim"), in.integer("conv_kernel")},
                           spec);
  throw CaseError(fmt::format("the case's kind '{}' is unknown", kind));
}

Json state_shape(const Input& input) {
  Json::Array shapes;
  for (const Shape& shape : shapes_of_kind(input)) shapes.push_back(shape_json(shape));
  return Json(Json::Object{{"shapes", Json(std::move(shapes))}});
}

Json mamba_page(const Input& input) {
  MambaSpec spec;
  spec.block_size = 1;
  spec.shapes = read_shapes(input);
  spec.dtypes = read_dtypes(input);
  spec.page_size_padded = input.optional_integer("page_size_padded");
  return Json(Json::Object{{"state_content_size_bytes", Json(spec.state_content_size_bytes())},
                           {"page_size_bytes", Json(spec.page_size_bytes())}});
}

Json bind_kv_cache(const Input& input) {
  DeclaredLayer layer("layer");
  layer.shapes = read_shapes(input);
  layer.dtypes = read_dtypes(input);
  // Binding only computes addresses, so one aligned byte stands for the whole pool.
  alignas(128) static std::byte anchor[128];
  TensorView page;
  page.data = anchor;
  page.dtype = DType::kInt8;
  const int64_t page_bytes = input.integer("page_size_bytes");
  const int64_t stride = input.integer("block_stride_bytes", page_bytes);
  page.shape = Shape{input.integer("num_blocks"), 1, 1, page_bytes};
  page.strides = Shape{stride, page_bytes, page_bytes, 1};
  layer.bind_kv_cache(page);
  Json::Array views;
  for (const TensorView& view : layer.kv_cache()) {
    views.push_back(Json(Json::Object{{"byte_offset", Json(static_cast<int64_t>(view.data - anchor))},
                                      {"shape", shape_json(view.shape)},
                                      {"block_stride_bytes", Json(view.strides[0] * dtype_size(view.dtype))},
                                      {"inner_strides_elements", shape_json(view.strides, 1)},
                                      {"dtype", Json(dtype_name(view.dtype))}}));
  }
  return Json(Json::Object{{"views", Json(std::move(views))}});
}

Json kv_cache_spec(const Input& input) {
  EngineConfig config;
  config.cache.mamba_block_size = input.optional_integer("mamba_block_size");
  config.cache.mamba_page_size_padded = input.optional_integer("mamba_page_size_padded");
  const std::optional<MambaCacheMode> mode = parse_mamba_cache_mode(input.text("mamba_cache_mode"));
  if (!mode) throw CaseError("the case's 'mamba_cache_mode' is none of none, all, align");
  config.cache.mamba_cache_mode = *mode;
  config.cache.use_replayssm = input.boolean("use_replayssm", false);
  config.speculative.num_speculative_tokens = input.integer("num_speculative_tokens");
  DeclaredLayer layer("layer");
  layer.tp_replicated = input.boolean("tp_replicated", false);
  const MambaSpec spec = std::get<MambaSpec>(layer.get_kv_cache_spec(config));
  return Json(Json::Object{{"block_size", Json(spec.block_size)},
                           {"page_size_padded", optional_json(spec.page_size_padded)},
                           {"mamba_cache_mode", Json(mamba_cache_mode_name(spec.mamba_cache_mode))},
                           {"tp_replicated", Json(spec.tp_replicated)},
                           {"num_speculative_blocks", Json(spec.num_speculative_blocks)}});
}

Json attn_backend(const Input& input) {
  const std::string name = input.text("mamba_type");
  const std::optional<MambaAttentionBackendEnum> type = parse_mamba_type(name);
  if (!type) throw Error(ErrorCode::kInvalidConfig, fmt::format("no backend is registered for mamba_type '{}'", name));
  DeclaredLayer layer("layer");
  layer.type = *type;
  return Json(Json::Object{{"backend", Json(layer.get_attn_backend().name())}});
}

Json prefill_checkpoint_alignment(const Input& input) {
  EngineConfig config;
  std::vector<std::unique_ptr<DeclaredLayer>> layers;
  for (const Json& alignment : input.array("layer_alignments")) {
    layers.push_back(std::make_unique<DeclaredLayer>(fmt::format("layers.{}", layers.size())));
    if (!alignment.is_null()) layers.back()->alignment = to_integer(alignment, "layer_alignments");
    config.register_layer(*layers.back());
  }
  return Json(Json::Object{{"alignment", optional_json(get_mamba_prefill_checkpoint_alignment(config))}});
}

}  // namespace

std::span<const NamedRule> layer_rules() {
  static constexpr std::array<NamedRule, 6> kRules = {{{"state_shape", state_shape},
                                                       {"mamba_page", mamba_page},
                                                       {"bind_kv_cache", bind_kv_cache},
                                                       {"kv_cache_spec", kv_cache_spec},
                                                       {"attn_backend", attn_backend},
                                                       {"prefill_checkpoint_alignment", prefill_checkpoint_alignment}}};
  return kRules;
}

}  // namespace coluber::conformance
