// SPDX-License-Identifier: Apache-2.0
//
// The command coluber-conformance: over the shared case files where they are there, and over files made here that must
// fail.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

namespace fs = std::filesystem;

struct RunResult {
  int status = -1;
  std::string output;
};

RunResult run_conformance(const fs::path& folder) {
  const std::string command =
      std::string("'") + COLUBER_BINARY_DIR + "/coluber-conformance' '" + folder.string() + "' 2>&1";
  RunResult result;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer;
  while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) result.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

class Conformance : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              ("conformance-" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  RunResult run() const { return run_conformance(folder_); }

  fs::path folder_;
};

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

TEST_F(Conformance, EverySharedCasePasses) {
  const fs::path cases = fs::path(COLUBER_SOURCE_DIR) / ".." / "shared" / "cases";
  if (!fs::is_directory(cases)) GTEST_SKIP() << "no case files at " << cases;
  const RunResult result = run_conformance(cases);
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_TRUE(ends_with(result.output, " passed, 0 failed\n")) << result.output;
  EXPECT_NE(result.output.substr(0, 2), "0 ");
}

constexpr const char* kBlocks = R"({"rule":"causal_conv1d_metadata","cases":[
  {"name":"right","input":{"query_lens":[9]},"expect":{"programs_per_sequence":[2],"sequence_of_program":[0,0],"chunk_of_program":[0,1]}},
  {"name":"wrong","input":{"query_lens":[9]},"expect":{"programs_per_sequence":[3],"sequence_of_program":[0,0],"chunk_of_program":[0,1]}},
  {"name":"short","input":{"query_lens":[9]},"expect":{"programs_per_sequence":[2],"sequence_of_program":[0,0]}},
  {"name":"refusal","input":{"query_lens":[9]},"expect":{"error":"no"}},
  {"name":"malformed","input":{"query_lens":"nine"},"expect":{"error":"a malformed case is no refusal"}}]})";

TEST_F(Conformance, AWrongExpectationFailsWithNameFieldAndBothValues) {
  write("blocks.json", kBlocks);
  const RunResult result = run();
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.output.find("blocks/wrong: programs_per_sequence: expected [3], found [2]"), std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find("blocks/short: chunk_of_program: expected nothing, found [0,1]"), std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find("blocks/refusal: error: expected a refusal"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("blocks/malformed: input"), std::string::npos) << result.output;
  EXPECT_TRUE(ends_with(result.output, "1 passed, 4 failed\n")) << result.output;
}

TEST_F(Conformance, AnUnexpectedRefusalFailsWithItsMessage) {
  write(
      "pages.json",
      R"({"rule":"mamba_page","cases":[{"name":"small","input":{"shapes":[[2]],"dtypes":["float32"],"page_size_padded":4},
    "expect":{"state_content_size_bytes":8,"page_size_bytes":8}}]})");
  const RunResult result = run();
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.output.find("smaller than the 8 bytes of content"), std::string::npos) << result.output;
}

TEST_F(Conformance, AnUnknownRuleCountsAsFailed) {
  write(
      "new.json",
      R"({"rule":"tomorrow","cases":[{"name":"a","input":{},"expect":{}},{"name":"b","input":{},"expect":{"error":"x"}}]})");
  const RunResult result = run();
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.output.find("'tomorrow'"), std::string::npos) << result.output;
  EXPECT_TRUE(ends_with(result.output, "0 passed, 2 failed\n")) << result.output;
}

TEST_F(Conformance, DamagedFilesFailAndOtherJsonIsLeftAlone) {
  write("damaged.json", "{\"rule\": \"mamba_page\", \"cases\": [");
  write("empty.json", R"({"rule":"mamba_page","cases":[]})");
  write("other.json", R"({"hello":1})");
  write("notes.txt", "not a case");
  const RunResult result = run();
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(ends_with(result.output, "0 passed, 2 failed\n")) << result.output;
}

TEST_F(Conformance, AFolderWithoutCasesOrThatIsNotThereIsAClearError) {
  RunResult result = run();
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.output.find("no case file"), std::string::npos) << result.output;
  result = run_conformance(folder_ / "missing");
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.output.find("missing"), std::string::npos) << result.output;
}

}  // namespace
