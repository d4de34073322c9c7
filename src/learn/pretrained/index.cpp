#include "learn/pretrained/index.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/toml_reader.h"

namespace segfuse::learn {
namespace {

constexpr std::int64_t kMaxRate = 10'000'000;  // as in the configuration
constexpr double kMaxHop = 1e9;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;

bool consists_of(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

/// A name is a part of a path: it must not lead out of the folder.
constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-";

PretrainedModel read_entry(const TomlReader& entry, const std::filesystem::path& folder) {
  constexpr std::size_t kHashDigits = 64;
  PretrainedModel model;
  model.name = entry.string("name");
  if (!consists_of(model.name, kNameCharacters))
    entry.refuse("name", "is not a name of a model; expected lower-case letters, digits and '-'");
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
    entry.refuse("sha256", "is not a SHA-256; expected 64 digits of 0-9 and a-f");
  model.path = folder / model.name / "model.safetensors";
  return model;
}

}  // namespace

std::vector<PretrainedModel> parse_model_index(std::string_view text, const std::string& source,
                                               const std::filesystem::path& folder) {
  const TomlReader index = TomlReader::parse(text, source);
  std::vector<PretrainedModel> models;
  for (const TomlReader& entry : index.sections("model")) {
    PretrainedModel model = read_entry(entry, folder);
    if (std::ranges::find(models, model.name, &PretrainedModel::name) != models.end())
      entry.refuse("name", "is the name of a model further up, too; expected one entry a name");
    models.push_back(std::move(model));
  }
  index.refuse_unknown();
  return models;
}

}  // namespace segfuse::learn
