// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <optional>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/model_text.h"
#include "formats/model_folder.h"
#include "text/chat_template/chat_template.h"

namespace coluber::cli {
namespace {

struct TemplateCommandOptions {
  std::string model;
  std::optional<std::string> prompt, system, file, now;
  bool no_generation_prompt = false;
  bool jsonl = false;
};

// A rendered conversation, or why there is none.
struct Rendered {
  std::string text;
  std::optional<std::string> error;
};

class TemplateRenderer {
 public:
  explicit TemplateRenderer(const std::string& model)
      : model_(find_model(model)), folder_(resolve_model(model_, ModelNeeds::kTokenizer)) {
    try {
      templates_ = find_chat_template(folder_);
    } catch (const Error& error) {
      broken_ = error;  // told to those who need it: a request may bring a template of its own
    }
    special_tokens_ = templates_ ? templates_->special_tokens : find_special_tokens(folder_);
  }

  // `request` as a line of --jsonl. Throws Error for a request of another form.
  Rendered render(const Json& request) const {
    if (!request.is_object()) {
      throw make_error(ErrorCode::kInvalidArgument, "expected an object with \"messages\", found {}",
                       request.type_name());
    }
    TemplateFailure failure;
    const RenderOptions options = render_options(request);
    const Result<std::string> text = render_with(request, options, &failure);
    if (text) return {*text, std::nullopt};
    // What a template says by raise_exception is meant for people as it is.
    return {{}, failure.type == "TemplateError" ? failure.message : text.error().message};
  }

 private:
  static RenderOptions render_options(const Json& request) {
    RenderOptions options;
    if (const Json* now = request.find("now"); now != nullptr && !now->is_null()) {
      options.now = value_or_throw(parse_clock(now->as_string()));
    }
    return options;
  }

  Json variables(const Json& request) const {
    Json variables{Json::Object{}};
    for (const auto& [name, token] : special_tokens_.as_object()) variables.set(name, token);
    if (const Json* kwargs = request.find("kwargs"); kwargs != nullptr && !kwargs->is_null()) {
      for (const auto& [name, value] : kwargs->as_object()) variables.set(name, value);
    }
    if (!request.at("messages").is_array()) {
      throw make_error(ErrorCode::kInvalidArgument, "\"messages\" must be an array, found {}",
                       request.at("messages").type_name());
    }
    variables.set("messages", request.at("messages"));
    for (const char* name : {"tools", "add_generation_prompt", "bos_token", "eos_token"}) {
      if (const Json* value = request.find(name); value != nullptr && !value->is_null()) variables.set(name, *value);
    }
    return variables;
  }

  Result<std::string> render_with(const Json& request, const RenderOptions& options, TemplateFailure* failure) const {
    if (const Json* source = request.find("template"); source != nullptr && !source->is_null()) {
      const Result<ChatTemplate> own = ChatTemplate::parse(source->as_string(), "template", options.limits, failure);
      if (!own) return tl::unexpected(own.error());
      return own->render(variables(request), options, failure);
    }
    if (broken_) throw *broken_;
    if (!templates_) {
      return fail(ErrorCode::kUnsupported, "{} has no chat template; give one as \"template\"", model_);
    }
    return templates_->render(variables(request), options, failure);
  }

