#pragma once
// Python's pickles, without what makes them programs.

#include <string>
#include <string_view>

#include "base/json/json.h"

namespace segfuse::doctor {

/// Whether the bytes begin as a pickle of protocol 2 or later does.
bool is_pickle(std::string_view bytes);

/// Dicts (keys are strings or whole numbers), lists, tuples, strings, numbers, None and bool.
/// DataError "FILE: byte N: ..." for everything else, by its name: no class is looked up, nothing
/// is called. What is shared in a pickle is there as often as it is reached, within limits.
Json read_pickle(std::string_view bytes, const std::string& file);

}  // namespace segfuse::doctor
