#include "base/json/json.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace segfuse {
namespace {

using ::testing::HasSubstr;

std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "file", limits);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(Json, WhatItReadsIsWhatWasWritten) {
  const std::string text =
      R"({"b":[1,-2,3.5,1e300,true,false,null],"a":{"é\n":"\u20ac"},"c":18446744073709551615})";
  EXPECT_EQ(json_text(parse_json(text, "file")), json_text(Json::parse(text)));
}

TEST(Json, DepthIsBounded) {
  EXPECT_EQ(refusal(nested(64)), "accepted");
  EXPECT_THAT(refusal(nested(65)), HasSubstr("file: the JSON nests more than 64"));
  EXPECT_THAT(refusal(std::string(5'000'000, '[')), HasSubstr("nests more than 64"));
  std::string objects;
  for (int i = 0; i < 100; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusal(objects), HasSubstr("nests more than 64"));
  EXPECT_THAT(refusal("[[1]]", {.depth = 1}), HasSubstr("nests more than 1 "));
}

TEST(Json, LengthIsBounded) {
  EXPECT_THAT(refusal("[1,2,3]", {.bytes = 6}), HasSubstr("7 bytes of JSON; at most 6"));
}

TEST(Json, NumbersThatNoDoubleHoldsAreRefusedWhereTheyStand) {
  EXPECT_THAT(refusal("{\n \"a\": 1e999}"), HasSubstr("file:2:11: the number that ends here"));
  EXPECT_THAT(refusal("[-1e999]"), HasSubstr("too large for a double"));
  EXPECT_EQ(refusal("[18446744073709551616, 1e-999]"), "accepted");
}

TEST(Json, WhatIsNoJsonIsNamedByLineAndColumn) {
  EXPECT_THAT(refusal("{\n  \"a\": tru\n}"), HasSubstr("file:2:11: this is not JSON"));
  EXPECT_THAT(refusal("[1, 2"), HasSubstr("ends too early"));
  EXPECT_THAT(refusal(""), HasSubstr("ends too early"));
  EXPECT_THAT(refusal("[1] 2"), HasSubstr("file:1:5: this is not JSON"));
  EXPECT_THAT(refusal("[NaN]"), HasSubstr("this is not JSON"));
  EXPECT_THAT(refusal("[\"\xFF\"]"), HasSubstr("file:1:3: this text is not UTF-8"));
}

TEST(Json, ANameStandsOnceInAnObject) {
  EXPECT_THAT(refusal(R"({"a":1,"b":{"c":1,"d":2,"c":3}})"), HasSubstr("the name \"c\" twice"));
  EXPECT_EQ(refusal(R"({"a":{"c":1},"b":{"c":1}})"), "accepted");
}

// Json's own parser takes minutes for these (each new member is compared with all former ones).
TEST(Json, ManyMembersTakeNoLongerEach) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += fmt::format("\"name {}\":{},", i, i);
  text.back() = '}';
  EXPECT_EQ(parse_json(text, "file").size(), 300'000);
}

TEST(Json, WhatIsNotUtf8IsReplacedOnWriting) {
  const Json json{{"bad\xFF", "caf\xE9"}, {"good", "café"}};
  const std::string text = json_text(json);
  EXPECT_EQ(text, "{\"bad\xEF\xBF\xBD\":\"caf\xEF\xBF\xBD\",\"good\":\"café\"}");
  EXPECT_EQ(refusal(text), "accepted");
}

TEST(JsonPlace, ValuesOfOtherKindsAreRefusedByTheirPath) {
  const std::string file = "file";
  const Json json = parse_json(R"({"a":[1,{"b":"x"}],"n":-1,"big":9223372036854775808})", file);
  const JsonPlace top(json, file);
  const auto why = [](const auto& read) {
    try {
      read();
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  top.at("a").for_each([&](const JsonPlace& item) {
    if (!item.value().is_object()) return;
    EXPECT_EQ(why([&] { item.at("b").count(); }),
              "file: at a[1].b: expected a whole number from 0 on, found \"x\"");
  });
  EXPECT_THAT(why([&] { top.at("c"); }), HasSubstr("there is no 'c'"));
  EXPECT_THAT(why([&] { top.at("n").count(); }), HasSubstr("at n: expected a whole number from 0"));
  EXPECT_THAT(why([&] { top.at("big").integer(); }), HasSubstr("64 bits with its sign"));
  EXPECT_THAT(why([&] { top.at("n").integer(0, 9); }), HasSubstr("from 0 to 9, found -1"));
  EXPECT_THAT(why([&] { top.at("n").integer(-9, -2); }), HasSubstr("from -9 to -2, found -1"));
  EXPECT_EQ(top.at("n").integer(-1, -1), -1);
  EXPECT_THAT(why([&] { top.at("a").texts(); }), HasSubstr("at a[0]: expected text, found 1"));
  EXPECT_THAT(why([&] { top.text(); }), HasSubstr("at the file: expected text"));
}

}  // namespace
}  // namespace segfuse
