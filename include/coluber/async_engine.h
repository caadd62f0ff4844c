// SPDX-License-Identifier: Apache-2.0
//
// An engine with a thread of its own: requests come from any thread, and each has a callback that gets its outputs on
// the engine's thread. It owns the engine. Every function but the constructor and destructor may be called from any
// thread, callbacks included; a callback must return soon, for the next step waits for it.
//
//   AsyncEngine engine(Engine::load({.model = "models/asp-7m"}));
//   auto id = engine.add_request(request, [](const RequestOutput& output) { std::cout << output.text; });
//   engine.wait(id);
#pragma once

#include <functional>
#include <memory>

#include "coluber/engine.h"

namespace coluber {

class AsyncEngine {
 public:
  using OnOutput = std::function<void(const RequestOutput& output)>;

  explicit AsyncEngine(std::unique_ptr<Engine> engine);
  ~AsyncEngine();  // aborts what still runs
  AsyncEngine(const AsyncEngine&) = delete;
  AsyncEngine& operator=(const AsyncEngine&) = delete;

  // Throws Error as Engine::add_request does. The last output of a request has `request_finished`.
  RequestId add_request(Request request, OnOutput on_output);
  // Ends the request; its last output has FinishReason::kAbort. Nothing happens where it has ended already.
  void abort(RequestId id);
  // Returns when the request has ended and its last callback has returned. Not to be called from a callback.
  void wait(RequestId id);
  EngineStats stats() const;
  // Between two steps, with nobody else in the engine: for sessions, clear_prefix_cache and the like. What `work`
  // throws comes out here. It must return soon and must not call this object.
  void with_engine(const std::function<void(Engine& engine)>& work);
  // As Engine::on_lack_of_memory: where `make_way` says true, the next call of another function of this object, which
  // may have made it, lets the requests try again. Called on the engine's thread; must not call this object.
  void on_lack_of_memory(std::function<bool()> make_way);
  // For what does not change after loading, from any thread: model_info, config, default_sampling, eos_token_ids,
  // has_tokenizer, encode, decode, token_bytes, has_chat_template, apply_chat_template, render_chat,
  // encode_chat, chat_template_source. For nothing else.
  const Engine& engine() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber
