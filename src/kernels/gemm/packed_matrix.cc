// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/packed_matrix.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/simd/transpose_units.h"
#include "tensor/huge_pages.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

// Rows are read this many elements at a time: a panel's slice of source and destination then stays in the first-level
// cache.
constexpr int64_t kStripe = 64;
// Of the types that are interleaved.
constexpr int64_t kMostBlockBytes = 256;

// Anonymous pages read as zero, so padding needs no pass of its own.
std::byte* map_pages(int64_t bytes) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes + kHugePageBytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw make_error(ErrorCode::kOutOfMemory,
                     "cannot get {} bytes for a packed weight; free memory, or choose a smaller model", bytes);
  }
  // Cut to an address where huge pages can start.
  auto* begin = static_cast<std::byte*>(memory);
  const int64_t skip = -static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin)) & (kHugePageBytes - 1);
  if (skip > 0) ::munmap(begin, static_cast<size_t>(skip));
  // The rest starts at the next page: what is given back anywhere else stays mapped.
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  const int64_t end = skip + (bytes + page - 1) / page * page;
  if (end < bytes + kHugePageBytes) ::munmap(begin + end, static_cast<size_t>(bytes + kHugePageBytes - end));
  ask_for_huge_pages(begin + skip, bytes);
  return begin + skip;
}

// One element of a panel: a value or, for bfloat16, a pair of values of successive k. Tensors of a file lie at any
// address.
template <typename Element>
struct PanelSlice {
  const std::byte* source;  // first row
  int64_t stride_bytes;     // between rows
  int64_t rows;             // outputs that have data
  int64_t lanes;            // outputs with the padding: the distance of successive k
  Element* panel;
};

template <typename Element>
void pack_one(const PanelSlice<Element>& slice, int64_t row, int64_t k) {
  std::memcpy(slice.panel + k * slice.lanes + row,
              slice.source + row * slice.stride_bytes + k * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
}

template <typename Element>
void pack_stripe(const PanelSlice<Element>& slice, int64_t begin, int64_t end) {
  using Bits = std::conditional_t<sizeof(Element) == 2, uint16_t, uint32_t>;
  using Square = UnitSquare<Bits>;
  constexpr int64_t kBytes = sizeof(Element);
  const int64_t rows = slice.rows / Square::kSide * Square::kSide;
  const int64_t whole = begin + (end - begin) / Square::kSide * Square::kSide;
  for (int64_t r = 0; r < rows; r += Square::kSide) {
    for (int64_t k = begin; k < whole; k += Square::kSide)
      Square::transpose(slice.source + r * slice.stride_bytes + k * kBytes, slice.stride_bytes,
                        reinterpret_cast<std::byte*>(slice.panel + k * slice.lanes + r), slice.lanes * kBytes);
  }
  for (int64_t r = 0; r < slice.rows; ++r)
    for (int64_t k = r < rows ? whole : begin; k < end; ++k) pack_one(slice, r, k);
}

template <typename Element>
void pack_panel(const PanelSlice<Element>& slice, int64_t elements) {
  for (int64_t k = 0; k < elements; k += kStripe) pack_stripe(slice, k, std::min(elements, k + kStripe));
}

void pack_panel_pairs(const PanelSlice<uint32_t>& slice, int64_t k) {
  pack_panel(slice, k / 2);
  if (k % 2 == 0) return;
  for (int64_t r = 0; r < slice.rows; ++r) {
    uint16_t last;
    std::memcpy(&last, slice.source + r * slice.stride_bytes + (k - 1) * 2, sizeof last);
    slice.panel[k / 2 * slice.lanes + r] = last;
  }
}

void check_weight(const TensorView& weight) {
  if (weight.shape.rank() != 2 || weight.shape[0] < 1 || weight.shape[1] < 1) {
    throw make_error(ErrorCode::kInvalidArgument, "a weight to pack must have the shape [N, K] with N, K >= 1, not {}",
                     weight.shape.to_string());
  }
  if (weight.strides[1] != 1 && weight.shape[1] > 1) {
    throw make_error(ErrorCode::kInvalidArgument, "the rows of a weight to pack must be contiguous, not strided by {}",
                     weight.strides[1]);
  }
  if (weight.column_order != nullptr && find_block_type(weight.dtype) == nullptr) {
    throw make_error(ErrorCode::kUnsupported, "columns of {} in an order of their own: expected a block type",
                     dtype_name(weight.dtype));
  }
  if (const BlockType* blocks = find_block_type(weight.dtype)) {
    if (weight.shape[1] % blocks->elements == 0 && weight.strides[0] % blocks->elements == 0) return;
    throw make_error(ErrorCode::kInvalidArgument, "rows of {} elements of type {} are no whole blocks of {}",
                     weight.shape[1], blocks->name, blocks->elements);
  }
  if (weight.dtype != DType::kFloat32 && weight.dtype != DType::kBFloat16 && weight.dtype != DType::kFloat16) {
    throw make_error(ErrorCode::kUnsupported,
                     "matrix products take weights of float32, bfloat16, float16 or a block type, not {}",
                     dtype_name(weight.dtype));
  }
}

// Whether the panel form of the type gives this weight's values exactly.
bool can_interleave(const TensorView& weight, const BlockType& type, ThreadPool& pool) {
  if (type.panel == nullptr || type.bytes > kMostBlockBytes || weight.shape[1] % PanelForm::kStep != 0) return false;
  if (type.panel->regular == nullptr) return true;
  const int64_t stride_bytes = dtype_bytes(weight.dtype, weight.strides[0]), blocks = weight.shape[1] / type.elements;
  std::atomic<bool> regular = true;
  pool.parallel_for(weight.shape[0], 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end && regular; ++row)
      if (!type.panel->regular(weight.data + row * stride_bytes, blocks)) regular = false;
  });
  return regular;
}

}  // namespace

