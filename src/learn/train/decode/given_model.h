#pragma once
// Models that were trained elsewhere.

#include <filesystem>

#include "learn/train/files/model_file.h"
#include "segfuse/model.h"

namespace segfuse::learn {

/// Like Model::of().
TrainedModel model_of(const ModelParts& parts);
/// Like Model::save().
void save_model(const TrainedModel& model, const std::filesystem::path& path, bool overwrite);

}  // namespace segfuse::learn
