// SPDX-License-Identifier: Apache-2.0
//
// Oniguruma (Ruby syntax) to PCRE2. What differs and is rewritten here: \w, \s, \h, \b and POSIX brackets (other sets
// of characters), classes in classes and `&&`, (?m) for "dot matches newline", `{n,m}+` (a repeat of a repeat, not
// possessive),
// `{,n}`, \v, \u, and letters that PCRE2's older Unicode does not know.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/ascii.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/unicode_tables.h"

namespace coluber {
namespace {

constexpr int kMaxClassDepth = 32;
constexpr const char* kAnyCharacter = "(?s:.)";
constexpr const char* kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kNotSpaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
// Latin-1 digits count as word characters, but not inside a class: so Oniguruma does it.
constexpr const char* kLatinWordExtras = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr const char* kWordExtras = R"(\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

std::string hex_escape(uint32_t code_point) { return fmt::format("\\x{{{:x}}}", code_point); }

// `\p{name}` as class items, with the code points that are newer than PCRE2's Unicode.
std::string property_items(std::string_view name) {
  std::string items = fmt::format("\\p{{{}}}", name);
  if (name.size() > 2 || name.empty()) return items;
  for (const CategoryRange& range : kCategoriesSince14) {
    if (range.category[0] != name[0] || (name.size() == 2 && range.category[1] != name[1])) continue;
    items += hex_escape(range.first);
    if (range.last != range.first) items += fmt::format("-{}", hex_escape(range.last));
  }
  return items;
}

std::string word_items(bool in_class) {
  return property_items("L") + property_items("M") + property_items("Nd") + property_items("Nl") +
         property_items("Pc") + kWordExtras + (in_class ? "" : kLatinWordExtras);
}

struct NamedSet {
  const char* name;
  const char* items;
};

constexpr NamedSet kNamedSets[] = {
    {"blank", R"(\p{Zs}\t)"},      {"cntrl", R"(\p{Cc})"},        {"digit", R"(\p{Nd})"},
    {"lower", R"(\p{Lowercase})"}, {"upper", R"(\p{Uppercase})"}, {"xdigit", "0-9a-fA-F"},
    {"ascii", R"(\x{0}-\x{7f})"},  {"punct", R"(\p{P}\p{S})"},    {"any", R"(\x{0}-\x{10ffff})"},
};

// Class items of a POSIX name, or an empty string.
std::string posix_items(std::string_view name) {
  if (name == "alpha") return property_items("L") + property_items("Nl") + "\\p{Alphabetic}";
  if (name == "alnum") return property_items("L") + property_items("Nl") + "\\p{Alphabetic}" + property_items("Nd");
  if (name == "word") return word_items(true);
  if (name == "space") return kSpaces;
  for (const NamedSet& set : kNamedSets) {
    if (name == set.name) return set.items;
  }
  return {};
}

struct LongCategory {
  const char* name;
  const char* category;
};

constexpr LongCategory kLongCategories[] = {
    {"letter", "L"},
    {"mark", "M"},
    {"number", "N"},
    {"punctuation", "P"},
    {"symbol", "S"},
    {"separator", "Z"},
    {"other", "C"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"unassigned", "Cn"},
    {"privateuse", "Co"},
};

// A set of characters: plain items for a PCRE2 class, and sets that a class cannot hold.
struct CharacterSet {
  std::string items;
  std::vector<std::string> others;  // each matches exactly one character
  bool negated = false;
};

std::string negate_single(const std::string& single) { return fmt::format("(?:(?!{}){})", single, kAnyCharacter); }

std::string emit(const CharacterSet& set) {
  if (set.others.empty()) {
    if (set.items.empty()) return set.negated ? kAnyCharacter : "(?!)";
    return fmt::format("[{}{}]", set.negated ? "^" : "", set.items);
  }
  std::string any = "(?:";
  if (!set.items.empty()) any += fmt::format("[{}]|", set.items);
  for (size_t i = 0; i < set.others.size(); ++i) any += fmt::format("{}{}", i == 0 ? "" : "|", set.others[i]);
  any += ")";
  return set.negated ? negate_single(any) : any;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (error_.empty() && at_ < pattern_.size()) step();
    if (!error_.empty()) {
      return fail(ErrorCode::kInvalidData, "the expression {:?} is not understood at byte {}: {}", pattern_, at_,
                  error_);
    }
    return std::move(out_);
  }

