// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz entry point without libFuzzer: over every file of the folders (or each file) named, and over changed
// copies of it: truncated, with bits flipped and bytes replaced. The changes depend on nothing but the file, so a
// failure comes back.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

constexpr int kChangesPerFile = 500;
constexpr size_t kMostBytesChanged = 1 << 16;  // of larger files only the file itself runs

uint64_t next_random(uint64_t* state) {
  *state += 0x9e3779b97f4a7c15U;
  uint64_t x = *state;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// In a block of exactly its size, so that the address sanitizer sees a read past the end.
void run(const Bytes& bytes) {
  const Bytes exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes changed(const Bytes& original, uint64_t* state) {
  // What parsers trip over: boundary numbers, brackets, quotes, escapes.
  static constexpr uint8_t kBytes[] = {0x00, 0xff, 0x7f, 0x80, '0', '9', '-', '.', 'e',
                                       '"',  '\\', '[',  ']',  '{', '}', ',', ':', ' '};
  Bytes bytes = original;
  if (next_random(state) % 4 == 0) bytes.resize(next_random(state) % (bytes.size() + 1));
  const uint64_t num_edits = 1 + next_random(state) % 4;
  for (uint64_t i = 0; i < num_edits && !bytes.empty(); ++i) {
    const size_t at = next_random(state) % bytes.size();
    const uint64_t value = next_random(state);
    switch (next_random(state) % 4) {
      case 0:
        bytes[at] ^= static_cast<uint8_t>(1U << (value % 8));
        break;
      case 1:
        bytes[at] = kBytes[value % std::size(kBytes)];
        break;
      case 2:
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), kBytes[value % std::size(kBytes)]);
        break;
      default:
        bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
        break;
    }
  }
  return bytes;
}

void replay(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const Bytes bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::fprintf(stderr, "%s: %zu bytes\n", path.c_str(), bytes.size());
  run(bytes);
  if (bytes.size() > kMostBytesChanged) return;
  uint64_t state = bytes.size();
  for (int i = 0; i < kChangesPerFile; ++i) run(changed(bytes, &state));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (fs::is_directory(argv[i])) {
      for (const fs::directory_entry& item : fs::directory_iterator(argv[i])) {
        if (item.is_regular_file()) files.push_back(item.path());
      }
    } else {
      files.emplace_back(argv[i]);
    }
  }
  if (files.empty()) {
    std::fprintf(stderr, "no corpus: expected files, or folders with files, as arguments\n");
    return 2;
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) replay(path);
  return 0;
}
