// SPDX-License-Identifier: Apache-2.0
// Names, choices and the cache's paths; transfers are tested through the program (tests/cli/pull_test.py).
#include <gtest/gtest.h>

#include <filesystem>

#include "apps/hub/blob_file.h"
#include "apps/hub/digest.h"
#include "apps/hub/hub_cache.h"
#include "apps/hub/hub_files.h"
#include "apps/hub/hub_reference.h"
#include "base/error.h"

namespace coluber::hub {
namespace {

using Names = std::vector<std::string>;

TEST(HubReference, TakesNamesRevisionsAndFiles) {
  for (const char* text : {"org/name", "org/name@v1.0", "org/name@refs/pr/7", "org/name:m-Q4_K_M.gguf",
                           "org/name@main2:sub/m.gguf", "a/b_c-d.e"}) {
    const std::optional<HubReference> reference = parse_hub_reference(text);
    ASSERT_TRUE(reference) << text;
    EXPECT_EQ(reference->text(), text);
  }
  EXPECT_EQ(parse_hub_reference("org/name")->revision, "main");
}

TEST(HubReference, LeavesPathsAlone) {
  for (const char* text : {"", "model", "./model", "../model", "/models/x", "~/x", "a/b/c", "models/", "/x", "."})
    EXPECT_FALSE(parse_hub_reference(text)) << text;
}

TEST(HubReference, RefusesPartsThatLeadOutOfTheCache) {
  for (const char* text : {"org/name@../../x", "org/name@", "org/name:", "org/name:../x", "org/name:/etc/passwd",
                           "org/name:a//b", "org/na me", "or--g/name", "org/name..", "org/-name", "org/name@a\nb"})
    EXPECT_THROW(parse_hub_reference(text), Error) << text;
  EXPECT_THROW(parse_hub_reference("org/" + std::string(97, 'x')), Error);
}

TEST(HubFiles, TakeOneSetOfWeights) {
  const Names all = {"a.gguf", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"};
  EXPECT_EQ(choose_weights(all, "", "o/n").files, Names{"model.safetensors"});
  EXPECT_EQ(choose_weights({all.begin() + 2, all.end()}, "", "o/n").index, "model.safetensors.index.json");
  EXPECT_EQ(choose_weights({all.begin() + 3, all.end()}, "", "o/n").files, Names{"pytorch_model.bin"});
  EXPECT_EQ(choose_weights(all, "a.gguf", "o/n").files, Names{"a.gguf"});
  EXPECT_EQ(choose_weights({"RWKV-x070.pth", "readme"}, "", "o/n").files, Names{"RWKV-x070.pth"});
  EXPECT_THROW(choose_weights({"a.gguf", "b.gguf"}, "", "o/n"), Error);
  EXPECT_THROW(choose_weights({"README.md"}, "", "o/n"), Error);
  EXPECT_THROW(choose_weights({}, "", "o/n"), Error);
}

TEST(HubFiles, TakeAllPartsOfAFile) {
  const Names names = {"m-00002-of-00002.gguf", "m-00001-of-00002.gguf", "other.gguf"};
  EXPECT_EQ(choose_weights(names, "M-", "o/n").files, (Names{"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}));
}

TEST(HubFiles, ReadAnIndexAndNothingElse) {
  const Names names = {"a.safetensors", "b.safetensors"};
  EXPECT_EQ(
      files_of_index(R"({"weight_map":{"x":"b.safetensors","y":"a.safetensors","z":"b.safetensors"}})", "i", names),
      names);
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":{"x":1}})", R"({"weight_map":{"x":"c.safetensors"}})"})
    EXPECT_THROW(files_of_index(text, "i", names), Error) << text;
}

TEST(HubDigest, IsThatOfTheHub) {
  const std::string sha256(64, '0'), sha1(40, '0');
  Digest large(sha256, 3), small(sha1, 6);
  large.update("abc");
  small.update("hello\n");
  EXPECT_EQ(large.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(small.hex(), "ce013625030ba8dba906f756967f9e9ca394464a");  // as `git hash-object` says
  EXPECT_FALSE(Digest::knows("W/abc"));
}

TEST(HubBlob, NamesStayInTheirFolder) {
  EXPECT_TRUE(is_name_of_blob("ce013625030ba8dba906f756967f9e9ca394464a"));
  EXPECT_TRUE(is_name_of_blob("d41d8-3"));
  for (const char* etag : {"", ".", "..", "../x", "a/b", "a b", ".hidden"}) EXPECT_FALSE(is_name_of_blob(etag)) << etag;
}

TEST(HubCache, LinksReplaceWhatWasThere) {
  const std::string folder = std::filesystem::path(::testing::TempDir()) / "hub_cache_test";
  std::filesystem::remove_all(folder);
  const HubCache cache(folder, "org/name");
  HubReference reference;
  EXPECT_EQ(cache.commit_of(reference), std::nullopt);
  const std::string commit(40, 'a');
  cache.set_commit(reference, commit);
  EXPECT_EQ(cache.commit_of(reference), commit);
  for (const char* etag : {"one", "two"}) {
    BlobFile blob(cache.blob(etag), etag, 3, {});
    blob.append(etag);
    EXPECT_EQ(blob.finish(), "");
    cache.link(commit, "sub/file", etag);
  }
  EXPECT_EQ(cache.files(commit), Names{"sub/file"});
  EXPECT_EQ(std::filesystem::read_symlink(cache.snapshot(commit) + "/sub/file"), "../../../blobs/two");
  cache.set_commit(reference, "half writ");
  EXPECT_EQ(cache.commit_of(reference), std::nullopt);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace coluber::hub
