#pragma once
// What this build and this machine support, and text that is safe to show on a terminal.

#include <string>
#include <string_view>
#include <vector>

namespace segfuse {

struct Capability {
  std::string name;  ///< "CPU", "CUDA", ...
  bool available = false;
  std::string detail;  ///< version and settings, or why it is missing
};

/// Every optional part, present or not, in a fixed order.
std::vector<Capability> capabilities();

/// The text with everything made visible that could steer a terminal and not only fill it: control
/// characters but tabs and line ends become \u001b, bytes that are not UTF-8 \xff. JSON text stays
/// the same JSON.
std::string terminal_text(std::string_view text);
/// The same in one line, for sentences: a name may have the end of a line in it.
std::string terminal_line(std::string_view text);

/// Of a command that is none of `known`: "did you mean 'train'?" or, when nothing is near, the
/// list.
std::string command_suggestion(const std::string& name, const std::vector<std::string>& known);

}  // namespace segfuse
