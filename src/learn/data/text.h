#pragma once
// Text for the readers and writers: encodings, tables, and pieces of messages.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segfuse::data {

/// UTF-8 without byte order mark, from UTF-8 or (with a mark) UTF-16. DataError with the byte
/// offset for anything else, NUL characters included.
std::string to_utf8(std::string_view bytes, std::string_view name);

/// The bytes of a character; what is none becomes U+FFFD.
void append_utf8(std::string& out, char32_t character);

/// ASCII letters only.
std::string lower(std::string_view text);
std::string upper(std::string_view text);
/// Extension in lower case, with the dot.
std::string extension_of(std::string_view name);

/// Shortens and escapes text for a message: at most 40 characters, printable.
std::string shown(std::string_view text);

/// Pairs of different texts that look the same: one has a letter and its marks as one character and
/// the other as several (Unicode's forms NFC and NFD), or they differ in characters without width
/// or in the kinds of their blanks. Composed letters of Latin, Greek, Cyrillic, kana and Hangul are
/// known.
std::vector<std::pair<std::string, std::string>> look_alikes(const std::vector<std::string>& texts);

/// The bytes of each character in hexadecimal: "65 cc81".
std::string byte_text(std::string_view text);

/// `seconds` with up to nine decimals, without trailing zeros.
std::string format_seconds(double seconds);

/// A text as a field of a CSV file: quoted where it has to be. One that a spreadsheet would take
/// for a formula ("=..."; what begins with + - @ and calls something) gets an apostrophe in front.
std::string csv_field(std::string_view text);
/// The text of a field that parse_table() has read, without the apostrophe that csv_field() added.
std::string_view csv_text(std::string_view field);

struct TableRow {
  std::vector<std::string> fields;
  std::int64_t line = 0;
};
/// Rows of a CSV (RFC 4180: quoted fields, doubled quotes, line ends inside quotes) or, for
/// separator TAB, of a TSV, which has quotes where its first field has. Empty lines are left out.
std::vector<TableRow> parse_table(std::string_view text, char separator, std::string_view name);

/// "resampled to 16000 Hz: 3 recordings of 44100 Hz"; empty when none was. `recordings` counts
/// them by their sample rate.
std::string resampled_text(const std::map<double, std::int64_t>& recordings, int sample_rate);

}  // namespace segfuse::data
