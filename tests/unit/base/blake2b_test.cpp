#include "base/code/blake2b.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace segfuse {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string counting(std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 251);
  return bytes;
}

std::string digest(std::size_t bytes, std::string_view key, std::string_view text) {
  Blake2b hash(bytes, key);
  hash.update(text);
  return hex(hash.finish());
}

TEST(Blake2b, GivesTheVectorsOfItsAuthors) {
  // RFC 7693, appendix A, and the first of the keyed vectors of the reference implementation.
  EXPECT_EQ(digest(64, "", "abc"),
            "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
            "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923");
  EXPECT_EQ(digest(64, counting(64), ""),
            "10ebb67700b1868efb4417987acf4690ae9d972fb7a590c2f02871799aaa4786"
            "b5e996e8f0f4eb981fc214b005f42d2ff4233499391653df7aefcbc13fc51568");
}

TEST(Blake2b, AgreesWithAnotherImplementationAroundTheBlocks) {
  const struct {
    std::size_t bytes;
    const char* digest;
  } rows[] = {{0, "4e51e7a913fc80137da52880fecca175bf81e117d5c68126dc2774033517ea0d"},
              {1, "41ff93a4eaeebd3b78a93438a6f62a92ab5959c859e682b72c7def406197ca4d"},
              {127, "12879e69734944f25f9ed95cbfdbb3659a307e485ed8ec118ce7c60f107357f1"},
              {128, "138893f1631ef3165629515d6ed800da3771b7926dced294205c7507351deebc"},
              {129, "ca60f75cbb714330c046d8f28b4ed351a3ee81776bb02a96abb646fe573e3d5c"},
              {255, "5de94a8a1a2649b337aadbf67a17cc7f3ff63d6c70b84179a3db0614a1cab865"},
              {256, "da3bcd809850732f09afb9c749da4fc019f47d0ea35a28282f482ef5ffd91378"},
              {257, "2ab00e85cc9d8b39f1570b3bedf7aa7434624efdd07eb8b3a705dd65ffc4d87a"},
              {1000, "bf9c0d3a2590251349ad634ad07f03958d0be63d5f9533daf62752de734b2c76"}};
  for (const auto& row : rows) {
    const std::string text = counting(row.bytes);
    EXPECT_EQ(digest(32, counting(32), text), row.digest) << row.bytes;
    Blake2b pieces(32, counting(32));
    for (std::size_t at = 0; at < text.size(); at += 7)
      pieces.update(std::string_view(text).substr(at, 7));
    EXPECT_EQ(hex(pieces.finish()), row.digest) << row.bytes << " in pieces";
  }
}

TEST(Blake2b, TextsAreComparedWhole) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_TRUE(equal_in_constant_time("", ""));
  for (const char* other : {"abd", "bbc", "ab", "abcd", ""})
    EXPECT_FALSE(equal_in_constant_time("abc", other)) << other;
}

}  // namespace
}  // namespace segfuse