void PackedMatrix::Free::operator()(std::byte* memory) const noexcept {
  if (device != nullptr) return device->deallocate(memory, bytes);
  if (bytes > 0) ::munmap(memory, static_cast<size_t>(bytes));  // 0: borrowed
}

int64_t PackedMatrix::panel_width(int64_t panel) const noexcept {
  const int64_t rows = std::min(kPanel, n_ - panel * kPanel);
  return (rows + kPanelStep - 1) / kPanelStep * kPanelStep;
}

PackedMatrix PackedMatrix::pack(const TensorView& weight, ThreadPool& pool) {
  check_weight(weight);
  if (const BlockType* blocks = find_block_type(weight.dtype)) return pack_blocks(weight, *blocks, pool);
  PackedMatrix packed;
  packed.dtype_ = weight.dtype;
  packed.n_ = weight.shape[0];
  packed.k_ = weight.shape[1];
  const int64_t last = packed.num_panels() - 1;
  const Shape padded{last * kPanel + packed.panel_width(last), packed.padded_k()};
  packed.bytes_ = dtype_bytes(weight.dtype, padded.count());
  packed.data_ = std::unique_ptr<std::byte[], Free>(map_pages(packed.bytes_), Free{packed.bytes_, nullptr});

  const int64_t stride_bytes = dtype_bytes(weight.dtype, weight.strides[0]);
  pool.parallel_for(packed.num_panels(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const std::byte* source = weight.data + panel * kPanel * stride_bytes;
      const int64_t rows = std::min(kPanel, packed.n_ - panel * kPanel), lanes = packed.panel_width(panel);
      std::byte* to = packed.data_.get() + dtype_bytes(weight.dtype, packed.panel_offset(panel));
      if (packed.dtype_ == DType::kFloat32) {
        pack_panel<float>({source, stride_bytes, rows, lanes, reinterpret_cast<float*>(to)}, packed.k_);
      } else if (packed.dtype_ == DType::kFloat16) {
        pack_panel<uint16_t>({source, stride_bytes, rows, lanes, reinterpret_cast<uint16_t*>(to)}, packed.k_);
      } else {
        pack_panel_pairs({source, stride_bytes, rows, lanes, reinterpret_cast<uint32_t*>(to)}, packed.k_);
      }
    }
  });
  return packed;
}

