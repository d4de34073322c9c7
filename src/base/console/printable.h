#pragma once
// Text from anywhere, for a terminal.

#include <cstddef>
#include <string>
#include <string_view>

namespace segfuse {

/// Length of the well-formed UTF-8 sequence at `at` (1 to 4), or 0.
std::size_t utf8_length(std::string_view text, std::size_t at);

/// The text with everything made visible that steers a terminal and not only fills it: control
/// characters but tabs and line ends, and marks that turn the direction of writing, become \u001b,
/// \u202e; bytes that are not UTF-8 become \xff. JSON text stays the same JSON.
std::string printable(std::string_view text);
/// The same in one line: ends of lines become \u000a.
std::string printable_line(std::string_view text);

}  // namespace segfuse
