// What all commands read of their arguments, and write to standard output.

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <system_error>

#include "commands.h"
#include "segfuse/error.h"

namespace segfuse::cli {

void print_json(const nlohmann::ordered_json& json, int indent) {
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  put("{}\n", json.dump(indent, ' ', false, kReplace));
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw DeviceError(fmt::format("cannot write to standard output: {}",
                                std::generic_category().message(errno != 0 ? errno : EIO)));
}

double number_of(const char* option, const std::string& text, const char* what) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0')
    throw UsageError(fmt::format("{} is '{}'; expected a number, {}", option, text, what));
  return number;
}

int fail(const Common& common, ExitCode code, const std::string& message) {
  try {
    if (common.json && std::ferror(stdout) == 0)
      print_json({{"error", message}, {"exit_code", static_cast<int>(code)}}, -1);
    std::fflush(stdout);
  } catch (const std::exception&) {
    // Nobody reads standard output; the sentence goes to standard error.
  }
  // A compiler's log has lines; what is wrong with an input is one sentence.
  const bool line = code == ExitCode::kUsage || code == ExitCode::kData;
  std::fprintf(stderr, "segfuse: %s\n", (line ? terminal_line : terminal_text)(message).c_str());
  return static_cast<int>(code);
}

}  // namespace segfuse::cli
