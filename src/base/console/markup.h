#pragma once
// Text from anywhere, for HTML, SVG and XML.

#include <string>
#include <string_view>

namespace segfuse {

/// `text` with every byte that is not part of well-formed UTF-8 replaced by U+FFFD, and control
/// characters that XML forbids replaced by U+FFFD too.
std::string printable_utf8(std::string_view text);

/// & < > " ' as entities, all else as it is: what is read back is the same.
std::string escape_entities(std::string_view text);

/// For text and quoted attributes of HTML and XML: printable UTF-8 with & < > " ' escaped.
std::string escape_markup(std::string_view text);

}  // namespace segfuse
