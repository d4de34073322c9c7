#pragma once
// Labels that differ in their bytes only.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segfuse::data {

/// Pairs of different texts that look the same: one has a letter and its marks as one character and
/// the other as several (Unicode's forms NFC and NFD), or they differ in characters without width
/// or in the kinds of their blanks. Composed letters of Latin, Greek, Cyrillic, kana and Hangul are
/// known.
std::vector<std::pair<std::string, std::string>> look_alikes(const std::vector<std::string>& texts);

/// The bytes of each character in hexadecimal: "65 cc81".
std::string byte_text(std::string_view text);

}  // namespace segfuse::data
