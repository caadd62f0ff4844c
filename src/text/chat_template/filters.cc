// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/filters.h"

#include <algorithm>
#include <array>

#include "text/chat_template/arguments.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

namespace {

constexpr std::array<std::string_view, 5> kRefusedFilters = {"pprint", "random", "striptags", "urlize", "wordwrap"};

const Filter* find_filter(std::string_view name) noexcept {
  for (const FilterTable& table : {text_filters(), number_filters(), sequence_filters(), selection_filters()}) {
    const Filter* found =
        std::find_if(table.begin, table.end, [name](const Filter& filter) { return filter.name == name; });
    if (found != table.end) return found;
  }
  return nullptr;
}

bool is_refused(std::string_view name) noexcept {
  return std::find(kRefusedFilters.begin(), kRefusedFilters.end(), name) != kRefusedFilters.end();
}

using Test = bool (*)(Interpreter& in, const Value& value, const Args& args);
struct NamedTest {
  std::string_view name;
  Test function;
};

const Value& operand(std::string_view name, const Args& args) {
  if (args.positional.size() != 1 || !args.keyword.empty())
    raise_type("the test '{}' takes one argument, {} given", name, args.positional.size());
  return args.positional[0];
}

template <Op kOp>
bool comparison(Interpreter&, const Value& value, const Args& args) {
  return compare(kOp, value, operand("comparison", args));
}

bool is_remainder(Interpreter& in, const Value& value, const Value& divisor, int64_t wanted) {
  return equal(binary(in.heap(), Op::kMod, value, divisor), Value(wanted));
}

bool is_sequence(Interpreter&, const Value& value, const Args&) {
  return value.is_undefined() || value.is_string() || value.is_list() || value.is_tuple() || value.is_dict() ||
         (value.is_view() && value.view().is_range());
}

bool is_callable(Interpreter&, const Value& value, const Args&) {
  return value.is_undefined() || (value.is_object() && value.object()->callable());
}

bool is_same(Interpreter&, const Value& value, const Args& args) {
  const Value& other = operand("sameas", args);
  if (value.kind() != other.kind()) return false;
  if (value.identity() == nullptr) return equal(value, other);
  return value.identity() == other.identity() || (value.is_string() && value.str() == other.str());
}

bool has_case(Interpreter& in, const Value& value, bool lower_case) {
  const Value text = value.is_string() ? value : in.heap().string(to_str(value, in.heap()));
  const Value method = in.attribute(text, constant_string(lower_case ? "islower" : "isupper"));
  return truthy(in.call(method, {}));
}

bool names(const Value& value, bool (*has)(std::string_view) noexcept) { return value.is_string() && has(value.str()); }

constexpr NamedTest kTests[] = {
    {"defined", [](Interpreter&, const Value& v, const Args&) { return !v.is_undefined(); }},
    {"undefined", [](Interpreter&, const Value& v, const Args&) { return v.is_undefined(); }},
    {"none", [](Interpreter&, const Value& v, const Args&) { return v.is_none(); }},
    {"string", [](Interpreter&, const Value& v, const Args&) { return v.is_string(); }},
    {"mapping", [](Interpreter&, const Value& v, const Args&) { return v.is_dict(); }},
    {"iterable", [](Interpreter&, const Value& v, const Args&) { return is_iterable(v); }},
    {"sequence", is_sequence},
    {"number", [](Interpreter&, const Value& v, const Args&) { return v.is_number(); }},
    {"integer", [](Interpreter&, const Value& v, const Args&) { return v.is_int(); }},
    {"float", [](Interpreter&, const Value& v, const Args&) { return v.is_float(); }},
    {"boolean", [](Interpreter&, const Value& v, const Args&) { return v.is_bool(); }},
    {"true", [](Interpreter&, const Value& v, const Args&) { return v.is_bool() && v.boolean(); }},
    {"false", [](Interpreter&, const Value& v, const Args&) { return v.is_bool() && !v.boolean(); }},
    {"odd", [](Interpreter& in, const Value& v, const Args&) { return is_remainder(in, v, Value(int64_t{2}), 1); }},
    {"even", [](Interpreter& in, const Value& v, const Args&) { return is_remainder(in, v, Value(int64_t{2}), 0); }},
    {"divisibleby",
     [](Interpreter& in, const Value& v, const Args& a) { return is_remainder(in, v, operand("divisibleby", a), 0); }},
    {"in", [](Interpreter&, const Value& v, const Args& a) { return contains(operand("in", a), v); }},
    {"sameas", is_same},
    {"callable", is_callable},
    {"lower", [](Interpreter& in, const Value& v, const Args&) { return has_case(in, v, true); }},
    {"upper", [](Interpreter& in, const Value& v, const Args&) { return has_case(in, v, false); }},
    {"escaped", [](Interpreter&, const Value& v, const Args&) { return v.is_string() && v.text().markup; }},
    {"filter", [](Interpreter&, const Value& v, const Args&) { return names(v, has_filter); }},
    {"test", [](Interpreter&, const Value& v, const Args&) { return names(v, has_test); }},
    {"==", comparison<Op::kEq>},
    {"eq", comparison<Op::kEq>},
    {"equalto", comparison<Op::kEq>},
    {"!=", comparison<Op::kNe>},
    {"ne", comparison<Op::kNe>},
    {"<", comparison<Op::kLt>},
    {"lt", comparison<Op::kLt>},
    {"lessthan", comparison<Op::kLt>},
    {"<=", comparison<Op::kLe>},
    {"le", comparison<Op::kLe>},
    {">", comparison<Op::kGt>},
    {"gt", comparison<Op::kGt>},
    {"greaterthan", comparison<Op::kGt>},
    {">=", comparison<Op::kGe>},
    {"ge", comparison<Op::kGe>},
};

const NamedTest* find_test(std::string_view name) noexcept {
  const auto* found =
      std::find_if(std::begin(kTests), std::end(kTests), [name](const NamedTest& test) { return test.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace

bool has_filter(std::string_view name) noexcept { return find_filter(name) != nullptr || is_refused(name); }
bool has_test(std::string_view name) noexcept { return find_test(name) != nullptr; }

Value call_filter(Interpreter& in, std::string_view name, const Value& value, const Args& args) {
  in.heap().step();
  if (is_refused(name)) raise_type("the filter '{}' is not supported in chat templates", name);
  const Filter* filter = find_filter(name);
  if (filter == nullptr) raise_type("no filter named '{}'", name);
  return filter->function(in, value, args);
}

bool call_test(Interpreter& in, std::string_view name, const Value& value, const Args& args) {
  const NamedTest* test = find_test(name);
  if (test == nullptr) raise_type("no test named '{}'", name);
  return test->function(in, value, args);
}

Value follow_attribute(Interpreter& in, Value value, const Value& path, const Value* fallback) {
  const auto follow = [&](const Value& part) {
    value = in.item(value, part);
    if (fallback != nullptr && !fallback->is_none() && value.is_undefined()) value = *fallback;
  };
  if (path.is_none()) return value;
  if (!path.is_string()) {
    follow(path);
    return value;
  }
  const std::string& words = path.str();
  for (size_t begin = 0; begin <= words.size();) {
    const size_t end = std::min(words.find('.', begin), words.size());
    const std::string word = words.substr(begin, end - begin);
    const bool number = !word.empty() && word.size() < 18 && word.find_first_not_of("0123456789") == word.npos;
    follow(number ? Value(static_cast<int64_t>(std::stoll(word))) : constant_string(word));
    begin = end + 1;
  }
  return value;
}

}  // namespace coluber::jinja