 private:
  bool more() const { return at_ < pattern_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }

  void set_error(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }

  void atom(const std::string& text) {
    atom_start_ = out_.size();
    out_ += text;
  }

  std::string take_character() {
    const size_t length = std::min(utf8_char_bytes(pattern_[at_]), pattern_.size() - at_);
    std::string text(pattern_.substr(at_, length));
    at_ += length;
    return text;
  }

  void step() {
    switch (peek()) {
      case '\\':
        return escape();
      case '[': {
        ++at_;
        return atom(emit(parse_class(0)));
      }
      case '(':
        return open_group();
      case ')':
        ++at_;
        out_ += ')';
        if (!groups_.empty()) {
          atom_start_ = groups_.back();
          groups_.pop_back();
        }
        return;
      case '{':
        return repeat();
      case '#':
        ++at_;
        return atom("\\#");
      case '*':
      case '+':
      case '?':
      case '|':
      case '^':
      case '$':
        out_ += pattern_[at_++];
        return;
      default:
        return atom(take_character());
    }
  }

  // `{n}`, `{n,}`, `{n,m}`, `{,m}`; anything else is text.
  void repeat() {
    size_t i = at_ + 1;
    const auto digits = [&] {
      const size_t from = i;
      while (i < pattern_.size() && pattern_[i] >= '0' && pattern_[i] <= '9') ++i;
      return std::string(pattern_.substr(from, i - from));
    };
    const std::string low = digits();
    const bool comma = i < pattern_.size() && pattern_[i] == ',';
    if (comma) ++i;
    const std::string high = comma ? digits() : low;
    if (i >= pattern_.size() || pattern_[i] != '}' || (low.empty() && high.empty())) {
      ++at_;
      return atom("\\{");
    }
    at_ = i + 1;
    out_ += fmt::format("{{{}{}{}}}", low.empty() ? "0" : low, comma ? "," : "", comma ? high : "");
    const bool counted_once = !comma && peek() == '?';
    if (peek() == '+' || peek() == '*' || counted_once) {  // in Ruby's syntax these repeat the repeat
      out_.insert(atom_start_, "(?:");
      out_ += ")";
    }
  }

  void open_group() {
    groups_.push_back(out_.size());
    ++at_;
    if (peek() != '?') {
      out_ += '(';
      return;
    }
    const char kind = peek(1);
    if (kind == '#') {
      const size_t end = pattern_.find(')', at_);
      at_ = end == std::string_view::npos ? pattern_.size() : end + 1;
      groups_.pop_back();
      return;
    }
    if (std::strchr(":=!>|", kind) != nullptr && kind != '\0') {
      out_ += "(?";
      out_ += kind;
      at_ += 2;
      return;
    }
    if (kind == '<' || kind == '\'') {
      const size_t stop =
          peek(2) == '=' || peek(2) == '!' ? at_ + 3 : pattern_.find(kind == '<' ? '>' : '\'', at_ + 2) + 1;
      if (stop == 0 || stop > pattern_.size()) return set_error("a group's name does not end");
      out_ += '(';
      out_ += pattern_.substr(at_, stop - at_);
      at_ = stop;
      return;
    }
    inline_options();
  }

  void inline_options() {
    out_ += "(?";
    ++at_;
    while (more() && peek() != ':' && peek() != ')') {
      const char option = pattern_[at_++];
      if (option == 'm') {
        out_ += 's';
      } else if (option == 'i' || option == 'x' || option == '-') {
        out_ += option;
      } else {
        return set_error(fmt::format("the group option '{}' is not known (i, m, x are)", option));
      }
    }
    if (!more()) return set_error("a group does not end");
    const bool sets_rest = peek() == ')';
    out_ += pattern_[at_++];
    if (sets_rest) groups_.pop_back();
  }

