// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/json_dump.h"

#include <algorithm>
#include <cmath>

#include "text/chat_template/fault.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

namespace {

class Dumper {
 public:
  Dumper(Heap& heap, const JsonDumpOptions& options) : heap_(heap), options_(options) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& value, int depth) {
    if (depth > kMaxValueDepth)
      raise(FaultKind::kLimit, "values nested deeper than {} cannot be written as JSON", kMaxValueDepth);
    heap_.step();
    heap_.check_text(static_cast<int64_t>(out_.size()));
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        return;
      case Kind::kBool:
        out_ += value.boolean() ? "true" : "false";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.integer());
        return;
      case Kind::kFloat:
        out_ += real(value.real());
        return;
      case Kind::kString:
        return write_string(value.str());
      case Kind::kList:
      case Kind::kTuple:
        return write_array(value.items(), depth);
      case Kind::kDict:
        return write_object(value.dict(), depth);
      default:
        raise_type("Object of type {} is not JSON serializable", type_name(value));
    }
  }

  static std::string real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void new_line(int depth) {
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += *options_.indent;
  }

  void write_array(const Values& items, int depth) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += options_.item_separator;
      if (options_.indent) new_line(depth + 1);
      write(items[i], depth + 1);
    }
    if (options_.indent && !items.empty()) new_line(depth);
    out_ += ']';
  }

  void write_object(const Dict& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (options_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += options_.item_separator;
      if (options_.indent) new_line(depth + 1);
      write_key(entries[i]->first);
      out_ += options_.key_separator;
      write(entries[i]->second, depth + 1);
    }
    if (options_.indent && !entries.empty()) new_line(depth);
    out_ += '}';
  }

  void write_key(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return write_string(key.str());
      case Kind::kNone:
        out_ += "\"null\"";
        return;
      case Kind::kBool:
        out_ += key.boolean() ? "\"true\"" : "\"false\"";
        return;
      case Kind::kInt:
        out_ += '"' + std::to_string(key.integer()) + '"';
        return;
      case Kind::kFloat:
        out_ += '"' + real(key.real()) + '"';
        return;
      default:
        raise_type("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
  }

  void write_string(std::string_view text) {
    heap_.step(static_cast<int64_t>(text.size()) / 64);
    heap_.check_text(static_cast<int64_t>(out_.size() + text.size()));
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const char32_t c = decode_char(text, &at);
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += static_cast<char>(c);
      } else if (c == '\n') {
        out_ += "\\n";
      } else if (c == '\r') {
        out_ += "\\r";
      } else if (c == '\t') {
        out_ += "\\t";
      } else if (c == '\b') {
        out_ += "\\b";
      } else if (c == '\f') {
        out_ += "\\f";
      } else if (c < 0x20 || (options_.ascii && c > 0x7e)) {
        const auto code = static_cast<uint32_t>(c);
        out_ += code < 0x10000 ? fmt::format("\\u{:04x}", code)
                               : fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                                             0xDC00 + ((code - 0x10000) & 0x3FF));
      } else {
        out_ += text.substr(begin, at - begin);
      }
    }
    out_ += '"';
  }

  Heap& heap_;
  const JsonDumpOptions& options_;
  std::string out_;
};

}  // namespace

std::string dump_json(Heap& heap, const Value& value, const JsonDumpOptions& options) {
  return Dumper(heap, options).run(value);
}

}  // namespace coluber::jinja