  std::string model_;
  ModelFolder folder_;
  std::optional<ChatTemplates> templates_;
  std::optional<Error> broken_;  // why the model's own template cannot be used
  Json special_tokens_;
};

void render_lines(const TemplateRenderer& renderer) {
  std::string line;
  for (int64_t number = 1; read_stdin_line(&line); ++number) {
    check_interrupt();
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Json answer;
    try {
      const Rendered rendered = renderer.render(value_or_throw(parse_json(line, fmt::format("line {}", number))));
      answer =
          rendered.error ? Json(Json::Object{{"error", *rendered.error}}) : Json(Json::Object{{"text", rendered.text}});
    } catch (const Error& error) {
      answer = Json(Json::Object{{"error", std::string(error.what())}});
    }
    output().write(json_line(answer));
    if (!stdin_line_is_buffered()) output().flush();
  }
}

// The conversation of the flags, a file, or standard input: an object as a line of --jsonl, or the messages alone.
Json read_request(const TemplateCommandOptions& options) {
  Json request{Json::Object{}};
  if (options.prompt) {
    check_utf8(*options.prompt, "the prompt");
    Json messages{Json::Array{}};
    if (options.system) messages.push_back(Json(Json::Object{{"role", "system"}, {"content", *options.system}}));
    messages.push_back(Json(Json::Object{{"role", "user"}, {"content", *options.prompt}}));
    request.set("messages", std::move(messages));
  } else {
    const std::string source = options.file.value_or("standard input");
    Json read = value_or_throw(parse_json(options.file ? read_text_file(*options.file) : read_stdin(), source));
    if (read.is_array()) {
      request.set("messages", std::move(read));
    } else {
      request = std::move(read);
    }
  }
  if (request.is_object() && request.find("add_generation_prompt") == nullptr) {
    request.set("add_generation_prompt", !options.no_generation_prompt);
  }
  if (options.now) request.set("now", *options.now);
  return request;
}

void declare(Arguments& arguments, TemplateCommandOptions& options) {
  arguments.positional("MODEL", &options.model, "folder of a model; without it the built-in model");
  arguments.section("Conversation (one of these, or JSON on standard input)");
  arguments.text("-p,--prompt", &options.prompt, "TEXT", "one message of the user");
  arguments.text("--system", &options.system, "TEXT", "a system message before it");
  arguments.text("-f,--file", &options.file, "FILE", "JSON: a list of messages, or an object as a line of --jsonl");
  arguments.flag(
      "--jsonl", &options.jsonl,
      "standard input is lines {\"messages\", \"tools\"?, \"add_generation_prompt\"?, \"kwargs\"?, \"template\"?, "
      "\"bos_token\"?, \"eos_token\"?, \"now\"?}; each gives a line {\"text\"} or {\"error\"}");
  arguments.section("Rendering");
  arguments.flag("--no-add-generation-prompt", &options.no_generation_prompt, "end after the last message");
  arguments.text("--now", &options.now, "TIME",
                 "the clock that the template sees, as 2024-07-06T08:05:09; without it the real one");
  arguments.example("coluber template -p \"What is a river?\"", "what the built-in model is given");
  arguments.example("coluber template path/to/model -f conversation.json",
                    "a conversation with another model's template");
  arguments.example("coluber template path/to/model -p hi --system \"Be brief.\" --no-add-generation-prompt",
                    "without the beginning of an answer");
  arguments.example("coluber template --jsonl < conversations.jsonl > texts.jsonl", "many, each with its own settings");
}

void check_combinations(const TemplateCommandOptions& options) {
  const auto refuse = [](std::string_view what) {
    throw make_error(ErrorCode::kInvalidArgument, "template: {}", what);
  };
  if (options.prompt && options.file) refuse("both --prompt and --file were given; leave one out");
  if (options.system && !options.prompt) refuse("--system goes with --prompt; add it");
  if (options.jsonl && (options.prompt || options.file || options.now || options.no_generation_prompt)) {
    refuse("--jsonl reads everything from its lines; leave the other options out");
  }
}

}  // namespace

int template_command(const std::vector<std::string>& args) {
  Arguments arguments("template",
                      "Renders conversations with a model's chat template, as the model would be given them.");
  TemplateCommandOptions options;
  declare(arguments, options);
  if (!arguments.parse(args)) return 0;
  check_combinations(options);
  if (!options.prompt && !options.file && stdin_is_terminal()) {
    std::fputs((arguments.help() + "\n").c_str(), stderr);
    notice("template: there is no conversation; give it with -p TEXT, -f FILE, or through a pipe");
    return exit_code(ErrorCode::kInvalidArgument);
  }
  const TemplateRenderer renderer(options.model);
  if (options.jsonl) {
    render_lines(renderer);
    return 0;
  }
  const Rendered rendered = renderer.render(read_request(options));
  if (rendered.error) throw make_error(ErrorCode::kInvalidArgument, "template: {}", *rendered.error);
  output().write(rendered.text);
  if (!rendered.text.ends_with('\n')) output().write("\n");
  return 0;
}

}  // namespace coluber::cli
