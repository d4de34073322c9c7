#include "learn/train/report/facts.h"

#include <fmt/ranges.h>

#include "base/code/fnv.h"
#include "learn/train/commands/initial_model.h"
#include "learn/train/files/recipe.h"
#include "segfuse/semicrf_cuda.h"
#include "segfuse/version.h"

namespace segfuse::learn {

namespace {

/// Of a device that is in use.
std::string device_text(const Context& context) {
  const std::string& device = context.options().get(options::kDevice);
  if (device == "cpu") return "CPU";
  return fmt::format("{}: {}", device, semicrf::CudaEngine::describe_device());
}

/// Of the recordings' ids, features as the model sees them, and gold segments on frames. Where
/// heads cut long segments, before that.
std::string data_hash(const std::vector<Sequence>& sequences) {
  Recipe recipe;
  add_data(recipe, "", sequences);
  std::uint64_t hash = kFnvBasis;
  for (const auto& [name, value] : recipe) hash = fnv1a(value + "\n", hash);
  return fmt::format("{:016x}", hash);
}

}  // namespace

RunFacts facts_of(const Corpus& corpus, const Context& context, const std::string& command_line,
                  double seconds) {
  RunFacts facts;
  facts.command_line = command_line;
  facts.device = device_text(context);
  facts.threads = context.threads();
  facts.seconds = seconds;
  if (corpus.init) {
    facts.init_labels = labels_known_text(*corpus.init, corpus.labels);
    facts.init_sha256 = corpus.init->sha256;
  }
  for (const auto& [name, set] : {std::pair("train", &corpus.train), std::pair("dev", &corpus.dev),
                                  std::pair("test", &corpus.test)})
    if (!set->sequences.empty()) facts.data.emplace_back(name, data_hash(set->sequences));
  return facts;
}

RunFacts facts_of(const LabelledSet& set, const std::string& name, const Context& context,
                  const std::string& command_line) {
  RunFacts facts;
  facts.command_line = command_line;
  facts.device = device_text(context);
  facts.threads = context.threads();
  facts.data.emplace_back(name, data_hash(set.sequences));
  return facts;
}

Json facts_json(const RunFacts& facts, const TrainConfig& config) {
  Json json{{"segfuse", version()}};
  if (!facts.command_line.empty()) json["command_line"] = facts.command_line;
  json["device"] = facts.device;
  json["threads"] = facts.threads;
  json["seed"] = config.training.seed;
  for (const auto& [set, hash] : facts.data) json["data_hash"][set] = hash;
  if (!facts.init_sha256.empty())
    json["initial_model"] = {{"path", config.training.init},
                             {"sha256", facts.init_sha256},
                             {"labels", facts.init_labels}};
  json["overrides"] = config.overrides;
  json["configuration"] = settings_text(config);
  return json;
}

std::vector<std::pair<std::string, std::string>> facts_rows(const RunFacts& facts,
                                                            const TrainConfig& config) {
  std::vector<std::pair<std::string, std::string>> rows{{"segfuse", version()}};
  if (!facts.command_line.empty()) rows.emplace_back("command line", facts.command_line);
  rows.emplace_back("device", facts.device);
  rows.emplace_back("threads", std::to_string(facts.threads));
  rows.emplace_back("seed", std::to_string(config.training.seed));
  if (config.training.precision != Precision::kFloat32)
    rows.emplace_back("precision of training steps", name_of(config.training.precision));
  for (const auto& [set, hash] : facts.data)
    rows.emplace_back("hash of the " + set + " data", hash);
  if (!facts.init_sha256.empty()) {
    rows.emplace_back("initial model", facts.init_labels);
    rows.emplace_back("SHA-256 of the initial model", facts.init_sha256);
  }
  rows.emplace_back("overrides", config.overrides.empty()
                                     ? "none"
                                     : fmt::format("{}", fmt::join(config.overrides, ", ")));
  if (facts.seconds > 0) rows.emplace_back("total time", fmt::format("{:.0f} s", facts.seconds));
  return rows;
}

}  // namespace segfuse::learn
