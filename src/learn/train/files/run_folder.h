#pragma once
// The folder that a training writes to: one training at a time, and no former run is lost.

#include <filesystem>
#include <memory>

namespace segfuse::learn {

inline std::filesystem::path checkpoint_in(const std::filesystem::path& folder) {
  return folder / "checkpoint.safetensors";
}
inline std::filesystem::path model_in(const std::filesystem::path& folder) {
  return folder / "model.safetensors";
}

/// Held while it lives: another process that asks for the same folder is refused.
class RunFolder {
 public:
  /// Makes the folder if it is missing; if nothing was written to it, it is removed at the end.
  /// UsageError when another training holds it.
  explicit RunFolder(const std::filesystem::path& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::filesystem::path checkpoint() const { return checkpoint_in(path_); }
  std::filesystem::path model() const { return model_in(path_); }
  /// The model of the run before, where one was overwritten.
  std::filesystem::path previous_model() const { return path_ / "model.previous.safetensors"; }

  /// Whether the training goes on from checkpoint(), if that is there: as it was asked to, or since
  /// its own job has written it before its ranks were started again.
  bool continues(bool resume) const;
  /// UsageError when a training would replace what another one left: a checkpoint that it does not
  /// continue, or a model.
  void check_free(bool resume, bool overwrite) const;
  /// Copies the model, if there is one, to previous_model(); not one that this job has written
  /// before its ranks were started again.
  void keep_model() const;

 private:
  struct Lock;
  std::filesystem::path path_;
  std::unique_ptr<Lock> lock_;
};

/// Whether a training may go on from a checkpoint: as RunFolder::continues(), wherever its folder
/// is.
bool may_continue(bool resume);
/// Whether a training has left its state or its model there.
bool holds_run(const std::filesystem::path& folder);

}  // namespace segfuse::learn
