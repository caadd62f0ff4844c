// SPDX-License-Identifier: Apache-2.0
#include "cache/session_file.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cache/arithmetic.h"
#include "cache/session_header.h"

namespace coluber {
namespace {

constexpr std::string_view kMagic = "colubses";
constexpr uint32_t kVersion = 1;
constexpr int64_t kPreambleBytes = 64;
constexpr int64_t kHashedPreamble = 32;
constexpr int64_t kSectionAlignment = 128;

// The fixed beginning of a file.
struct Preamble {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  int64_t header_bytes;
  int64_t file_bytes;
  Hash128 checksum;
  uint64_t zeros[2];
};
static_assert(sizeof(Preamble) == kPreambleBytes);

using Pieces = std::vector<std::span<const std::byte>>;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::array<Pieces, kSessionSections.size()> sections_of(const SessionImage& image) {
  return {Pieces{bytes_of(image.tokens)}, Pieces{bytes_of(image.logits)}, Pieces{image.bytes.states},
          image.bytes.pages};
}

SessionSection measure(const Pieces& pieces) {
  SessionSection section;
  HashStream hash;
  for (const std::span<const std::byte> piece : pieces) {
    section.bytes += std::ssize(piece);
    hash.update(piece);
  }
  section.checksum = hash.value();
  return section;
}

Hash128 prefix_of(const SessionImage& image) {
  PrefixHash hash;
  hash.extend(std::span(image.tokens).first(static_cast<size_t>(image.num_computed_tokens)));
  return hash.value();
}

Hash128 header_checksum(std::span<const std::byte> preamble, std::span<const std::byte> text) {
  HashStream hash;
  hash.update(preamble.first(kHashedPreamble));
  hash.update(text);
  return hash.value();
}

// What a file must not say, in words that a person can act on.
class Reader {
 public:
  Reader(std::span<const std::byte> file, std::string_view name) : file_(file), name_(name) {}

  SessionImage read() {
    const Preamble preamble = read_preamble();
    SessionHeader header = read_header(preamble);
    const std::array<std::span<const std::byte>, kSessionSections.size()> sections =
        find_sections(header, kPreambleBytes + preamble.header_bytes);
    SessionImage& image = header.image;
    read_tokens(sections[0], header);
    read_logits(sections[1], image);
    image.bytes.states = sections[2];
    if (std::ssize(sections[2]) != image.layout.slot_bytes)
      damaged(
          fmt::format("the states have {} bytes and the layout says {}", sections[2].size(), image.layout.slot_bytes));
    read_pages(sections[3], image);
    return std::move(header.image);
  }

 private:
  [[noreturn]] void damaged(const std::string& problem) const {
    throw make_error(ErrorCode::kInvalidData,
                     "the session file '{}' cannot be used: {}; restore it from a copy, or begin a new session", name_,
                     problem);
  }

  Preamble read_preamble() const {
    Preamble preamble{};
    if (file_.size() < kMagic.size() || std::memcmp(file_.data(), kMagic.data(), kMagic.size()) != 0)
      throw make_error(ErrorCode::kInvalidData, "'{}' is no session file: it does not begin with '{}'", name_, kMagic);
    if (file_.size() < sizeof(preamble))
      damaged(fmt::format("it has {} bytes, less than any session file: it is cut off", file_.size()));
    std::memcpy(&preamble, file_.data(), sizeof(preamble));
    if (preamble.version != kVersion)
      throw make_error(ErrorCode::kUnsupported,
                       "the session file '{}' is of version {}, this program reads version {}; use the program that "
                       "wrote it",
                       name_, preamble.version, kVersion);
    if (preamble.file_bytes != std::ssize(file_))
      damaged(fmt::format("it has {} bytes and was written with {}: it is cut off or longer than it was", file_.size(),
                          preamble.file_bytes));
    if (preamble.header_bytes < 2 || preamble.header_bytes > std::ssize(file_) - kPreambleBytes)
      damaged(fmt::format("its header of {} bytes does not fit in", preamble.header_bytes));
    if (preamble.zero != 0 || preamble.zeros[0] != 0 || preamble.zeros[1] != 0)
      damaged("a bit of its beginning is wrong");
    return preamble;
  }

  SessionHeader read_header(const Preamble& preamble) const {
    const std::span<const std::byte> text = file_.subspan(kPreambleBytes, static_cast<size_t>(preamble.header_bytes));
    if (header_checksum(file_, text) != preamble.checksum) damaged("the checksum of its header is wrong");
    const std::string_view view(reinterpret_cast<const char*>(text.data()), text.size());
    try {
      return parse_session_header(value_or_throw(parse_json(view, "header")));
    } catch (const Error& error) {
      damaged(fmt::format("its header makes no sense: {}", error.what()));
    }
  }

  std::array<std::span<const std::byte>, kSessionSections.size()> find_sections(const SessionHeader& header,
                                                                                int64_t at) const {
    std::array<std::span<const std::byte>, kSessionSections.size()> found;
    const int64_t end = std::ssize(file_);
    for (size_t i = 0; i < found.size(); ++i) {
      const int64_t begin = round_up(at, kSectionAlignment), bytes = header.sections[i].bytes;
      if (begin > end || bytes > end - begin)
        damaged(fmt::format("its section '{}' lies beyond its end", kSessionSections[i]));
      for (const std::byte gap : file_.subspan(static_cast<size_t>(at), static_cast<size_t>(begin - at)))
        if (gap != std::byte{0}) damaged(fmt::format("a bit before its section '{}' is wrong", kSessionSections[i]));
      found[i] = file_.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
      if (hash_bytes(found[i].data(), bytes) != header.sections[i].checksum)
        damaged(fmt::format("the checksum of its section '{}' is wrong", kSessionSections[i]));
      at = begin + bytes;
    }
    if (at != end) damaged(fmt::format("its last {} bytes belong to nothing", end - at));
    return found;
  }

