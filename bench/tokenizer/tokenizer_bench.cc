// SPDX-License-Identifier: Apache-2.0
//
// The tokenizer alone, for comparisons with other implementations:
//   tokenizer_bench TOKENIZER --time FILE --reps N   encodes FILE line by line N times on one thread, prints seconds a
//   pass tokenizer_bench TOKENIZER                        JSON lines on stdin: {"text", "add_special_tokens"?} to
//   {"ids"},
//                                                    {"ids", "skip_special_tokens"?} to {"text", "streamed"}
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using coluber::Json;

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  const std::string text = coluber::read_text_file(path);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

int time_passes(const coluber::Tokenizer& tokenizer, const std::string& path, int reps) {
  const std::vector<std::string> lines = read_lines(path);
  Json::Array seconds;
  size_t tokens = 0;
  std::vector<int32_t> ids;
  for (int rep = 0; rep < reps; ++rep) {
    tokens = 0;
    const auto start = std::chrono::steady_clock::now();
    for (const std::string& line : lines) {
      ids.clear();
      const auto done = tokenizer.encode_into(line, false, ids);
      if (!done) throw coluber::Error(done.error().code, done.error().message);
      tokens += ids.size();
    }
    seconds.emplace_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  Json result;
  result.set("seconds", std::move(seconds));
  result.set("tokens", static_cast<int64_t>(tokens));
  std::puts(result.dump().c_str());
  return 0;
}

Json answer(const coluber::Tokenizer& tokenizer, const Json& request) {
  Json result;
  if (const Json* text = request.find("text")) {
    const Json* special = request.find("add_special_tokens");
    auto ids = tokenizer.encode(text->as_string(), special == nullptr || special->as_bool());
    if (!ids) {
      result.set("error", ids.error().message);
      return result;
    }
    Json::Array list;
    for (const int32_t id : *ids) list.emplace_back(static_cast<int64_t>(id));
    result.set("ids", std::move(list));
    return result;
  }
  const Json* skip = request.find("skip_special_tokens");
  const bool skips = skip == nullptr || skip->as_bool();
  std::vector<int32_t> ids;
  for (const Json& id : request.at("ids").as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  coluber::DetokenizeStream stream(tokenizer, skips);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string part = stream.push(id);
    if (!coluber::is_valid_utf8(part))
      throw coluber::Error(coluber::ErrorCode::kInternal, "half a character was streamed");
    streamed += part;
  }
  streamed += stream.flush();
  result.set("text", tokenizer.decode(ids, skips));
  result.set("streamed", streamed);
  return result;
}

int answer_lines(const coluber::Tokenizer& tokenizer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json request = coluber::value_or_throw(coluber::parse_json(line, "stdin"));
    std::puts(answer(tokenizer, request).dump().c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool times = argc == 6 && std::string(argv[2]) == "--time" && std::string(argv[4]) == "--reps";
  if (argc != 2 && !times) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER [--time FILE --reps N]\n");
    return 2;
  }
  try {
    const auto tokenizer = coluber::Tokenizer::load(argv[1]);
    return times ? time_passes(*tokenizer, argv[3], std::max(1, std::atoi(argv[5]))) : answer_lines(*tokenizer);
  } catch (const coluber::Error& error) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", error.what());
    return coluber::exit_code(error.code());
  }
}
