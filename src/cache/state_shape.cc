// SPDX-License-Identifier: Apache-2.0
#include "cache/state_shape.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace coluber {
namespace {

struct NamedSize {
  std::string_view name;
  int64_t value;
};

void require_positive(std::string_view kind, std::initializer_list<NamedSize> sizes) {
  for (const NamedSize& size : sizes) {
    // Products of three sizes below this stay inside int64.
    constexpr int64_t kLimit = int64_t{1} << 31;
    if (size.value < 1 || size.value > kLimit)
      throw make_error(ErrorCode::kInvalidConfig,
                       "state shape of {}: {} is {}, expected 1 to {}; correct the configuration", kind, size.name,
                       size.value, kLimit);
  }
}

int64_t product(std::string_view kind, std::initializer_list<NamedSize> factors) {
  int64_t result = 1;
  for (const NamedSize& factor : factors) {
    if (__builtin_mul_overflow(result, factor.value, &result))
      throw make_error(ErrorCode::kInvalidConfig, "state shape of {}: the sizes up to {} = {} overflow", kind,
                       factor.name, factor.value);
  }
  return result;
}

int64_t divide(std::string_view kind, NamedSize size, int64_t tp_size) {
  if (size.value % tp_size != 0)
    throw make_error(
        ErrorCode::kInvalidConfig,
        "state shape of {}: {} is {}, which tensor_parallel_size {} does not divide; choose a size that does", kind,
        size.name, size.value, tp_size);
  return size.value / tp_size;
}

int64_t conv_window(std::string_view kind, int64_t conv_kernel, int64_t num_speculative_tokens) {
  if (num_speculative_tokens < 0 || num_speculative_tokens > (int64_t{1} << 20))
    throw make_error(ErrorCode::kInvalidConfig,
                     "state shape of {}: num_speculative_tokens is {}, expected 0 to 1048576", kind,
                     num_speculative_tokens);
  require_positive(kind, {{"conv_kernel", conv_kernel}});
  return conv_kernel - 1 + num_speculative_tokens;
}

DType checked_state_dtype(DType dtype, std::string_view option) {
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBFloat16)
    throw make_error(ErrorCode::kInvalidConfig, "{} is {}, expected float32, float16 or bfloat16{}", option,
                     dtype_name(dtype), option == "mamba_ssm_cache_dtype" ? ", int16 or int8" : "");
  return dtype;
}

bool is_whole_number(DType dtype) { return dtype == DType::kInt16 || dtype == DType::kInt8; }

}  // namespace

std::vector<Shape> with_state_scales(std::vector<Shape> shapes, const std::vector<DType>& dtypes, int64_t parts) {
  const size_t states = shapes.size();
  for (size_t i = 0; i < states && i < dtypes.size(); ++i) {
    if (!is_whole_number(dtypes[i])) continue;
    const Shape& shape = shapes[i];
    shapes.push_back(shape.rank() > 1 ? Shape(std::span(shape.begin(), shape.end() - 1)) : Shape{parts});
  }
  return shapes;
}

std::vector<DType> with_state_scales(std::vector<DType> dtypes) {
  const size_t states = dtypes.size();
  for (size_t i = 0; i < states; ++i)
    if (is_whole_number(dtypes[i])) dtypes.push_back(DType::kFloat32);
  return dtypes;
}

int64_t extended_num_groups(int64_t tp_size, int64_t n_groups) {
  require_positive("mamba2", {{"tensor_parallel_size", tp_size}, {"n_groups", n_groups}});
  return n_groups % tp_size == 0 ? n_groups : tp_size;
}

std::vector<Shape> mamba1_state_shape(int64_t tp_size, int64_t intermediate_size, int64_t state_size,
                                      int64_t conv_kernel) {
  require_positive(
      "mamba1",
      {{"tensor_parallel_size", tp_size}, {"intermediate_size", intermediate_size}, {"state_size", state_size}});
  const int64_t channels = divide("mamba1", {"intermediate_size", intermediate_size}, tp_size);
  return {Shape{conv_window("mamba1", conv_kernel, 0), channels}, Shape{channels, state_size}};
}

