// SPDX-License-Identifier: Apache-2.0
//
// coluber-bench-ops: single operations on a device, timed by graph replay over rotating inputs, as shares of the copy
// bandwidth and of the rate of products that the same run measured.
#include <fmt/core.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench_ops/device_bench.h"
#include "apps/bench_ops/products.h"
#include "apps/bench_ops/recurrent_decode.h"
#include "apps/bench_ops/recurrent_prefill.h"
#include "apps/bench_ops/ssd_decode.h"
#include "apps/cli/arguments.h"
#include "apps/cli/output.h"
#include "base/json_writer.h"
#include "coluber/error.h"
#include "kernels/roofline/device_roofline.h"

namespace coluber::bench_ops {
namespace {

struct Options {
  std::string operation = "ssd_decode", shape, state = "float32", device = "cuda:0";
  int64_t batch = 256, tokens = 8192;
  bool all = false, json = false, serial = false;
};

bool parse(int argc, char** argv, Options& o) {
  cli::Arguments arguments("coluber-bench-ops", "Times single operations on a CUDA device.");
  arguments.choice("--op", &o.operation,
                   {"ssd_decode", "gdn_decode", "kda_decode", "lightning_decode", "mamba1_decode", "rwkv7_decode",
                    "ssd_prefill", "lightning_prefill", "gdn_prefill", "conv_prefill", kProducts, kFloat32Products},
                   "the operation");
  arguments.choice("--shape", &o.shape, {"nemotron_h", "falcon_h1"},
                   "sizes of a published model (ssd_decode has two; default: all that the operation has)");
  arguments.choice("--state", &o.state, {"float32", "bfloat16", "float16", "int16", "int8"}, "type of the states");
  arguments.integer("--batch", &o.batch, {1, 65535}, "sequences in a step; rows of a product");
  arguments.integer("--tokens", &o.tokens, {1, 1 << 20}, "tokens of a sequence in a prefill");
  arguments.text("--device", &o.device, "cuda:N", "where to run");
  arguments.flag("--serial", &o.serial, "each launch waits for the one before instead of reading its states meanwhile");
  arguments.flag(
      "--all", &o.all,
      "every operation and shape: decode at batches 1, 8, 64, 256 (ssd_decode with every type), prefill of 1x2048, "
      "1x8192, 1x32768 and 8x2048, products of 1 to 2048 rows");
  arguments.flag("--json", &o.json, "one JSON object instead of a table");
  arguments.example("coluber-bench-ops --op ssd_decode --shape nemotron_h --batch 256 --state bfloat16", "one case");
  arguments.example("coluber-bench-ops --all --json", "everything, for a script");
  return arguments.parse({argv + 1, argv + argc});
}

int32_t ordinal_of(const std::string& device) {
  const std::optional<int32_t> ordinal = cuda_ordinal(device);
  if (ordinal) return *ordinal;
  throw Error(ErrorCode::kInvalidArgument, "--device must be cuda or cuda:N, found '" + device + "'");
}

std::vector<int64_t> batches_of(const Options& o) {
  return o.all ? std::vector<int64_t>{256, 64, 8, 1} : std::vector<int64_t>{o.batch};
}

std::vector<Row> run(CudaDevice& device, const Options& o) {
  std::vector<Row> rows;
  for (const SsdShape& shape : kSsdShapes) {
    if (!o.all && (o.operation != "ssd_decode" || (!o.shape.empty() && o.shape != shape.name))) continue;
    for (const char* state : {"float32", "bfloat16", "float16", "int16", "int8"}) {
      if (!o.all && o.state != state) continue;
      for (int64_t batch : batches_of(o))
        rows.push_back(bench_ssd_decode(device, shape, {batch, *parse_dtype(state), !o.serial}));
    }
  }
  for (const DecodeCase& decode : recurrent_decode_cases()) {
    if (!o.all && o.operation != decode.operation) continue;
    for (int64_t batch : batches_of(o))
      rows.push_back(decode.run(device, {batch, *parse_dtype(o.all ? "float32" : o.state), !o.serial}));
  }
  using Size = std::pair<int64_t, int64_t>;  // sequences, tokens of each
  const std::vector<Size> sizes =
      o.all ? std::vector<Size>{{1, 2048}, {1, 8192}, {1, 32768}, {8, 2048}} : std::vector<Size>{{o.batch, o.tokens}};
  for (const PrefillCase& prefill : recurrent_prefill_cases()) {
    if (!o.all && o.operation != prefill.operation) continue;
    for (const auto& [batch, tokens] : sizes)
      rows.push_back(prefill.run(device, {batch, *parse_dtype(o.all ? "float32" : o.state), !o.serial, tokens}));
  }
  return rows;
}

void add_products(CudaDevice& device, const Options& o, std::vector<Row>& rows) {
  for (const bool allow_bf16 : {true, false}) {
    if (!o.all && o.operation != (allow_bf16 ? kProducts : kFloat32Products)) continue;
    const std::vector<int64_t> counts = o.all ? std::vector<int64_t>{1, 8, 64, 512, 2048} : batches_of(o);
    for (const int64_t count : counts)
      for (Row& row : bench_products(device, {.batch = count}, allow_bf16)) rows.push_back(std::move(row));
  }
}

struct Ceilings {
  double copy, products;
};

void print_table(const CudaDevice& device, const Ceilings& most, const std::vector<Row>& rows) {
  fmt::print("{}: copies {:.0f} GB/s (read and written), {} {:.0f} TFLOP/s\n\n", device.info().name, most.copy / 1e9,
             kDeviceProducts, most.products / 1e12);
  fmt::print("{:<18} {:<11} {:<9} {:>6} {:>7} {:>9} {:>18} {:>6} {:>8} {:>8} {:>11}\n", "operation", "shape", "state",
             "batch", "tokens", "us", "least to most", "GB/s", "of copy", "TFLOP/s", "of products");
  for (const Row& row : rows) {
    const double rate = row.useful_bytes / row.timing.us * 1e6;
    const double products = row.useful_flops / row.timing.us * 1e6;
    fmt::print("{:<18} {:<11} {:<9} {:>6} {:>7} {:>9.2f} {:>9.2f} {:>8.2f} {:>6.0f} {:>7.1f}% {:>8.1f} {:>10.1f}%\n",
               row.operation, row.shape, row.state, row.batch, row.tokens, row.timing.us, row.timing.least_us,
               row.timing.most_us, rate / 1e9, 100 * rate / most.copy, products / 1e12, 100 * products / most.products);
  }
}

void print_json(const CudaDevice& device, const Ceilings& most, const std::vector<Row>& rows) {
  Json::Array list;
  for (const Row& row : rows) {
    Json item;
    item.set("op", row.operation);
    item.set("shape", row.shape);
    item.set("state", row.state);
    item.set("batch", row.batch);
    item.set("tokens", row.tokens);
    item.set("us", row.timing.us);
    item.set("us_min", row.timing.least_us);
    item.set("us_max", row.timing.most_us);
    item.set("useful_bytes", row.useful_bytes);
    item.set("useful_flops", row.useful_flops);
    item.set("of_copy", row.useful_bytes / row.timing.us * 1e6 / most.copy);
    item.set("of_products", row.useful_flops / row.timing.us * 1e6 / most.products);
    list.push_back(std::move(item));
  }
  Json out;
  out.set("device", std::string(device.info().name));
  out.set("copy_gbps", most.copy / 1e9);
  out.set("products_tflops", most.products / 1e12);
  out.set("rows", std::move(list));
  fmt::print("{}\n", out.dump());
}

int main_of(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    cli::output().flush();  // the help
    return 0;
  }
  CudaDevice& device = cuda_device(ordinal_of(options.device));
  const Ceilings most = {copy_bandwidth(device), product_rate(device)};
  std::vector<Row> rows = run(device, options);
  add_products(device, options, rows);
  (options.json ? print_json : print_table)(device, most, rows);
  return 0;
}

}  // namespace
}  // namespace coluber::bench_ops

int main(int argc, char** argv) {
  try {
    return coluber::bench_ops::main_of(argc, argv);
  } catch (const coluber::Error& error) {
    fmt::print(stderr, "coluber-bench-ops: {}\n", error.what());
    return coluber::exit_code(error.code());
  }
}
