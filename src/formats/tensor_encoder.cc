// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_encoder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/block_type.h"
#include "base/checksum.h"
#include "base/dtype.h"
#include "base/error.h"
#include "kernels/quant/quantize.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 20;
constexpr int64_t kBytesAtOnce = int64_t{1} << 23;
constexpr int64_t kComparedTogether = 1 << 14;

int64_t row_length(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[shape.rank() - 1]; }

// Gives a tensor back when the last reader of it goes.
struct HeldTensor {
  explicit HeldTensor(std::function<void()> when_done) : release(std::move(when_done)) {}
  ~HeldTensor() { release(); }
  HeldTensor(const HeldTensor&) = delete;
  HeldTensor& operator=(const HeldTensor&) = delete;
  std::function<void()> release;
};

RowReader reader_of(const TensorView& view, std::function<void()> release) {
  const auto held = std::make_shared<const HeldTensor>(std::move(release));
  return [held, view](int64_t first, int64_t count, float* out) { convert_rows_to_float(view, first, count, out); };
}

}  // namespace

void convert_rows_to_float(const TensorView& view, int64_t first, int64_t count, float* out) {
  const int64_t cols = row_length(view.shape);
  TensorView rows =
      TensorView::contiguous(view.data + first * dtype_bytes(view.dtype, cols), view.dtype, {count, cols});
  rows.column_order = view.column_order;
  convert_to_float(rows, out);
}

TensorValues values_of(const WeightSource& weights, const std::string& name) {
  return {weights.peek(name).shape, [&weights, name]() -> RowReader {
            const TensorView view = weights.get(name);
            COLUBER_CHECK(view.is_contiguous(), "{} is not row-major", name);
            return reader_of(view, [&weights, view] { weights.release(view); });
          }};
}

TensorValues values_at(const std::byte* data, DType dtype, const Shape& shape, std::function<void()> release) {
  const TensorView view = TensorView::contiguous(data, dtype, shape);
  return {shape, [view, release = std::move(release)] { return reader_of(view, release); }};
}

double EncodedType::relative_error() const noexcept { return squares > 0 ? std::sqrt(squared_error / squares) : 0; }

struct TensorEncoder::Work {
  const std::string& name;
  DType dtype;
  std::vector<float> values = {}, read_back = {};
  std::vector<std::byte> encoded = {};
  Checksum checksum = {};
  int64_t bytes = 0;
  double squared_error = 0, squares = 0;
};

TensorOutput TensorEncoder::encode(std::string name, DType dtype, TensorValues values) {
  const Shape shape = values.shape;
  return {name, dtype, shape,
          [this, name, dtype, values = std::move(values)](FileWriter& out) { encode_rows(name, dtype, values, out); }};
}

void TensorEncoder::append(Work& work, std::span<const std::byte> bytes, FileWriter& out) {
  work.checksum.add(bytes);
  out.append(bytes);
  work.bytes += static_cast<int64_t>(bytes.size());
  if (progress_) progress_(static_cast<int64_t>(bytes.size()));
}

void TensorEncoder::encode_rows(const std::string& name, DType dtype, const TensorValues& values, FileWriter& out) {
  const int64_t cols = std::max<int64_t>(row_length(values.shape), 1), rows = values.shape.count() / cols;
  const int64_t step = std::max<int64_t>(kElementsAtOnce / cols, 1);
  const RowReader read = values.open();
  Work work{name, dtype};
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t taken = std::min(step, rows - first), count = taken * cols;
    work.values.resize(static_cast<size_t>(count));
    work.read_back.resize(static_cast<size_t>(count));
    work.encoded.resize(static_cast<size_t>(dtype_bytes(dtype, count)));
    const int64_t grain = std::max<int64_t>(kComparedTogether / cols, 1);
    pool_.parallel_for(taken, grain, [&](int64_t begin, int64_t end, int) {
      read(first + begin, end - begin, work.values.data() + begin * cols);
    });
    if (find_block_type(dtype) != nullptr) {
      const auto finite = [](float value) { return std::isfinite(value); };
      if (!std::all_of(work.values.begin(), work.values.end(), finite))
        throw make_error(ErrorCode::kInvalidData,
                         "tensor '{}' has a value that is not finite, which {} cannot hold; write it as f32 to keep it",
                         name, dtype_name(dtype));
      quantize_blocks(work.values.data(), count, dtype, work.encoded.data(), pool_);
    } else {
      convert_from_float(work.values.data(), count, dtype, work.encoded.data());
    }
    compare(work, count);
    append(work, work.encoded, out);
  }
  note(name, dtype, values.shape.count(), work);
}

void TensorEncoder::compare(Work& work, int64_t count) {
  convert_to_float(work.encoded.data(), work.dtype, count, work.read_back.data());
  for (int64_t i = 0; i < count; ++i) {
    const double value = work.values[static_cast<size_t>(i)], found = work.read_back[static_cast<size_t>(i)];
    if (!std::isfinite(value)) continue;
    if (!std::isfinite(found))
      throw make_error(ErrorCode::kInvalidData,
                       "tensor '{}' has the value {:g}, which is more than {} can hold; write it as bf16 or f32",
                       work.name, value, dtype_name(work.dtype));
    work.squared_error += (found - value) * (found - value);
    work.squares += value * value;
  }
}

void TensorEncoder::note(const std::string& name, DType dtype, int64_t elements, const Work& work) {
  checksums_[name] = work.checksum.value();
  EncodedType& type = types_[dtype];
  type.dtype = dtype;
  ++type.tensors;
  type.elements += elements;
  type.bytes += work.bytes;
  type.squared_error += work.squared_error;
  type.squares += work.squares;
}

TensorOutput TensorEncoder::copy(std::string name, DType dtype, const Shape& shape,
                                 std::function<std::shared_ptr<const std::byte>()> open) {
  return {name, dtype, shape, [this, name, dtype, shape, open = std::move(open)](FileWriter& out) {
            const std::shared_ptr<const std::byte> data = open();
            Work work{name, dtype};
            const int64_t total = dtype_bytes(dtype, shape.count());
            for (int64_t at = 0; at < total; at += kBytesAtOnce)
              append(work, {data.get() + at, static_cast<size_t>(std::min(kBytesAtOnce, total - at))}, out);
            note(name, dtype, shape.count(), work);
          }};
}

TensorOutput TensorEncoder::copy(std::string name, const WeightSource& weights, const std::string& source) {
  const TensorView view = weights.peek(source);
  return copy(std::move(name), view.dtype, view.shape, [&weights, source] {
    const TensorView held = weights.get(source);
    return std::shared_ptr<const std::byte>(held.data, [&weights, held](const std::byte*) { weights.release(held); });
  });
}

void TensorEncoder::check(const std::string& name, std::span<const std::byte> bytes, const std::string& path) const {
  const auto expected = checksums_.find(name);
  Checksum found;
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(kBytesAtOnce)) {
    found.add(bytes.subspan(at, std::min(static_cast<size_t>(kBytesAtOnce), bytes.size() - at)));
    if (progress_) progress_(0);
  }
  if (expected == checksums_.end() || found.value() != expected->second)
    throw make_error(ErrorCode::kIo, "'{}' does not hold what was written: tensor '{}' reads back as other bytes", path,
                     name);
}

std::vector<EncodedType> TensorEncoder::types() const {
  std::vector<EncodedType> types;
  for (const auto& [dtype, type] : types_) types.push_back(type);
  std::sort(types.begin(), types.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return types;
}

}  // namespace coluber