std::vector<Shape> mamba2_state_shape(int64_t tp_size, const Mamba2StateSizes& sizes, int64_t num_speculative_tokens) {
  require_positive("mamba2", {{"tensor_parallel_size", tp_size},
                              {"intermediate_size", sizes.intermediate_size},
                              {"n_groups", sizes.n_groups},
                              {"num_heads", sizes.num_heads},
                              {"head_dim", sizes.head_dim},
                              {"state_size", sizes.state_size}});
  // A G that tp_size does not divide becomes tp_size, so that every rank has a whole group.
  const int64_t groups = sizes.n_groups % tp_size == 0 ? sizes.n_groups : tp_size;
  const int64_t group_channels = product("mamba2", {{"2", 2}, {"n_groups", groups}, {"state_size", sizes.state_size}});
  const int64_t conv_dim = divide(
      "mamba2", {"intermediate_size + 2 * n_groups * state_size", sizes.intermediate_size + group_channels}, tp_size);
  const int64_t heads = divide("mamba2", {"num_heads", sizes.num_heads}, tp_size);
  return {Shape{conv_window("mamba2", sizes.conv_kernel, num_speculative_tokens), conv_dim},
          Shape{heads, sizes.head_dim, sizes.state_size}};
}

std::vector<Shape> mamba2_replayssm_shape(int64_t tp_size, const Mamba2StateSizes& sizes, int64_t buffer_len) {
  require_positive("mamba2", {{"tensor_parallel_size", tp_size},
                              {"n_groups", sizes.n_groups},
                              {"num_heads", sizes.num_heads},
                              {"head_dim", sizes.head_dim},
                              {"state_size", sizes.state_size},
                              {"replayssm_buffer_len", buffer_len}});
  const int64_t heads = divide("mamba2", {"num_heads", sizes.num_heads}, tp_size);
  const int64_t groups = divide("mamba2", {"n_groups", sizes.n_groups}, tp_size);
  return {Shape{heads, buffer_len, sizes.head_dim}, Shape{heads, buffer_len},
          Shape{groups, buffer_len, sizes.state_size}};
}

std::vector<Shape> linear_attention_state_shape(int64_t tp_size, int64_t num_heads, int64_t head_dim) {
  return linear_attention_state_shape(tp_size, num_heads, head_dim, head_dim);
}

std::vector<Shape> linear_attention_state_shape(int64_t tp_size, int64_t num_heads, int64_t key_dim,
                                                int64_t value_dim) {
  require_positive(
      "linear_attention",
      {{"tensor_parallel_size", tp_size}, {"num_heads", num_heads}, {"head_dim", std::min(key_dim, value_dim)}});
  if (num_heads < tp_size)
    throw make_error(
        ErrorCode::kInvalidConfig,
        "state shape of linear_attention: num_heads is {}, fewer than tensor_parallel_size {}; choose a smaller size",
        num_heads, tp_size);
  return {Shape{num_heads / tp_size, key_dim, value_dim}};
}

std::vector<Shape> short_conv_state_shape(int64_t tp_size, int64_t intermediate_size, int64_t conv_kernel,
                                          int64_t num_speculative_tokens) {
  require_positive("short_conv", {{"tensor_parallel_size", tp_size}, {"intermediate_size", intermediate_size}});
  const int64_t channels = divide("short_conv", {"intermediate_size", intermediate_size}, tp_size);
  return {Shape{conv_window("short_conv", conv_kernel, num_speculative_tokens), channels}};
}

std::vector<Shape> ple_short_conv_state_shape(int64_t intermediate_size, int64_t conv_kernel,
                                              int64_t num_speculative_tokens) {
  return short_conv_state_shape(state_tp_size(1, true), intermediate_size, conv_kernel, num_speculative_tokens);
}

