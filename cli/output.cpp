// What all commands write to standard output.

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
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
  throw DataError(fmt::format("cannot write to standard output: {}",
                              std::generic_category().message(errno != 0 ? errno : EIO)));
}

}  // namespace segfuse::cli
