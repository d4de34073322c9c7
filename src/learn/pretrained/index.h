#pragma once
// The index of a folder of pretrained models.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "segfuse/model.h"

namespace segfuse::learn {

/// The models of an index, whose files are FOLDER/NAME/model.safetensors; `source` names the index
/// in errors. DataError for what is malformed, and for names that could lead out of the folder.
std::vector<PretrainedModel> parse_model_index(std::string_view text, const std::string& source,
                                               const std::filesystem::path& folder);

}  // namespace segfuse::learn