std::vector<Shape> gated_delta_net_state_shape(int64_t tp_size, const GatedDeltaNetStateSizes& sizes,
                                               int64_t num_speculative_tokens) {
  require_positive("gdn", {{"tensor_parallel_size", tp_size},
                           {"num_k_heads", sizes.num_k_heads},
                           {"num_v_heads", sizes.num_v_heads},
                           {"head_k_dim", sizes.head_k_dim},
                           {"head_v_dim", sizes.head_v_dim}});
  const int64_t keys = product("gdn", {{"2", 2}, {"head_k_dim", sizes.head_k_dim}, {"num_k_heads", sizes.num_k_heads}});
  const int64_t values = product("gdn", {{"head_v_dim", sizes.head_v_dim}, {"num_v_heads", sizes.num_v_heads}});
  if (keys > std::numeric_limits<int64_t>::max() - values)
    throw make_error(ErrorCode::kInvalidConfig, "state shape of gdn: key channels {} and value channels {} overflow",
                     keys, values);
  const int64_t conv_dim =
      divide("gdn", {"2 * head_k_dim * num_k_heads + head_v_dim * num_v_heads", keys + values}, tp_size);
  const int64_t heads = divide("gdn", {"num_v_heads", sizes.num_v_heads}, tp_size);
  return {Shape{conv_window("gdn", sizes.conv_kernel, num_speculative_tokens), conv_dim},
          Shape{heads, sizes.head_v_dim, sizes.head_k_dim}};
}

std::vector<Shape> kda_state_shape(int64_t tp_size, const KimiDeltaAttentionStateSizes& sizes,
                                   int64_t num_speculative_tokens) {
  const int64_t k_heads = sizes.num_k_heads.value_or(sizes.num_heads);
  const int64_t k_dim = sizes.head_k_dim.value_or(sizes.head_dim);
  require_positive("kda", {{"tensor_parallel_size", tp_size},
                           {"num_heads", sizes.num_heads},
                           {"head_dim", sizes.head_dim},
                           {"num_k_heads", k_heads},
                           {"head_k_dim", k_dim}});
  const int64_t values = product("kda", {{"num_heads", sizes.num_heads}, {"head_dim", sizes.head_dim}});
  const int64_t keys = product("kda", {{"2", 2}, {"num_k_heads", k_heads}, {"head_k_dim", k_dim}});
  if (keys > std::numeric_limits<int64_t>::max() - values)
    throw make_error(ErrorCode::kInvalidConfig, "state shape of kda: key channels {} and value channels {} overflow",
                     keys, values);
  const int64_t conv_dim =
      divide("kda", {"num_heads * head_dim + 2 * num_k_heads * head_k_dim", values + keys}, tp_size);
  const int64_t heads = divide("kda", {"num_heads", sizes.num_heads}, tp_size);
  return {Shape{conv_window("kda", sizes.conv_kernel, num_speculative_tokens), conv_dim},
          Shape{heads, sizes.head_dim, sizes.head_dim}};
}

DType conv_state_dtype(const EngineConfig& config) {
  return checked_state_dtype(config.cache.mamba_cache_dtype.value_or(config.activation_dtype), "mamba_cache_dtype");
}

DType recurrent_state_dtype(const EngineConfig& config) {
  const DType dtype = config.cache.mamba_ssm_cache_dtype.value_or(DType::kFloat32);
  if (is_whole_number(dtype)) return dtype;
  return checked_state_dtype(dtype, "mamba_ssm_cache_dtype");
}

DType kda_recurrent_state_dtype(const EngineConfig& config) {
  const DType dtype = recurrent_state_dtype(config);
  return is_whole_number(dtype) ? dtype : DType::kFloat32;
}

DType linear_attention_state_dtype(const EngineConfig& config) {
  if (config.cache.mamba_ssm_cache_dtype) return recurrent_state_dtype(config);
  return checked_state_dtype(config.cache.mamba_cache_dtype.value_or(DType::kFloat32), "mamba_cache_dtype");
}

}  // namespace coluber