PackedMatrix PackedMatrix::upload(const TensorView& weight, Device& device) {
  check_weight(weight);
  if (find_block_type(weight.dtype) != nullptr)
    throw make_error(ErrorCode::kUnsupported, "weights of type {} do not run on {}; use --device cpu",
                     dtype_name(weight.dtype), device.name());
  PackedMatrix rows;
  rows.dtype_ = weight.dtype;
  rows.n_ = weight.shape[0];
  rows.k_ = weight.shape[1];
  rows.bytes_ = weight.size_bytes();
  rows.data_ = std::unique_ptr<std::byte[], Free>(static_cast<std::byte*>(device.allocate(rows.bytes_)),
                                                  Free{rows.bytes_, &device});
  const int64_t row_bytes = dtype_bytes(weight.dtype, rows.k_);
  if (weight.strides[0] == rows.k_) {
    device.copy(rows.data_.get(), weight.data, rows.bytes_);
    return rows;
  }
  const int64_t stride_bytes = dtype_bytes(weight.dtype, weight.strides[0]);
  for (int64_t row = 0; row < rows.n_; ++row)
    device.copy(rows.data_.get() + row * row_bytes, weight.data + row * stride_bytes, row_bytes);
  return rows;
}

PackedMatrix PackedMatrix::pack_blocks(const TensorView& weight, const BlockType& type, ThreadPool& pool) {
  PackedMatrix packed;
  packed.dtype_ = weight.dtype;
  packed.block_type_ = &type;
  packed.n_ = weight.shape[0];
  packed.k_ = weight.shape[1];
  if (weight.column_order != nullptr) packed.column_order_.assign(weight.column_order, weight.column_order + packed.k_);
  if (can_interleave(weight, type, pool)) packed.panel_form_ = type.panel;
  const int64_t last = packed.num_panels() - 1;
  const int64_t rows = packed.panel_form_ == nullptr ? packed.n_ : last * kPanel + packed.panel_width(last);
  packed.bytes_ = dtype_bytes(weight.dtype, Shape{rows, packed.k_}.count());
  packed.data_ = std::unique_ptr<std::byte[], Free>(map_pages(packed.bytes_), Free{packed.bytes_, nullptr});
  if (packed.panel_form_ == nullptr) {
    packed.keep_rows(weight, pool);
  } else {
    packed.interleave(weight, pool);
  }
  return packed;
}

void PackedMatrix::keep_rows(const TensorView& weight, ThreadPool& pool) {
  const int64_t row_bytes = dtype_bytes(weight.dtype, k_), stride_bytes = dtype_bytes(weight.dtype, weight.strides[0]);
  pool.parallel_for(n_, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(data_.get() + row * row_bytes, weight.data + row * stride_bytes, static_cast<size_t>(row_bytes));
  });
}

void PackedMatrix::interleave(const TensorView& weight, ThreadPool& pool) {
  const int64_t stride_bytes = dtype_bytes(weight.dtype, weight.strides[0]), blocks = k_ / block_type_->elements;
  // A panel is one stretch of memory: its pages and lines have one writer.
  pool.parallel_for(num_panels(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t first = begin * kPanel; first < std::min(n_, end * kPanel); first += kPanelStep) {
      const std::byte* from = weight.data + first * stride_bytes;
      std::byte* group = group_of(first, 0);
      const int64_t group_stride = panel_width(first / kPanel) * block_type_->bytes;
      if (first + kPanelStep <= n_) {
        put_into_groups(*panel_form_, {from, stride_bytes, blocks}, group, group_stride);
        continue;
      }
      for (int64_t b = 0; b < blocks; ++b, group += group_stride)
        for (int64_t r = 0; r < n_ - first; ++r)
          put_into_group(*panel_form_, from + r * stride_bytes + b * block_type_->bytes, r, group);
    }
  });
}

