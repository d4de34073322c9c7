#pragma once
// The features of a recording that is read piece by piece.

#include <filesystem>
#include <memory>
#include <optional>

#include "segfuse/data.h"

namespace segfuse::data {

class FeatureReader {
 public:
  /// Nothing for what can only be read whole: values, NIST SPHERE, .cbin. What comes through a pipe
  /// is copied into a file without a name in `scratch`, and features that are normalised over the
  /// recording wait in one. Errors are those of read_features().
  static std::unique_ptr<FeatureReader> open(const std::filesystem::path& audio,
                                             const FeatureExtractor& extractor,
                                             const std::filesystem::path& scratch);
  /// The same of other channels than the extractor's configuration says.
  static std::unique_ptr<FeatureReader> open(const std::filesystem::path& audio,
                                             const FeatureExtractor& extractor,
                                             const std::filesystem::path& scratch,
                                             const AudioOptions& how);
  ~FeatureReader();
  FeatureReader(const FeatureReader&) = delete;
  FeatureReader& operator=(const FeatureReader&) = delete;

  /// Frames that the file's header announces; nothing where it does not know.
  std::optional<std::int64_t> announced() const;
  /// The next rows of read_features().features, (n, D); none at the end.
  Tensor next();
  double seconds() const;      ///< of what was read so far
  double sample_rate() const;  ///< of the file

 private:
  struct State;
  explicit FeatureReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace segfuse::data
