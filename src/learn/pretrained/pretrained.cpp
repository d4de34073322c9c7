#include "segfuse/pretrained.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <string_view>

#include "base/code/sha256.h"
#include "base/os/file.h"
#include "base/os/python_packages.h"
#include "base/os/shared_library.h"
#include "base/text.h"
#include "base/toml_reader.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "SEGFUSE_MODELS";
constexpr const char* kIndex = "index.toml";
constexpr std::int64_t kMaxRate = 10'000'000;  // as in the configuration
constexpr double kMaxHop = 1e9;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;

std::vector<fs::path> named_folders() {
  std::vector<fs::path> folders;
  if (const char* named = ::secure_getenv(kVariable))
    for (const std::string_view folder : split(named, ':'))
      if (!folder.empty()) folders.emplace_back(folder);
  return folders;
}

bool consists_of(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

/// A name is a part of a path: it must not lead out of the folder.
constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-";

PretrainedModel read_entry(const TomlReader& entry, const fs::path& folder) {
  constexpr std::size_t kHashDigits = 64;
  PretrainedModel model;
  model.name = entry.string("name");
  if (!consists_of(model.name, kNameCharacters))
    entry.refuse("name", "is no name of a model; expected small letters, digits and '-'");
  model.title = entry.string("title");
  model.recordings = entry.string("recordings");
  entry.integer("sample_rate");  // has to be there
  model.sample_rate = static_cast<int>(entry.integer("sample_rate", 0, 1, kMaxRate));
  entry.number("hop_ms");
  model.hop_ms = entry.number("hop_ms", 0, 0, kMaxHop);
  model.labels = entry.strings("labels");
  if (model.labels.empty()) entry.refuse("labels", "is empty; expected the labels of the model");
  model.licence = entry.string("licence");
  model.figure = entry.string("figure");
  entry.integer("bytes");
  model.bytes = static_cast<std::uint64_t>(entry.integer("bytes", 0, 1, kMaxBytes));
  model.sha256 = entry.string("sha256");
  if (model.sha256.size() != kHashDigits || !consists_of(model.sha256, "0123456789abcdef"))
    entry.refuse("sha256", "is no SHA-256; expected 64 digits of 0-9 and a-f");
  model.path = folder / model.name / "model.safetensors";
  return model;
}

/// Appends the models of a folder whose names are new.
void read_index(const fs::path& folder, std::vector<PretrainedModel>& models) {
  const TomlReader index = TomlReader::open(folder / kIndex);
  for (const TomlReader& entry : index.sections("model")) {
    PretrainedModel model = read_entry(entry, folder);
    if (std::ranges::find(models, model.name, &PretrainedModel::name) == models.end())
      models.push_back(std::move(model));
  }
  index.refuse_unknown();
}

std::string looked_in() {
  std::vector<std::string> folders;
  for (const fs::path& folder : pretrained_folders()) folders.push_back(folder.string());
  return fmt::format("looked in {}; {} names other folders", fmt::join(folders, ", "), kVariable);
}

PretrainedModel find_model(const std::string& name) {
  const std::vector<PretrainedModel> models = pretrained_models();
  const auto found = std::ranges::find(models, name, &PretrainedModel::name);
  if (found != models.end()) return *found;
  std::vector<std::string> names;
  for (const PretrainedModel& model : models) names.push_back(model.name);
  throw DataError(fmt::format(
      "{}: there is no file or folder and no pretrained model of this name; {} ({})", name,
      names.empty() ? "there are no pretrained models" : suggestion(name, names), looked_in()));
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
  for (const std::string& folder : files_of_python_packages({"segfuse_models"}))
    folders.emplace_back(folder);
  return folders;
}

std::vector<PretrainedModel> pretrained_models() {
  std::vector<PretrainedModel> models;
  const std::size_t named = named_folders().size();
  const std::vector<fs::path> folders = pretrained_folders();
  for (std::size_t i = 0; i < folders.size(); ++i)
    if (i < named || path_exists(folders[i] / kIndex)) read_index(folders[i], models);
  return models;
}

fs::path pretrained_file(const std::string& name) {
  const PretrainedModel model = find_model(name);
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
  return read_file(find_model(name).path.parent_path() / "card.md");
}

}  // namespace segfuse
