// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "text/chat_template/chat_template.h"

namespace coluber {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTemplateFileBytes = int64_t{4} << 20;

std::string read_text(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (!error && static_cast<int64_t>(size) > kMaxTemplateFileBytes) {
    throw make_error(ErrorCode::kInvalidData, "{}: {} bytes is too much for a chat template (at most {})",
                     path.string(), size, kMaxTemplateFileBytes);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file && !file.eof())
    throw make_error(ErrorCode::kIo, "cannot read {}: check that it is a file and may be read", path.string());
  return text;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

void add(ChatTemplates* out, const std::string& name, std::string_view source, const std::string& origin) {
  auto parsed = ChatTemplate::parse(source, origin);
  if (!parsed) throw Error(ErrorCode::kInvalidData, parsed.error().message);
  out->named.emplace_back(name, std::move(*parsed));
}

// "chat_template" of a JSON file: a template, or a list of {"name", "template"}, or an object of templates by name.
void add_from_json(ChatTemplates* out, const Json& value, const std::string& origin) {
  const auto wrong = [&origin](std::string_view found) {
    return make_error(ErrorCode::kInvalidData,
                      "{}: chat_template must be a text or a list of {{\"name\", \"template\"}}, found {}", origin,
                      found);
  };
  if (value.is_string()) return add(out, "default", value.as_string(), origin);
  if (value.is_object()) {
    for (const auto& [name, source] : value.as_object()) {
      if (!source.is_string()) throw wrong(source.type_name());
      add(out, name, source.as_string(), fmt::format("{} ({})", origin, name));
    }
    return;
  }
  if (!value.is_array()) throw wrong(value.type_name());
  for (const Json& entry : value.as_array()) {
    const Json *name = entry.find("name"), *source = entry.find("template");
    if (name == nullptr || source == nullptr || !name->is_string() || !source->is_string())
      throw wrong("an entry without them");
    add(out, name->as_string(), source->as_string(), fmt::format("{} ({})", origin, name->as_string()));
  }
}

bool add_from_file(ChatTemplates* out, const fs::path& path) {
  if (!is_file(path)) return false;
  const Json config = read_json_file(path.string(), {.allow_python_constants = true});
  const Json* value = config.find("chat_template");
  if (value == nullptr || value->is_null()) return false;
  add_from_json(out, *value, path.string());
  return !out->named.empty();
}

// A special token is a text, or an object with the text as "content".
const Json* token_text(const Json& value) {
  if (value.is_string()) return &value;
  const Json* content = value.find("content");
  return content != nullptr && content->is_string() ? content : nullptr;
}

void add_special_tokens(Json* out, const Json& config) {
  if (!config.is_object()) return;
  const auto add_one = [out](const std::string& name, const Json& value) {
    const Json* text = token_text(value);
    if (text != nullptr && out->find(name) == nullptr) out->set(name, *text);
  };
  for (const auto& [name, value] : config.as_object()) {
    if (name.ends_with("_token")) add_one(name, value);
    if (name == "extra_special_tokens" && value.is_object()) {
      for (const auto& [extra, text] : value.as_object()) add_one(extra, text);
    }
    if (name == "additional_special_tokens" && value.is_array() && out->find(name) == nullptr) {
      Json::Array list;
      for (const Json& entry : value.as_array()) {
        if (const Json* text = token_text(entry)) list.push_back(*text);
      }
      out->set(name, Json(std::move(list)));
    }
  }
}

}  // namespace

Json load_special_tokens(const std::string& folder) {
  Json out{Json::Object{}};
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = fs::path(folder) / name;
    if (is_file(path)) add_special_tokens(&out, read_json_file(path.string(), {.allow_python_constants = true}));
  }
  return out;
}

std::optional<ChatTemplates> load_chat_template(const std::string& folder) {
  const fs::path base(folder);
  ChatTemplates out;
  if (is_file(base / "chat_template.jinja"))
    add(&out, "default", read_text(base / "chat_template.jinja"), (base / "chat_template.jinja").string());
  std::error_code error;
  std::vector<fs::path> extra;
  for (fs::directory_iterator it(base / "additional_chat_templates", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".jinja" && is_file(it->path())) extra.push_back(it->path());
  }
  std::sort(extra.begin(), extra.end());
  for (const fs::path& path : extra) add(&out, path.stem().string(), read_text(path), path.string());
  if (out.named.empty() && !add_from_file(&out, base / "tokenizer_config.json") &&
      !add_from_file(&out, base / "chat_template.json")) {
    return std::nullopt;
  }
  out.special_tokens = load_special_tokens(folder);
  return out;
}

}  // namespace coluber