  void escape() {
    const char kind = peek(1);
    if (kind == 'b' || kind == 'B') {
      at_ += 2;
      const char* boundary =
          kind == 'b' ? "(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))" : "(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))";
      out_ += fmt::format(fmt::runtime(boundary), word_items(false));
      return;
    }
    if (std::strchr("AzZGK", kind) != nullptr && kind != '\0') {
      out_ += pattern_.substr(at_, 2);
      at_ += 2;
      return;
    }
    if (std::strchr("RXkg123456789", kind) != nullptr && kind != '\0') {
      atom(std::string(pattern_.substr(at_, 2)));
      at_ += 2;
      if ((kind == 'k' || kind == 'g') && peek() == '<') {
        const size_t end = pattern_.find('>', at_);
        if (end == std::string_view::npos) return set_error("a reference's name does not end");
        out_ += pattern_.substr(at_, end + 1 - at_);
        at_ = end + 1;
      }
      return;
    }
    if (kind == 'O' || kind == 'N') {
      at_ += 2;
      return atom(kind == 'O' ? kAnyCharacter : "[^\\n]");
    }
    CharacterSet set;
    class_escape(set, false);
    atom(emit(set));
  }

  // An escape that stands for characters, at `\`; adds it to the set.
  void class_escape(CharacterSet& set, bool in_class) {
    const char kind = peek(1);
    switch (kind) {
      case '\0':
        return set_error("it ends with a backslash");
      case 'd':
        return class_items(set, property_items("Nd"), false);
      case 'D':
        return class_items(set, property_items("Nd"), true);
      case 's':
        return class_items(set, kSpaces, false);
      case 'S':
        return class_items(set, kNotSpaces, false);
      case 'w':
        return class_items(set, word_items(in_class), false);
      case 'W':
        return class_items(set, word_items(in_class), true);
      case 'h':
        return class_items(set, "0-9a-fA-F", false);
      case 'H':
        return class_items(set, "0-9a-fA-F", true);
      case 'p':
      case 'P':
        return property(set);
      default:
        set.items += hex_escape(escaped_code_point());
    }
  }

  void class_items(CharacterSet& set, const std::string& items, bool negated) {
    at_ += 2;
    add_items(set, items, negated);
  }

  static void add_items(CharacterSet& set, const std::string& items, bool negated) {
    if (negated) {
      set.others.push_back(fmt::format("[^{}]", items));
    } else {
      set.items += items;
    }
  }

  void property(CharacterSet& set) {
    bool negated = peek(1) == 'P';
    at_ += 2;
    if (peek() != '{') return set_error("\\p needs a name in braces");
    const size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) return set_error("a property's name does not end");
    std::string_view name = pattern_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    if (!name.empty() && name.front() == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    std::string plain;
    for (const char c : name) {
      if (c != ' ' && c != '_' && c != '-') plain += ascii::lower(c);
    }
    for (const LongCategory& entry : kLongCategories) {
      if (plain == entry.name) return add_items(set, property_items(entry.category), negated);
    }
    const std::string posix = plain == "word"    ? word_items(false)
                              : plain == "punct" ? property_items("P")
                                                 : posix_items(plain);
    if (!posix.empty()) return add_items(set, posix, negated);
    std::string canonical(name);
    if (plain.size() <= 2 && !plain.empty()) {
      canonical = plain;
      canonical[0] = static_cast<char>(canonical[0] - ('a' - 'A'));
    }
    add_items(set, property_items(canonical), negated);
  }

  // A single character written as an escape, at `\`.
  uint32_t escaped_code_point() {
    const char kind = peek(1);
    at_ += 2;
    switch (kind) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return 0x0B;
      case 'a':
        return 0x07;
      case 'e':
        return 0x1B;
      case 'b':
        return 0x08;
      case 'u':
        return digits_to_code_point(16, 4, 4);
      case 'x': {
        if (peek() != '{') return digits_to_code_point(16, 1, 2);
        ++at_;
        const uint32_t value = digits_to_code_point(16, 1, 8);
        if (peek() != '}') set_error("\\x{ does not end");
        ++at_;
        return value;
      }
      case '0':
        return peek() >= '0' && peek() <= '7' ? digits_to_code_point(8, 1, 2) : 0;
      default:
        break;
    }
    if (ascii::is_letter(kind) || ascii::is_digit(kind)) {
      set_error(fmt::format("the escape \\{} is not supported", kind));
      return 0;
    }
    --at_;
    return literal_code_point();
  }

