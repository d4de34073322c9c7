#pragma once
// Trained models that lie beside segfuse, found by their names.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace segfuse {

/// What the index of a folder of models says of one.
struct PretrainedModel {
  std::string name;                 ///< "ecg-waves"
  std::string title;                ///< what it labels
  std::string recordings;           ///< what it was trained on: language or sensor, speakers
  int sample_rate = 0;              ///< in Hz
  double hop_ms = 0;                ///< of its frames
  std::vector<std::string> labels;  ///< in the order of its posteriors
  std::string licence;              ///< of the model, and what its data ask for
  std::string figure;               ///< how good it is on recordings it was not trained on
  std::uint64_t bytes = 0;
  std::string sha256;          ///< of its file, 64 digits
  std::filesystem::path path;  ///< its file
};

/// The folders where models are looked for, those that are not there included, the first one first:
/// what SEGFUSE_MODELS names (with colons between them), PREFIX/share/segfuse/models of the
/// installed program or library (in a build: the models of the source tree), and the Python
/// package segfuse-models beside the one that this code is a part of.
std::vector<std::filesystem::path> pretrained_folders();

/// The models of all these folders; of two with one name the first. DataError where an index is
/// malformed, or where a folder of SEGFUSE_MODELS has none.
std::vector<PretrainedModel> pretrained_models();

/// The file of a model by its name, whose SHA-256 is that of the index: else a DataError. DataError
/// with the nearest name and the folders where there is no such model. What takes a model (load(),
/// train(), decode(), ...) asks this by itself for what is neither a file nor a folder.
std::filesystem::path pretrained_file(const std::string& name);

/// The card of a model, as Markdown: data, licence, split, figures, uses and limits.
std::string pretrained_card(const std::string& name);

}  // namespace segfuse
