// SPDX-License-Identifier: Apache-2.0
//
// For each prompt on standard input, a line: how long the library takes to the first token and to the last, in
// milliseconds, from text to text. The answer is of argv[2] tokens. One prompt is answered when its line has come, so
// that whoever writes the lines can do other things between.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "coluber/async_engine.h"

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: library_first_token MODEL TOKENS < prompts\n");
    return 2;
  }
  coluber::EngineOptions options;
  options.model = argv[1];
  options.num_threads = 1;
  options.max_num_seqs = 64;
  options.max_model_len = 2048;
  coluber::AsyncEngine engine(coluber::Engine::load(options));
  coluber::Request request;
  request.sampling.temperature = 0.0f;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = std::atoll(argv[2]);
  for (std::string prompt; std::getline(std::cin, prompt);) {
    double first_ms = 0.0;
    const Clock::time_point start = Clock::now();
    request.prompt_ids = engine.engine().encode(prompt);
    const auto id = engine.add_request(request, [&](const coluber::RequestOutput& output) {
      if (first_ms == 0.0 && !output.text.empty()) first_ms = ms_since(start);
    });
    engine.wait(id);
    std::printf("%.4f %.4f\n", first_ms, ms_since(start));
    std::fflush(stdout);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "library_first_token: %s\n", error.what());
  return 1;
}