  void read_tokens(std::span<const std::byte> bytes, SessionHeader& header) const {
    SessionImage& image = header.image;
    if (std::ssize(bytes) != header.num_tokens * static_cast<int64_t>(sizeof(int32_t)))
      damaged(fmt::format("{} bytes of tokens for {} tokens", bytes.size(), header.num_tokens));
    image.tokens.resize(static_cast<size_t>(header.num_tokens));
    std::memcpy(image.tokens.data(), bytes.data(), bytes.size());
    for (const int32_t token : image.tokens)
      if (token < 0 || token >= image.vocab_size)
        damaged(fmt::format("token {} is outside the vocabulary of {}", token, image.vocab_size));
    if (prefix_of(image) != header.prefix) damaged("the states are of other tokens than those in the file");
  }

  void read_logits(std::span<const std::byte> bytes, SessionImage& image) const {
    if (!bytes.empty() && std::ssize(bytes) != image.vocab_size * static_cast<int64_t>(sizeof(float)))
      damaged(fmt::format("{} bytes of logits for a vocabulary of {}", bytes.size(), image.vocab_size));
    image.logits.resize(bytes.size() / sizeof(float));
    if (!bytes.empty()) std::memcpy(image.logits.data(), bytes.data(), bytes.size());
  }

  void read_pages(std::span<const std::byte> bytes, SessionImage& image) const {
    const SessionLayout& layout = image.layout;
    const int64_t pages = layout.num_pages(image.num_computed_tokens);
    int64_t expected = 0;
    if (__builtin_mul_overflow(pages, layout.page_bytes, &expected) || std::ssize(bytes) != expected)
      damaged(fmt::format("{} bytes of attention for {} pages of {} bytes", bytes.size(), pages, layout.page_bytes));
    const auto size = static_cast<size_t>(layout.page_bytes);
    for (int64_t page = 0; page < pages; ++page)
      image.bytes.pages.push_back(bytes.subspan(static_cast<size_t>(page) * size, size));
  }

  std::span<const std::byte> file_;
  std::string_view name_;
};

void append_zeros(FileWriter& writer, int64_t from, int64_t to) {
  static constexpr std::array<std::byte, kSectionAlignment> kZeros{};
  writer.append(std::span(kZeros).first(static_cast<size_t>(to - from)));
}

}  // namespace

void write_session_file(const std::string& path, const SessionImage& image) {
  COLUBER_CHECK(image.num_computed_tokens > 0 && image.num_computed_tokens <= std::ssize(image.tokens),
                "a session of {} tokens, {} of them computed", image.tokens.size(), image.num_computed_tokens);
  COLUBER_CHECK(std::ssize(image.bytes.pages) == image.layout.num_pages(image.num_computed_tokens),
                "{} attention pages for {} tokens", image.bytes.pages.size(), image.num_computed_tokens);
  const std::array<Pieces, kSessionSections.size()> sections = sections_of(image);
  SessionHeader header;
  header.image = image;
  header.num_tokens = std::ssize(image.tokens);
  header.prefix = prefix_of(image);
  std::transform(sections.begin(), sections.end(), header.sections.begin(), measure);
  const std::string text = session_header_json(header).dump();
  const std::span<const std::byte> text_bytes = std::as_bytes(std::span(text.data(), text.size()));

  Preamble preamble{};
  std::memcpy(preamble.magic, kMagic.data(), kMagic.size());
  preamble.version = kVersion;
  preamble.header_bytes = std::ssize(text);
  int64_t end = kPreambleBytes + preamble.header_bytes;
  for (const SessionSection& section : header.sections) end = round_up(end, kSectionAlignment) + section.bytes;
  preamble.file_bytes = end;
  preamble.checksum = header_checksum(std::as_bytes(std::span(&preamble, 1)), text_bytes);

  write_file_atomically(path, [&](FileWriter& writer) {
    writer.append(std::as_bytes(std::span(&preamble, 1)));
    writer.append(text_bytes);
    int64_t at = kPreambleBytes + preamble.header_bytes;
    for (size_t i = 0; i < sections.size(); ++i) {
      const int64_t begin = round_up(at, kSectionAlignment);
      append_zeros(writer, at, begin);
      for (const std::span<const std::byte> piece : sections[i]) writer.append(piece);
      at = begin + header.sections[i].bytes;
    }
  });
}

SessionImage parse_session(std::span<const std::byte> file, std::string_view name) { return Reader(file, name).read(); }

SessionImage read_session_file(const std::string& path) {
  auto file = std::make_shared<MappedFile>(path);
  SessionImage image = parse_session(file->bytes(), path);
  image.bytes.owners.push_back(std::move(file));
  return image;
}

SessionImage convert_session_image(std::span<const SessionImage> parts, const LayoutChange& change) {
  COLUBER_CHECK(!parts.empty(), "a session of no parts");
  const SessionImage& first = parts[0];
  std::vector<SessionPart> described;
  for (const SessionImage& part : parts) {
    if (part.fingerprint != first.fingerprint || part.tokens != first.tokens ||
        part.num_computed_tokens != first.num_computed_tokens)
      throw make_error(ErrorCode::kInvalidData, "part {} is of another session than part 0: other tokens or model",
                       described.size());
    described.push_back({&part.layout, &part.bytes});
  }
  SessionImage out = first;
  out.layout = changed_layout(first.layout, change);
  out.bytes = convert_session(described, out.layout, first.num_computed_tokens);
  return out;
}

}  // namespace coluber
