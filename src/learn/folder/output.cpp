#include <fmt/core.h>

#include "base/os/file.h"
#include "base/os/ranks.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse {

std::string output_name(const std::filesystem::path& source) {
  std::filesystem::path whole = std::filesystem::absolute(source).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  const std::string stem =
      path_is_directory(source) ? whole.filename().string() : whole.stem().string();
  return stem.empty() ? "segfuse" : stem;
}

std::filesystem::path free_output_folder(const std::filesystem::path& source,
                                         const std::string& kind) {
  const std::optional<Ranks> ranks = ranks_of_environment();
  if (ranks && ranks->count > 1)
    throw UsageError(
        "several ranks write to one directory, whose name all of them must give; pass --out DIR");
  const std::string name = output_name(source) + "-" + kind;
  std::string candidate = name;
  for (int number = 2; path_exists(candidate); ++number)
    candidate = fmt::format("{}-{}", name, number);
  return candidate;
}

}  // namespace segfuse
