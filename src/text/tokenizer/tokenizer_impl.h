// SPDX-License-Identifier: Apache-2.0
//
// The parts of a Tokenizer and how they are read. Private to tokenizer.cc (encoding and decoding) and load.cc
// (reading).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/foreign_formats.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber {

// Working memory of finished encodings, kept with its word cache for the next ones. Thread-safe.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take();
  void give_back(std::unique_ptr<Scratch> scratch);

 private:
  static constexpr size_t kMaxKept = 64;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

struct Tokenizer::Impl {
  struct TokenInfo {
    std::string_view text;  // what decoders get
    bool known = false;
    bool special = false;
    bool skipped = false;  // left out where special tokens are skipped: `text` is that of a special token
  };

  std::string source;
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<Model> model;
  AddedTokens added;
  PostProcessor post_processor;
  DecodeChain decoder;
  std::optional<Scanner> byte_scanner;  // the pre-tokenizer is this and byte letters, and the model works on bytes
  int32_t hidden_special = -1;          // a special token that no text spells
  bool byte_level = false;              // tokens are spelled in byte letters
  std::vector<TokenInfo> tokens;        // by id
  int64_t vocab_size = 0;
  std::string bos_token;
  std::string eos_token;
  std::string unk_token;
  std::string pad_token;
  mutable ScratchPool scratch;

  void load(const Json& tokenizer, const Json* config);
  void load(ForeignTokenizer parts, const Json* config);

 private:
  void load_added(const Component& root);
  void load_components(const Component& root);
  void load_foreign_added(std::vector<std::pair<int32_t, AddedToken>> tokens, const Json* config);
  void load_config(const Component& config);
  void load_names(const Component& config);
  void apply_bos_eos(const Component& config, bool by_default);
  void finish();
  void index_tokens();
};

}  // namespace coluber
