#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "segfuse/model.h"

namespace segfuse::cli {
namespace {

using Json = nlohmann::ordered_json;

Json row_of(const PretrainedModel& model) {
  return {{"name", model.name},
          {"title", model.title},
          {"recordings", model.recordings},
          {"sample_rate", model.sample_rate},
          {"hop_ms", model.hop_ms},
          {"labels", model.labels},
          {"licence", model.licence},
          {"figure", model.figure},
          {"bytes", model.bytes},
          {"sha256", model.sha256},
          {"path", model.path.string()}};
}

void put_model(const PretrainedModel& model) {
  constexpr std::size_t kShown = 12;
  constexpr std::uint64_t kKilo = 1000;
  const std::size_t shown = std::min(kShown, model.labels.size());
  const std::string more =
      shown < model.labels.size() ? fmt::format(" and {} more", model.labels.size() - shown) : "";
  put("{}  {}\n", model.name, model.title);
  put("  trained on  {}; {} Hz, a frame every {} ms\n", model.recordings, model.sample_rate,
      model.hop_ms);
  put("  labels      {}{}\n",
      fmt::join(model.labels.begin(), model.labels.begin() + static_cast<std::ptrdiff_t>(shown),
                " "),
      more);
  put("  figure      {}\n", model.figure);
  put("  licence     {}\n", model.licence);
  put("  file        {} ({} kB)\n\n", model.path.string(), (model.bytes + kKilo / 2) / kKilo);
}

void list_models(const Common& common) {
  const std::vector<PretrainedModel> models = pretrained_models();
  if (common.json) {
    Json rows = Json::array();
    for (const PretrainedModel& model : models) rows.push_back(row_of(model));
    print_json(rows);
    return;
  }
  for (const PretrainedModel& model : models) put_model(model);
  if (!models.empty()) {
    put("segfuse models NAME prints a model's card; commands accept the name in place of a file\n");
    return;
  }
  put("no pretrained models; looked in\n");
  for (const auto& folder : pretrained_folders()) put("  {}\n", folder.string());
  put("the Python package segfuse-models has some: pip install 'segfuse[models]'\n");
}

void show_card(const std::string& name, const Common& common) {
  const std::string card = pretrained_card(name);
  if (!common.json) {
    put("{}", card);
    return;
  }
  const std::vector<PretrainedModel> models = pretrained_models();
  Json json = row_of(*std::ranges::find(models, name, &PretrainedModel::name));
  json["card"] = card;
  print_json(json);
}

}  // namespace

void add_models(Command app, Common& common) {
  auto name = std::make_shared<std::string>();
  Command command = app.add("models", "List the pretrained models that are installed");
  command.option("name", *name, "Print the card of this model: data, licence, figures, limits");
  command.footer(
      "\nSEGFUSE_MODELS names more folders of models, separated by colons.\n\nExamples:\n"
      "  segfuse models\n  segfuse models ecg-waves\n"
      "  segfuse train recordings --init ecg-waves --out out/mine");
  command.runs([name, &common] {
    if (name->empty())
      list_models(common);
    else
      show_card(*name, common);
  });
}

}  // namespace segfuse::cli
