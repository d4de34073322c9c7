#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/log.h"
#include "base/os/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "learn/train/experiment.h"
#include "learn/train/report_builder.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string today() {
  const std::time_t t = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(t));
}

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw FileError(path, "make the directory", error.value());
}

/// The test recording that shows the model as it is: the one with the median error.
const learn::ReportRecording* typical(const learn::ReportData& report) {
  std::vector<const learn::ReportRecording*> order;
  for (const learn::ReportRecording& r : report.recordings) order.push_back(&r);
  if (order.empty()) return nullptr;
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->label_error_rate < b->label_error_rate;
  });
  return order[order.size() / 2];
}

void write_pictures(const fs::path& out, const learn::ReportData& report) {
  write_file_atomically(out / "report.html", learn::render_report(report));
  const learn::ReportRecording* shown = typical(report);
  if (shown == nullptr) return;
  learn::SequencePicture picture;
  picture.to = std::min(shown->seconds, 3.0);
  write_file_atomically(out / "sequence.svg",
                        learn::render_sequence_svg(*shown, report.labels, picture));
}

fs::path model_path(const fs::path& given) {
  return fs::is_directory(given) ? given / "model.safetensors" : given;
}

}  // namespace

std::string train(const TrainOptions& options) {
  const double begin = now();
  learn::TrainConfig config = learn::read_train_config(options.config);
  if (!options.data.empty()) config.data.path = options.data;
  if (options.out.empty()) throw UsageError("no output directory was given; pass --out DIR");
  make_directory(options.out);
  ThreadPool pool(options.threads);
  learn::Corpus corpus = learn::load_corpus(config, pool, options.quiet);

  std::vector<learn::HeadKind> heads{config.model.head};
  if (options.compare)
    for (const auto head :
         {learn::HeadKind::kSemiMarkov, learn::HeadKind::kLinearChain, learn::HeadKind::kSoftmax})
      if (head != config.model.head) heads.push_back(head);
  std::vector<learn::System> systems;
  for (const learn::HeadKind head : heads) {
    const fs::path out = systems.empty() ? options.out : options.out / name_of(head);
    make_directory(out);
    learn::TrainerOptions trainer;
    trainer.checkpoint = out / "checkpoint.safetensors";
    trainer.resume = options.resume;
    trainer.quiet = options.quiet;
    trainer.name = "training " + name_of(head);
    learn::Corpus copy = corpus;  // heads cut the gold segments differently
    systems.push_back(learn::run_system(config, head, copy, pool, trainer));
    learn::write_model(out / "model.safetensors", systems.back().model);
  }
  const double seconds = now() - begin;
  std::string metrics = learn::metrics_json(config, corpus, systems, seconds, pool.size());
  write_pictures(options.out,
                 learn::build_report(config, corpus, systems, seconds, pool.size(), today()));
  write_file_atomically(options.out / "metrics.json", metrics);
  return metrics;
}

std::string evaluate(const EvaluateOptions& options) {
  if (!std::set<std::string>{"train", "dev", "test", "all"}.contains(options.split))
    throw UsageError("there is no split '{}'; use train, dev, test or all", options.split);
  const learn::TrainedModel model = learn::read_model(model_path(options.model));
  ThreadPool pool(options.threads);
  const std::string data = options.data.empty() ? model.config.data.path : options.data;
  const learn::LabelledSet set =
      learn::load_labelled(model, data, options.split, pool, options.quiet);
  const learn::Evaluation evaluation = learn::evaluate_model(pool, model, set);
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(evaluation.metrics.to_json());
  json["model"] = options.model.string();
  json["data"] = data;
  json["split"] = options.split;
  json["decode_seconds"] = evaluation.decode_seconds;
  const std::string text = json.dump(2) + "\n";
  if (!options.out.empty()) {
    make_directory(options.out);
    write_pictures(options.out, learn::build_report(model, set, evaluation, data, today()));
    write_file_atomically(options.out / "metrics.json", text);
  }
  return text;
}

}  // namespace segfuse
