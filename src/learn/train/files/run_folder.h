#pragma once
// The folder that a training writes to: one training at a time, and no former run is lost.

#include <filesystem>
#include <memory>

namespace segfuse::learn {

/// Held while it lives: another process that asks for the same folder is refused.
class RunFolder {
 public:
  /// Makes the folder if it is missing; if nothing was written to it, it is removed at the end.
  /// UsageError when another training holds it.
  explicit RunFolder(const std::filesystem::path& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::filesystem::path checkpoint() const { return path_ / "checkpoint.safetensors"; }
  std::filesystem::path model() const { return path_ / "model.safetensors"; }
  /// The model of the run before, where one was overwritten.
  std::filesystem::path previous_model() const { return path_ / "model.previous.safetensors"; }

  /// UsageError when a training would replace what another one left: a checkpoint that it does not
  /// continue, or a model.
  void check_free(bool resume, bool overwrite) const;
  /// Copies the model, if there is one, to previous_model().
  void keep_model() const;

 private:
  struct Lock;
  std::filesystem::path path_;
  std::unique_ptr<Lock> lock_;
};

/// Whether a training has left its state or its model there.
bool holds_run(const std::filesystem::path& folder);

}  // namespace segfuse::learn
