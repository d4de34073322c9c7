#pragma once
// The files under assets/, built in (cmake/embed.cmake writes the definition).

#include <string>
#include <string_view>

namespace segfuse::learn {

/// Content of assets/`name`, which exists.
std::string report_asset(std::string_view name);

}  // namespace segfuse::learn