// The group that holds a block of a row and of those beside it.
std::byte* PackedMatrix::group_of(int64_t row, int64_t block) const noexcept {
  const int64_t panel = row / kPanel, strips = panel_width(panel) / kPanelStep;
  const int64_t group = block * strips + row % kPanel / kPanelStep;
  return data_.get() + (panel * kPanel * (k_ / block_type_->elements) + group * kPanelStep) * block_type_->bytes;
}

PanelBlocks PackedMatrix::panel_blocks(int64_t panel) const noexcept {
  return {group_of(panel * kPanel, 0), panel_width(panel) / kPanelStep, block_type_->elements, block_type_->bytes};
}

PackedMatrix PackedMatrix::borrow(float* panels, int64_t n, int64_t k) noexcept {
  PackedMatrix packed;
  packed.n_ = n;
  packed.k_ = k;
  const int64_t last = packed.num_panels() - 1;
  packed.bytes_ = (last * kPanel + packed.panel_width(last)) * k * static_cast<int64_t>(sizeof(float));
  packed.data_ = std::unique_ptr<std::byte[], Free>(reinterpret_cast<std::byte*>(panels), Free{0, nullptr});
  return packed;
}

void PackedMatrix::decode_blocks(int64_t row, int64_t first, int64_t count, float* out) const {
  const int64_t block = row * (k_ / block_type_->elements) + first / block_type_->elements;
  block_type_->to_float(data_.get() + block * block_type_->bytes, count / block_type_->elements, out);
}

void PackedMatrix::unpack_row(int64_t row, float* out) const {
  if (column_order_.empty()) return unpack_stored_row(row, out);
  std::vector<float> values(static_cast<size_t>(k_));
  unpack_stored_row(row, values.data());
  for (size_t k = 0; k < values.size(); ++k) out[column_order_[k]] = values[k];
}

void PackedMatrix::unpack_stored_row(int64_t row, float* out) const {
  COLUBER_CHECK(row >= 0 && row < n_, "row {} of a packed weight of {} rows", row, n_);
  if (Device* device = data_.get_deleter().device) {
    std::vector<std::byte> stored(static_cast<size_t>(dtype_bytes(dtype_, k_)));
    device->copy(stored.data(), data_.get() + row * std::ssize(stored), std::ssize(stored));
    return convert_to_float(stored.data(), dtype_, k_, out);
  }
  if (panel_form_ != nullptr) {
    std::byte block[kMostBlockBytes];
    for (int64_t k = 0; k < k_; k += block_type_->elements) {
      take_from_group(*panel_form_, group_of(row, k / block_type_->elements), row % kPanelStep, block);
      block_type_->to_float(block, 1, out + k);
    }
    return;
  }
  if (block_type_ != nullptr) return decode_blocks(row, 0, k_, out);
  const int64_t panel = row / kPanel, lane = row % kPanel, width = panel_width(panel);
  if (dtype_ == DType::kFloat32) {
    const float* from = reinterpret_cast<const float*>(data_.get()) + panel_offset(panel) + lane;
    for (int64_t k = 0; k < k_; ++k) out[k] = from[k * width];
  } else if (dtype_ == DType::kFloat16) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(data_.get()) + panel_offset(panel) + lane;
    for (int64_t k = 0; k < k_; ++k) out[k] = float16_to_float(from[k * width]);
  } else {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(data_.get()) + panel_offset(panel) + 2 * lane;
    for (int64_t k = 0; k < k_; ++k) out[k] = bfloat16_to_float(from[k / 2 * 2 * width + k % 2]);
  }
}

}  // namespace coluber
