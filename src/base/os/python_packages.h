#pragma once
// Libraries that other Python packages carry.

#include <initializer_list>
#include <string>
#include <vector>

namespace segfuse {

/// Those of `paths` that exist, below the folder that holds the Python package `segfuse` which this
/// code is a part of (site-packages), in their order. Nothing where the code is no part of it.
std::vector<std::string> files_of_python_packages(std::initializer_list<const char*> paths);

}  // namespace segfuse
