#pragma once
// What the doctor's pages have in common: no script, no network.

#include <string>
#include <string_view>

namespace segfuse::doctor {

/// Text for HTML; control characters become blanks.
std::string html_escaped(std::string_view text);
/// The style sheet of every page.
std::string_view html_style();

}  // namespace segfuse::doctor
