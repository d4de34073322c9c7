#pragma once
// Files that a command writes for its user. Nothing is replaced that segfuse did not write.

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"

namespace segfuse {

/// The file `.segfuse-outputs` of a folder has a line for each content that was written there by
/// an Outputs: its BLAKE2b hash and the file's name (`b2sum -c` reads it). A file is ours when its
/// content stands there beside its name; one that somebody changed since is not ours any more.
class Outputs {
 public:
  /// With `overwrite` whatever is in the way is replaced. Only what stands in a list of that name
  /// is ours: labels of a corpus are nothing that decoding may replace.
  explicit Outputs(bool overwrite = false, std::string list = ".segfuse-outputs")
      : overwrite_(overwrite), list_(std::move(list)) {}

  /// A file that will be written, made from `source` (for messages). UsageError when that path was
  /// announced already.
  void announce(const std::filesystem::path& path, const std::string& source);
  /// UsageError when an announced file is there and not ours: to be asked before the work begins.
  void check();
  /// Writes the file in one step (write_file_atomically) and notes that it is ours. UsageError when
  /// a file is there and not ours. Devices and pipes are written to as they are.
  void write(const std::filesystem::path& path, std::string_view content);
  /// The same of what `content` gives part by part.
  using Put = std::function<void(std::string_view)>;
  void write(const std::filesystem::path& path, const std::function<void(const Put&)>& content);

 private:
  void refuse_foreign(const std::filesystem::path& path) SEGFUSE_REQUIRES(mutex_);
  bool stands_in_the_way(const std::filesystem::path& path) SEGFUSE_REQUIRES(mutex_);
  bool is_ours(const std::filesystem::path& path) SEGFUSE_REQUIRES(mutex_);
  void note(const std::filesystem::path& path, std::string line) SEGFUSE_REQUIRES(mutex_);

  bool overwrite_;
  std::string list_;
  bool complained_ = false;
  Mutex mutex_;
  std::map<std::filesystem::path, std::string> announced_;  ///< with their sources
  std::map<std::filesystem::path, std::set<std::string>> noted_
      SEGFUSE_GUARDED_BY(mutex_);  ///< lines, by folder
};

}  // namespace segfuse
