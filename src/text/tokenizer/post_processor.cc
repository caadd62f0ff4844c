// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/post_processor.h"

#include <map>

#include "text/tokenizer/normalizer.h"

namespace coluber {
namespace {

constexpr size_t kMaxParts = 1024;

}  // namespace

void PostProcessor::load(const Component& component, int depth) {
  const std::string& type = component.type();
  if (type == "Sequence") {
    if (depth >= kMaxComponentDepth)
      component.refuse(fmt::format("sequences are nested deeper than {}", kMaxComponentDepth));
    for (const Component& child : component.children("processors")) load(child, depth + 1);
  } else if (type == "TemplateProcessing") {
    load_template(component);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    load_pair(component);
  } else if (type != "ByteLevel") {  // ByteLevel changes offsets only
    component.unknown_kind("post-processor",
                           {"Sequence", "TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing"});
  }
}

void PostProcessor::load_template(const Component& component) {
  std::map<std::string, std::vector<int32_t>> specials;
  if (component.has("special_tokens")) {
    const Component tokens = component.child("special_tokens");
    for (const auto& [name, value] : tokens.json().as_object()) {
      const Component token(value, tokens.place() + "." + name);
      const Json* ids = value.find("ids");
      if (ids == nullptr || !ids->is_array()) token.refuse("\"ids\" should be an array of token ids");
      std::vector<int32_t>& list = specials[name];
      for (const Json& id : ids->as_array()) {
        if (!id.is_int() || id.as_int() < 0 || id.as_int() >= INT32_MAX) {
          token.refuse("\"ids\" should hold token ids, found " + id.dump());
        }
        list.push_back(static_cast<int32_t>(id.as_int()));
      }
    }
  }
  std::vector<Part> parts;
  for (const Component& piece : component.children("single")) {
    if (piece.has("Sequence")) {
      const std::string name = piece.child("Sequence").text("id");
      if (name != "A")
        piece.refuse("the template of a single text should name the sequence \"A\", found \"" + name + "\"");
      parts.push_back({true, {}});
    } else if (piece.has("SpecialToken")) {
      const std::string name = piece.child("SpecialToken").text("id");
      const auto found = specials.find(name);
      if (found == specials.end()) piece.refuse("\"special_tokens\" does not list \"" + name + "\"");
      parts.push_back({false, found->second});
    } else {
      piece.refuse("expected {\"Sequence\": ...} or {\"SpecialToken\": ...}");
    }
  }
  if (parts.size() > kMaxParts)
    component.refuse(fmt::format("\"single\" has {} parts, the limit is {}", parts.size(), kMaxParts));
  templates_.push_back(std::move(parts));
}

void PostProcessor::load_pair(const Component& component) {
  const auto id_of = [&](std::string_view key) {
    const Json* pair = component.json().find(key);
    if (pair == nullptr || !pair->is_array() || pair->as_array().size() != 2 || !pair->as_array()[1].is_int() ||
        pair->as_array()[1].as_int() < 0 || pair->as_array()[1].as_int() >= INT32_MAX) {
      component.refuse(
          fmt::format("\"{}\" should be [token, id], found {}", key, pair == nullptr ? "nothing" : pair->dump()));
    }
    return static_cast<int32_t>(pair->as_array()[1].as_int());
  };
  templates_.push_back({Part{false, {id_of("cls")}}, Part{true, {}}, Part{false, {id_of("sep")}}});
}

void PostProcessor::set_bos_eos(std::vector<int32_t> before, std::vector<int32_t> after) {
  templates_.clear();
  templates_.push_back({Part{false, std::move(before)}, Part{true, {}}, Part{false, std::move(after)}});
}

void PostProcessor::apply(size_t start, bool special, std::vector<int32_t>& ids) const {
  for (const std::vector<Part>& parts : templates_) {
    if (!special && parts.size() == 1 && parts[0].is_text) continue;
    const std::vector<int32_t> text(ids.begin() + static_cast<std::ptrdiff_t>(start), ids.end());
    ids.resize(start);
    for (const Part& part : parts) {
      if (part.is_text) {
        ids.insert(ids.end(), text.begin(), text.end());
      } else if (special) {
        ids.insert(ids.end(), part.ids.begin(), part.ids.end());
      }
    }
  }
}

}  // namespace coluber