  uint32_t digits_to_code_point(uint32_t base, int least, int most) {
    uint64_t value = 0;
    int count = 0;
    for (; count < most; ++count, ++at_) {
      const char c = peek();
      const uint32_t digit = c >= '0' && c <= '9'   ? static_cast<uint32_t>(c - '0')
                             : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                             : c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A' + 10)
                                                    : 99;
      if (digit >= base) break;
      value = value * base + digit;
    }
    if (count < least) set_error("an escape lacks its digits");
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      set_error("an escape is no character");
      return 0;
    }
    return static_cast<uint32_t>(value);
  }

  uint32_t literal_code_point() {
    const std::string text = take_character();
    const char* cursor = text.data();
    return next_code_point(cursor);
  }

  // A class, behind its `[`.
  CharacterSet parse_class(int depth) {
    CharacterSet set;
    if (depth > kMaxClassDepth) {
      set_error("character classes are nested too deep");
      return set;
    }
    bool negated = false;
    if (peek() == '^') {
      negated = true;
      ++at_;
    }
    std::vector<std::string> intersected;
    bool first = true;
    while (error_.empty()) {
      if (!more()) {
        set_error("a character class does not end");
        break;
      }
      if (peek() == ']' && !first) {
        ++at_;
        break;
      }
      first = false;
      if (peek() == '&' && peek(1) == '&') {
        at_ += 2;
        intersected.push_back(emit(set));
        set = CharacterSet();
        continue;
      }
      class_member(set, depth);
    }
    if (!intersected.empty()) {
      std::string all = "(?:";
      for (const std::string& part : intersected) all += fmt::format("(?={})", part);
      all += emit(set) + ")";
      set = CharacterSet();
      set.others.push_back(all);
    }
    set.negated = negated;
    return set;
  }

  void class_member(CharacterSet& set, int depth) {
    if (peek() == '[') {
      if (peek(1) == ':') {
        const size_t end = pattern_.find(":]", at_ + 2);
        if (end != std::string_view::npos) return posix_member(set, end);
      }
      ++at_;
      const CharacterSet inner = parse_class(depth + 1);
      if (!inner.negated && inner.others.empty()) {
        set.items += inner.items;
      } else {
        set.others.push_back(emit(inner));
      }
      return;
    }
    if (peek() == '\\' && std::strchr("dDsSwWhHpP", peek(1)) != nullptr && peek(1) != '\0')
      return class_escape(set, true);
    if (peek() == '\\' && peek(1) == '\0') return set_error("it ends with a backslash");
    const uint32_t low = peek() == '\\' ? escaped_code_point() : literal_code_point();
    const bool ranged = peek() == '-' && peek(1) != ']' && peek(1) != '\0' && peek(1) != '[' &&
                        !(peek(1) == '\\' && std::strchr("dDsSwWhHpP", peek(2)) != nullptr);
    set.items += hex_escape(low);
    if (!ranged) return;
    ++at_;
    const uint32_t high = peek() == '\\' ? escaped_code_point() : literal_code_point();
    if (high < low) return set_error("a range of characters runs backwards");
    set.items += fmt::format("-{}", hex_escape(high));
  }

  void posix_member(CharacterSet& set, size_t end) {
    std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
    const bool negated = !name.empty() && name.front() == '^';
    if (negated) name.remove_prefix(1);
    const std::string items = posix_items(name);
    if (items.empty()) return set_error(fmt::format("[:{}:] is not known", name));
    at_ = end + 2;
    add_items(set, items, negated);
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_start_ = 0;
  std::vector<size_t> groups_;
  std::string error_;
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) {
  if (valid_utf8_prefix(pattern) != pattern.size())
    return fail(ErrorCode::kInvalidData, "the expression is not valid UTF-8");
  return Translator(pattern).run();
}

}  // namespace coluber
