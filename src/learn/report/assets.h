#pragma once
// The files under assets/, built in (assets.cmake writes the definition).

#include <string>
#include <string_view>

namespace segfuse::learn {

/// Content of assets/`name`; empty when there is no such file.
std::string report_asset(std::string_view name);

}  // namespace segfuse::learn
