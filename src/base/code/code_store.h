#pragma once
// Compiled code on disk: a folder of files, each with the whole key that it answers to.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/os/folder.h"
#include "segfuse/context.h"

namespace segfuse {

/// The cache folder of this user; empty when there is no home. Relative names are not taken
/// (XDG Base Directory Specification), nor any environment that a caller with fewer rights made.
std::filesystem::path user_cache_folder();
/// The option cache-dir, or else user_cache_folder().
std::filesystem::path code_folder(const Options& options);

struct CodeStoreOptions {
  std::uint64_t most_bytes;          ///< of all files together
  std::filesystem::path key_folder;  ///< where the secret lies; empty: with the code
  explicit CodeStoreOptions(const Options& options = Options());
};

/// What is taken from here is run, so nothing is taken that somebody else could have put here: the
/// folder and the file must belong to this user and be writable for nobody else, links are not
/// followed, and each file carries a keyed hash (BLAKE2b) of its key and content. The secret of
/// that hash is a file of the user's cache that only the user can read.
/// Any number of processes and threads may use one folder: entries are replaced in one step. An
/// entry that is not whole (cut short, bits changed, another format) counts as missing, and the
/// next put() replaces it. When there is more than `most_bytes`, what was not used for the longest
/// time is removed.
class CodeStore {
 public:
  /// An empty folder: nothing is found and nothing is kept.
  explicit CodeStore(std::filesystem::path folder, CodeStoreOptions options = CodeStoreOptions());
  static std::shared_ptr<const CodeStore> nowhere();

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
  std::optional<Folder> open_folder() const;
  std::string secret() const;
  void evict(const Folder& folder, std::uint64_t added) const;
  void complain(std::string_view why) const noexcept;

  std::filesystem::path folder_;
  CodeStoreOptions options_;
  mutable std::atomic<bool> complained_ = false;
  mutable Mutex mutex_;
  mutable std::string secret_ SEGFUSE_GUARDED_BY(mutex_);  ///< empty: not read yet
  mutable std::uint64_t unlooked_ SEGFUSE_GUARDED_BY(mutex_) =
      0;  ///< bytes that were added since the folder was looked at
  mutable bool looked_ SEGFUSE_GUARDED_BY(mutex_) = false;
};

}  // namespace segfuse
