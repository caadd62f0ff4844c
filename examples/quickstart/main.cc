// SPDX-License-Identifier: Apache-2.0
//
// The shortest program on the library: goes on with a text.
#include <exception>
#include <iostream>

#include "coluber/engine.h"

int main(int argc, char** argv) try {
  coluber::EngineOptions options;
  options.model = argc > 1 ? argv[1] : "models/asp-7m";
  const auto engine = coluber::Engine::load(options);
  coluber::SamplingParams sampling = engine->default_sampling();
  sampling.max_tokens = 40;
  sampling.seed = 1;
  engine->add_request({engine->encode("Once upon a time there was a small"), sampling});
  while (engine->has_unfinished_requests())
    for (const coluber::RequestOutput& output : engine->step()) std::cout << output.text << std::flush;
  std::cout << '\n';
} catch (const std::exception& error) {
  std::cerr << "quickstart: " << error.what() << '\n';
  return 1;
}
