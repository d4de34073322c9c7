#include "base/console/printable.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/console/log.h"
#include "base/console/progress.h"

namespace segfuse {
namespace {

TEST(Printable, OrdinaryTextStaysAsItIs) {
  for (const std::string text :
       {"", "two words\n\ta line", "Ünïcödé ə ʃ 語 🙂", "\"\\u001b\"", "'a' \\ b"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, WhatSteersATerminalIsShown) {
  EXPECT_EQ(printable("\x1b[2Jgone\x1b]0;title\x07"), "\\u001b[2Jgone\\u001b]0;title\\u0007");
  EXPECT_EQ(printable("over\rwritten\b\b\x7f"), "over\\u000dwritten\\u0008\\u0008\\u007f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\u009b31m");  // CSI as one character
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b\xe2\x81\xa6"),
            "a\\u202eb\\u2066");  // other directions
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\u0000b");
}

TEST(Printable, ALineHasNoEnds) {
  EXPECT_EQ(printable_line("a\nb\n\n\tc\x1b"), "a\\u000ab\\u000a\\u000a\tc\\u001b");
  EXPECT_EQ(printable_line("ä, b"), "ä, b");
}

TEST(Printable, EveryChangeOfDirectionIsShown) {
  EXPECT_EQ(printable("\u061c \u200e \u200f"), "\\u061c \\u200e \\u200f");
  EXPECT_EQ(printable("\u202a \u202b \u202c \u202d \u202e"),
            "\\u202a \\u202b \\u202c \\u202d \\u202e");
  EXPECT_EQ(printable("\u2066 \u2067 \u2068 \u2069"), "\\u2066 \\u2067 \\u2068 \\u2069");
  const std::string beside = "\u061b \u061d \u200d \u2010 \u202f \u2064";
  EXPECT_EQ(printable(beside), beside);
}

TEST(Printable, BytesThatAreNoTextAreShown) {
  EXPECT_EQ(printable("\x9b"
                      "31m\xff"),
            "\\x9b31m\\xff");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xe2\x80"), "\\xe2\\x80");
  EXPECT_EQ(printable("\xc0\x80\xed\xa0\x80"), "\\xc0\\x80\\xed\\xa0\\x80");
}

TEST(Printable, NoTextOfTwoBytesGetsThrough) {
  for (unsigned a = 0; a < 256; ++a)
    for (unsigned b = 0; b < 256; ++b) {
      const std::string shown = printable(std::string{static_cast<char>(a), static_cast<char>(b)});
      for (std::size_t at = 0; at < shown.size();) {
        const std::size_t length = utf8_length(shown, at);
        ASSERT_GT(length, 0U) << a << " " << b;
        const auto first = static_cast<unsigned char>(shown[at]);
        ASSERT_TRUE(first >= 0x20 || first == '\n' || first == '\t') << a << " " << b;
        ASSERT_FALSE(first == 0x7F ||
                     (first == 0xC2 && static_cast<unsigned char>(shown[at + 1]) < 0xA0))
            << a << " " << b;
        at += length;
      }
    }
}

TEST(Printable, MessagesAndProgressAre) {
  testing::internal::CaptureStderr();
  log(LogLevel::kWarning, "of {}", "\x1b[31mred\xff");
  {
    Progress progress("what", 2);
    progress.print("line \x1b[31mred");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "segfuse: warning: of \\u001b[31mred\\xff\nline \\u001b[31mred\n");
}

}  // namespace
}  // namespace segfuse
