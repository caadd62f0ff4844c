// SPDX-License-Identifier: Apache-2.0
#include "engine/output_text.h"

#include <gtest/gtest.h>

namespace coluber {
namespace {

TEST(OutputText, ShowsEverythingWithoutStopStrings) {
  OutputText text({}, false);
  EXPECT_EQ(text.push("ab"), "ab");
  EXPECT_EQ(text.push("c"), "c");
  EXPECT_EQ(text.finish(), "");
  EXPECT_FALSE(text.stopped());
}

TEST(OutputText, HoldsBackWhatMayBecomeAStopString) {
  OutputText text({"###", "\nUser:"}, false);
  EXPECT_EQ(text.push("hello #"), "hello ");
  EXPECT_EQ(text.push("#"), "");
  EXPECT_EQ(text.push("x\nUs"), "##x");
  EXPECT_EQ(text.push("ing"), "\nUsing");
  EXPECT_EQ(text.push("\nUser: hi"), "");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(text.push("more"), "");
  EXPECT_EQ(text.finish(), "");
}

TEST(OutputText, TheEarliestStopStringWinsWhereSeveralAppearInOnePiece) {
  OutputText text({"late", "early"}, false);
  EXPECT_EQ(text.push("so early and late"), "so ");
  EXPECT_TRUE(text.stopped());
}

TEST(OutputText, IncludesTheStopStringWhenAsked) {
  OutputText text({"."}, true);
  EXPECT_EQ(text.push("One. Two."), "One.");
  EXPECT_TRUE(text.stopped());
}

TEST(OutputText, GivesHeldTextAtTheEnd) {
  OutputText text({"abc"}, false);
  EXPECT_EQ(text.push("xab"), "x");
  EXPECT_EQ(text.finish(), "ab");
}

}  // namespace
}  // namespace coluber
