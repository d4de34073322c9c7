#include "base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

using testing::ElementsAre;

/// The definition, by recursion.
std::size_t slow_distance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const std::string_view a1 = a.substr(1);
  const std::string_view b1 = b.substr(1);
  std::size_t least = slow_distance(a1, b1) + (a[0] == b[0] ? 0 : 1);
  least = std::min({least, slow_distance(a1, b) + 1, slow_distance(a, b1) + 1});
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0])
    least = std::min(least, slow_distance(a.substr(2), b.substr(2)) + 1);
  return least;
}

TEST(EditDistance, EqualsTheRecursiveDefinition) {
  Rng rng(7);
  for (int round = 0; round < 400; ++round) {
    std::string a(rng.below(6), ' ');
    std::string b(rng.below(6), ' ');
    for (char& c : a) c = static_cast<char>('a' + rng.below(3));
    for (char& c : b) c = static_cast<char>('a' + rng.below(3));
    ASSERT_EQ(edit_distance(a, b), slow_distance(a, b)) << a << " and " << b;
  }
}

const std::vector<std::string> kNames = {"threads", "log", "check-numerics", "cache-dir"};

TEST(NearestMatch, FindsTyposAndNothingElse) {
  EXPECT_EQ(nearest_match("thraeds", kNames), "threads");
  EXPECT_EQ(nearest_match("check_numeric", kNames), "check-numerics");
  EXPECT_EQ(nearest_match("cache_dir", kNames), "cache-dir");
  EXPECT_EQ(nearest_match("lgo", kNames), "log");
  EXPECT_EQ(nearest_match("bucket", kNames), std::nullopt);
  const std::vector<std::string> short_names = {"lr", "k"};
  EXPECT_EQ(nearest_match("ab", short_names), std::nullopt) << "rewriting a name whole is no match";
  EXPECT_EQ(nearest_match("l", short_names), "lr");
  EXPECT_EQ(nearest_match("", kNames), std::nullopt);
}

TEST(NearestMatch, TakesTheFirstOfEquals) {
  const std::vector<std::string> names = {"beta1", "beta2"};
  EXPECT_EQ(nearest_match("beta", names), "beta1");
}

TEST(Suggestion, ListsTheKnownNamesWhenNothingIsNear) {
  EXPECT_EQ(suggestion("thread", kNames), "did you mean 'threads'?");
  EXPECT_EQ(suggestion("bucket", kNames),
            "known are 'threads', 'log', 'check-numerics' and 'cache-dir'");
  EXPECT_EQ(suggestion("x", {}), "known are none");
}

TEST(Split, KeepsEmptyPieces) {
  EXPECT_THAT(split("a,,b,", ','), ElementsAre("a", "", "b", ""));
  EXPECT_THAT(split("", ','), ElementsAre(""));
}

TEST(SplitLines, TakesBothLineEnds) {
  EXPECT_THAT(split_lines("a\r\n\nb"), ElementsAre("a", "", "b"));
  EXPECT_THAT(split_lines("a\n"), ElementsAre("a"));
  EXPECT_THAT(split_lines("\n"), ElementsAre(""));
  EXPECT_TRUE(split_lines("").empty());
}

TEST(SplitFields, KnowsColumns) {
  const std::vector<Field> fields = split_fields("  0 \t2260  h#\r");
  ASSERT_EQ(fields.size(), 3U);
  EXPECT_EQ(fields[1].text, "2260");
  EXPECT_EQ(fields[1].column, 6U);
  EXPECT_EQ(fields[2].text, "h#");
  EXPECT_TRUE(split_fields(" \t ").empty());
}

TEST(Trim, BothSides) {
  EXPECT_EQ(trim("\t a b \r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(ParseDouble, TakesWholeFiniteNumbersOnly) {
  EXPECT_EQ(parse_double("-1.5e3"), -1500.0);
  EXPECT_EQ(parse_double("+2"), 2.0);
  for (const char* text : {"", " 1", "1 ", "1x", "nan", "inf", "1e999", "+-1", "--1", "0x10", "+"})
    EXPECT_EQ(parse_double(text), std::nullopt) << text;
}

TEST(ParseInt, RefusesOverflowAndFractions) {
  EXPECT_EQ(parse_int("9223372036854775807"), 9223372036854775807);
  EXPECT_EQ(parse_int("-12"), -12);
  for (const char* text : {"", "9223372036854775808", "1.0", "1e3", "++1"})
    EXPECT_EQ(parse_int(text), std::nullopt) << text;
}

TEST(NumberAt, ErrorsNameFileLineAndColumn) {
  const LinePosition position{"a.lab", 12};
  EXPECT_EQ(number_at(position, {"0.5", 3}, "an end time"), 0.5);
  try {
    integer_at(position, {"0.5", 3}, "a sample number");
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "a.lab:12:3: expected a sample number, found '0.5'");
  }
}

}  // namespace
}  // namespace segfuse
