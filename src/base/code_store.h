#pragma once
// Compiled code on disk: a folder of files, each with the whole key that it answers to.

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace segfuse {

/// The option cache-dir, or its default; empty when there is no home.
std::filesystem::path code_folder();

/// Any number of processes and threads may use one folder: entries are replaced in one step. An
/// entry that is not whole (cut short, bits changed, another format) counts as missing, and the
/// next put() replaces it.
class CodeStore {
 public:
  /// An empty folder: nothing is found and nothing is kept.
  explicit CodeStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// What was put under this very key. `name` and `suffix` only make the file's name readable.
  std::optional<std::string> get(std::string_view name, std::string_view suffix,
                                 std::string_view key) const;
  /// Keeps it if the folder can be written; if not, that is logged once.
  void put(std::string_view name, std::string_view suffix, std::string_view key,
           std::string_view content) const noexcept;
  /// The file of a key, whether it exists or not.
  std::filesystem::path path_of(std::string_view name, std::string_view suffix,
                                std::string_view key) const;
  const std::filesystem::path& folder() const noexcept { return folder_; }

 private:
  std::filesystem::path folder_;
  mutable std::atomic<bool> complained_ = false;
};

}  // namespace segfuse
