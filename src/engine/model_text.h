// SPDX-License-Identifier: Apache-2.0
//
// A model's tokenizer and chat templates, wherever it keeps them: in files of its folder, which come first, or inside a
// GGUF file. It knows the keys of GGUF's metadata and hands on what they hold; the text module reads it.
#pragma once

#include <memory>
#include <optional>

#include "formats/gguf_file.h"
#include "formats/model_folder.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer/stored_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber {

// Null where the model has none. Throws Error where what is there cannot be used.
std::unique_ptr<Tokenizer> find_tokenizer(const ModelFolder& model);
// Throws Error(kNotFound) where the model has none.
std::unique_ptr<Tokenizer> load_tokenizer(const ModelFolder& model);

// What a GGUF file holds of a tokenizer; views of the file.
bool has_stored_tokenizer(const GgufFile& file);
StoredVocabulary stored_vocabulary(const GgufFile& file);

// None where the model has none. Throws Error where what is there cannot be used.
std::optional<ChatTemplates> find_chat_template(const ModelFolder& model);
// Of the same places alone.
Json find_special_tokens(const ModelFolder& model);

}  // namespace coluber
