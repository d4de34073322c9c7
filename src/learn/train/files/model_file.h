#pragma once
// A trained model as one file: parameters, normalisation, labels and the configuration.

#include <filesystem>
#include <string>
#include <vector>

#include "learn/model/grammar.h"
#include "learn/model/segmenter.h"
#include "learn/train/commands/config.h"
#include "learn/train/files/recipe.h"
#include "segfuse/data.h"

namespace segfuse::learn {

struct TensorFile;

struct TrainedModel {
  TrainConfig config;  ///< config.model holds the sizes found in the data
  Alphabet labels;
  Normalisation normalisation;
  Tensor duration_limit;           ///< f32 (K, C), 0 or -inf; [0] for heads without durations
  std::vector<Tensor> parameters;  ///< in the order of Segmenter::parameters()
  Recipe recipe{};                 ///< of the training; empty in models from before it was kept
  OrderLimit order_limit{};        ///< of the grammar, where config.model.ordered
  std::string source{};            ///< the file that it was read from

  Limits limits() const { return {duration_limit, order_limit}; }
};

/// A model file, or model.safetensors in a directory; what is neither may be the name of a
/// pretrained model. Throws what pretrained_file() throws.
std::filesystem::path model_path(const std::filesystem::path& given);

/// Safetensors: "parameter.NAME", "normalisation.mean", "normalisation.deviation",
/// "duration_limit", and with a grammar "transition_limit", "initial_limit", "final_limit";
/// metadata "config" (TOML), "model" (JSON: labels and sizes) and "recipe" (JSON). An encoder that
/// was given: metadata "encoder" (JSON with its programs), "constant.encoder.NAME".
void write_model(const std::filesystem::path& path, const TrainedModel& model);
/// DataError when the file is no segfuse model, was written for another version of it, or holds
/// anything of another type or shape than its configuration asks for, or tables out of range.
TrainedModel read_model(const std::filesystem::path& path);
/// DataError that names the parameter of the model in `path` that holds NaN or an infinity.
void check_parameters(const TrainedModel& model, const std::filesystem::path& path);
/// The same without the disk; `source` names the file in errors.
TensorFile file_of(const TrainedModel& model);
TrainedModel model_of(const TensorFile& file, const std::string& source);

}  // namespace segfuse::learn
