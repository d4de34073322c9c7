#include "base/console/markup.h"

#include <gtest/gtest.h>

namespace segfuse {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST(Markup, PrintableUtf8KeepsWhatIsWellFormed) {
  for (const std::string text : {"", "plain", "a\tb\nc\r", "\xD1\x88\xD1\x83\xD0\xBC",
                                 "\xE2\x82\xAC", "\xF0\x9D\x84\x9E", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(printable_utf8(text), text);
  }
}

TEST(Markup, PrintableUtf8ReplacesWhatIsNot) {
  EXPECT_EQ(printable_utf8(std::string("a\0b", 3)), "a" + kBad + "b");
  EXPECT_EQ(printable_utf8("\x1B[31m\x7F"), kBad + "[31m" + kBad);
  EXPECT_EQ(printable_utf8("\xC0\xAF"), kBad + kBad);                        // overlong
  EXPECT_EQ(printable_utf8("\xE0\x80\xAF"), kBad + kBad + kBad);             // overlong
  EXPECT_EQ(printable_utf8("\xED\xA0\x80"), kBad + kBad + kBad);             // surrogate
  EXPECT_EQ(printable_utf8("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // past U+10FFFF
  EXPECT_EQ(printable_utf8("x\xE2\x82"), "x" + kBad + kBad);                 // cut off
  EXPECT_EQ(printable_utf8("\x80z"), kBad + "z");
}

TEST(Markup, EscapesMarkup) {
  EXPECT_EQ(escape_markup("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
}

TEST(Markup, EntitiesAloneLeaveAllElse) {
  EXPECT_EQ(escape_entities("a\x7F\x80<\n&"), "a\x7F\x80&lt;\n&amp;");
  EXPECT_EQ(escape_markup("\x7F\x80<"), kBad + kBad + "&lt;");
}

}  // namespace
}  // namespace segfuse
