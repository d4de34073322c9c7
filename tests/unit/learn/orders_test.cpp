// The text form of orders of labels: which orders it means, and what is said of what is none.

#include "learn/train/decode/orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

using ::testing::HasSubstr;

const Alphabet& labels() {
  static const Alphabet all({"a", "b", "sil", "{", "?", "b?"});
  return all;
}

std::optional<std::int32_t> pause() { return labels().find("sil"); }

/// All orders that a text means, each as words; doubles fail.
std::set<std::string> orders_of(const std::string& text, std::optional<std::int32_t> between = {}) {
  const semicrf::LabelOrders orders = parse_orders(text, "x.txt", labels(), between);
  std::set<std::string> all;
  const auto visit = [&](const auto& self, const semicrf::LabelOrders::Node& node,
                         std::string prefix) -> void {
    prefix += (prefix.empty() ? "" : " ") + labels().label(node.label);
    if (node.last) {
      EXPECT_TRUE(all.insert(prefix).second) << prefix;
    }
    for (const std::int32_t next : node.next)
      self(self, orders.nodes[static_cast<std::size_t>(next)], prefix);
  };
  for (const semicrf::LabelOrders::Node& node : orders.nodes)
    if (node.first) visit(visit, node, "");
  return all;
}

std::string said(const std::string& text) {
  try {
    parse_orders(text, "x.txt", labels());
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

using Texts = std::set<std::string>;

TEST(Orders, LabelsStandInTheirOrder) {
  EXPECT_EQ(orders_of("a b a"), Texts({"a b a"}));
  EXPECT_EQ(orders_of("\xEF\xBB\xBF a\r\n\tb\n\n a"), Texts({"a b a"}));
}

TEST(Orders, OptionalLabelsMayBeLeftOut) {
  EXPECT_EQ(orders_of("a? sil b"), Texts({"a sil b", "sil b"}));
  EXPECT_EQ(orders_of("a? sil?"), Texts({"a", "a sil", "sil"}));
  EXPECT_EQ(orders_of("a? a?"), Texts({"a", "a a"}));
}

TEST(Orders, VariantsMayBeLongEmptyAndNested) {
  EXPECT_EQ(orders_of("{a|sil} b"), Texts({"a b", "sil b"}));
  EXPECT_EQ(orders_of("{a b | sil | } a"), Texts({"a b a", "sil a", "a"}));
  EXPECT_EQ(orders_of("{a{b|sil}?|b}"), Texts({"a b", "a sil", "a", "b"}));
  EXPECT_EQ(orders_of("{a b}? a"), Texts({"a b a", "a"}));
  EXPECT_EQ(orders_of("{a|a|a} b"), Texts({"a b"}));
}

TEST(Orders, AWordThatIsALabelIsThatLabel) {
  EXPECT_EQ(orders_of("{ ? b? b??"), Texts({"{ ? b?", "{ ? b? b?"}));
  EXPECT_EQ(orders_of("{a|b?} b"), Texts({"a b", "b? b"}));
  EXPECT_EQ(orders_of("{?|a} b"), Texts({"? b", "a b"}));
}

TEST(Orders, ALabelBetweenWordsIsOptionalOutsideOfBraces) {
  EXPECT_EQ(orders_of("a", pause()), Texts({"a", "sil a", "a sil", "sil a sil"}));
  EXPECT_EQ(orders_of("{a b}", pause()), Texts({"a b", "sil a b", "a b sil", "sil a b sil"}));
  EXPECT_EQ(orders_of("sil a sil? b sil", pause()), Texts({"sil a b sil", "sil a sil b sil"}));
}

TEST(Orders, WhatIsNoneIsNamedWithItsPlace) {
  EXPECT_THAT(said(""), HasSubstr("x.txt: no labels"));
  EXPECT_THAT(said("a\n b si"), HasSubstr("x.txt:2:4: the model has no label"));
  EXPECT_THAT(said("a si"), HasSubstr("did you mean 'sil'?"));
  EXPECT_THAT(said("{a|c} b"), HasSubstr("x.txt:1:4: the model has no label"));
  EXPECT_THAT(said("{a|b"), HasSubstr("x.txt:1:1: found '{', expected a '}' behind it"));
  EXPECT_THAT(said("a }"), HasSubstr("x.txt:1:3: found '}', expected a label or '{'"));
  EXPECT_THAT(said("a | b"), HasSubstr("x.txt:1:3: found '|'"));
  EXPECT_THAT(said("a a??"), HasSubstr("x.txt:1:3: the model has no label"));
  EXPECT_THAT(said(std::string(1, '\xFF')), HasSubstr("x.txt"));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{a|";
  EXPECT_THAT(said(deep), HasSubstr("nested at most 64 deep"));
  std::string wide;
  for (int i = 0; i < 8000; ++i) wide += "a? sil? ";
  EXPECT_THAT(said(wide), HasSubstr("fewer optional labels in sequence"));
}

TEST(Orders, FramesThatAnOrderCannotHaveAreNamed) {
  const SegmentRules rules{
      {2, 2, 2, 2, 2, 2}, {5, 5, 5, 5, 5, 5}, std::vector(6, semicrf::PieceRule::kOne)};
  const semicrf::LabelOrders order = parse_orders("a b", "x.txt", labels());
  const auto error_of = [&](std::int64_t frames) -> std::string {
    try {
      check_frames(order, rules, frames, 0.01, "x.wav");
      return "";
    } catch (const DataError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(error_of(3), HasSubstr("x.wav: its labels take at least 4 frames (0.04 s), and the "
                                     "recording has 3 (0.03 s)"));
  EXPECT_EQ(error_of(4), "");
  EXPECT_EQ(error_of(10), "");
  EXPECT_THAT(error_of(11), HasSubstr("at most 10 frames"));
}

}  // namespace
}  // namespace segfuse::learn
