#pragma once
// What the doctor's pages have in common: no script, no network.

#include <string>
#include <string_view>

namespace segfuse::doctor {

/// The style sheet of every page.
std::string_view html_style();

}  // namespace segfuse::doctor
