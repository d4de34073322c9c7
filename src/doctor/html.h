#pragma once
// What the doctor's pages have in common: no script, no network.

#include <string>
#include <string_view>

namespace segfuse::doctor {

/// A whole page. Escapes the title; `content` is HTML.
std::string html_page(std::string_view title, std::string_view content);

}  // namespace segfuse::doctor
