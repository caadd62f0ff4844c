// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/model.h"

namespace coluber {

Result<void> Model::encode_bytes(std::string_view, const Scanner&, Scratch&, std::vector<int32_t>&) const {
  return fail(ErrorCode::kInternal, "the {} model does not work on bytes", kind());
}

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

void load_vocab(const Component& component, Vocab& vocab) {
  const Json* json = component.json().find("vocab");
  if (json == nullptr || !json->is_object()) {
    component.refuse(fmt::format("\"vocab\" should be an object of tokens and ids, found {}",
                                 json == nullptr ? "nothing" : json->type_name()));
  }
  const Json::Object& members = json->as_object();
  const int64_t highest = Vocab::max_allowed_id(members.size());
  vocab.reserve(members.size());
  for (const auto& [token, id] : members) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > highest) {
      component.refuse(fmt::format("vocab: the id of \"{}\" should be an integer from 0 to {}, found {}", token,
                                   highest, id.dump()));
    }
    if (!vocab.add(token, id.as_int())) {
      component.refuse(fmt::format("vocab: the id {} of \"{}\" is also that of \"{}\"", id.as_int(), token,
                                   vocab.token(static_cast<int32_t>(id.as_int()))));
    }
  }
}

std::unique_ptr<Model> load_model(const Component& component) {
  // Files from before models had a "type" are told apart by their members, as the reference does.
  const std::string type = component.has("type")                       ? component.text("type")
                           : component.has("merges")                   ? "BPE"
                           : component.has("max_input_chars_per_word") ? "WordPiece"
                           : component.has("unk_id")                   ? "Unigram"
                           : component.has("unk_token")                ? "WordLevel"
                                                                       : component.type();
  if (type == "BPE") return load_bpe(component);
  if (type == "Unigram") return load_unigram(component);
  if (type == "WordPiece") return load_word_piece(component);
  if (type == "WordLevel") return load_word_level(component);
  component.unknown_kind("model", {"BPE", "Unigram", "WordPiece", "WordLevel"});
}

}  // namespace coluber
