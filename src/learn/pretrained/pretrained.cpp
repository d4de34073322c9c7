#include "segfuse/model.h"

#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <string_view>

#include "base/code/sha256.h"
#include "base/os/file.h"
#include "base/os/python_packages.h"
#include "base/os/shared_library.h"
#include "base/text.h"
#include "learn/pretrained/index.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "SEGFUSE_MODELS";
constexpr const char* kIndex = "index.toml";

std::vector<fs::path> named_folders() {
  std::vector<fs::path> folders;
  if (const char* named = ::secure_getenv(kVariable))
    for (const std::string_view folder : split(named, ':'))
      if (!folder.empty()) folders.emplace_back(folder);
  return folders;
}

/// Appends the models of a folder whose names are new.
void read_index(const fs::path& folder, std::vector<PretrainedModel>& models) {
  const fs::path file = folder / kIndex;
  for (PretrainedModel& model : learn::parse_model_index(read_file(file), file.string(), folder))
    if (std::ranges::find(models, model.name, &PretrainedModel::name) == models.end())
      models.push_back(std::move(model));
}

std::string looked_in() {
  std::vector<std::string> folders;
  for (const fs::path& folder : pretrained_folders()) folders.push_back(folder.string());
  return fmt::format("looked in {}; {} names other folders", fmt::join(folders, ", "), kVariable);
}

/// `missing` begins the sentence where there is none of this name.
PretrainedModel find_model(const std::string& name, std::string_view missing) {
  const std::vector<PretrainedModel> models = pretrained_models();
  const auto found = std::ranges::find(models, name, &PretrainedModel::name);
  if (found != models.end()) return *found;
  std::vector<std::string> names;
  for (const PretrainedModel& model : models) names.push_back(model.name);
  throw DataError(fmt::format(
      "{}: {} pretrained model of this name; {} ({})", name, missing,
      names.empty() ? "none is installed: pip install 'segfuse[models]'" : suggestion(name, names),
      looked_in()));
}

}  // namespace

std::vector<fs::path> pretrained_folders() {
  static constexpr char kHere = 0;
  std::vector<fs::path> folders = named_folders();
  // Below the prefix, whatever folder of it the code lies in: bin, lib, lib/x86_64-linux-gnu.
  const std::vector<fs::path> places = places_of_module(&kHere, "../share/segfuse/models");
  const auto there = std::ranges::find_if(places, [](const fs::path& place) {
    std::error_code error;
    return fs::exists(place / kIndex, error);
  });
  folders.push_back(there == places.end() ? places.front() : *there);
  for (const std::string& folder : files_of_python_packages({"segfuse_models/models"}))
    folders.emplace_back(folder);
  return folders;
}

std::vector<PretrainedModel> pretrained_models() {
  std::vector<PretrainedModel> models;
  const std::size_t named = named_folders().size();
  const std::vector<fs::path> folders = pretrained_folders();
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const bool found = path_exists(folders[i] / kIndex);
    if (i < named && !found)
      throw DataError(fmt::format(
          "{} names '{}', where there is no {}; set it to folders of models, separated by colons, "
          "or unset it",
          kVariable, folders[i].string(), kIndex));
    if (found) read_index(folders[i], models);
  }
  return models;
}

fs::path pretrained_file(const std::string& name) {
  const PretrainedModel model = find_model(name, "there is no file or folder and no");
  const std::string found = sha256_hex(read_file(model.path));
  if (found != model.sha256)
    throw DataError(fmt::format(
        "{}: the file is damaged or was changed: its SHA-256 is {}, expected {} as {} says; "
        "install the models again",
        model.path.string(), found, model.sha256,
        (model.path.parent_path().parent_path() / kIndex).string()));
  return model.path;
}

std::string pretrained_card(const std::string& name) {
  return read_file(find_model(name, "there is no").path.parent_path() / "card.md");
}

}  // namespace segfuse
