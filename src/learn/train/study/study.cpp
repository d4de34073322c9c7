#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/console/log.h"
#include "learn/train/report/report_files.h"
#include "learn/train/study/place.h"
#include "learn/train/study/summary.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;
using learn::StudyPlan;
using learn::StudyRun;

TrainOptions options_of(const StudyOptions& study, const StudyRun& run) {
  TrainOptions options = study.training;
  options.out = study.training.out / run.name;
  options.overrides.insert(options.overrides.end(), run.overrides.begin(), run.overrides.end());
  return options;
}

learn::TrainConfig config_of(const TrainOptions& options) {
  return learn::parse_train_config(effective_configuration(options), "the configuration");
}

/// All that can be wrong with a setting is said before the first run.
void check_runs(const StudyOptions& options, const StudyPlan& plan) {
  for (const StudyRun& run : plan.runs) config_of(options_of(options, run));
}

learn::FinishedRun run_one(const StudyOptions& study, const StudyRun& run, std::size_t number,
                           std::size_t count) {
  log(LogLevel::kInfo, "run {} of {}: {}", number, count, run.name);
  TrainOptions options = options_of(study, run);
  if (number > 1) options.introduction.clear();
  const TrainResult result = train(options);
  return {run,
          parse_json(result.json, "metrics.json"),
          {options.out, learn::read_recordings(options.out)}};
}

/// The best on the development set, of equal ones the first.
std::ptrdiff_t best_of(const std::vector<learn::PointSummary>& points, learn::Selection by) {
  std::ptrdiff_t best = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double score = points[i].dev_score;
    const double least = points[static_cast<std::size_t>(best)].dev_score;
    if (!std::isfinite(score))
      throw UsageError(
          fmt::format("{}: there is no score on a development set, which a search needs; add a "
                      "development set to the data",
                      points[i].point.name));
    if (learn::lower_is_better(by) ? score < least : score > least)
      best = static_cast<std::ptrdiff_t>(i);
  }
  return best;
}

/// Of points whose several runs are pooled.
std::vector<std::pair<fs::path, std::string>> pooled_files(const fs::path& out,
                                                           const learn::StudySummary& summary) {
  std::vector<std::pair<fs::path, std::string>> files;
  for (const learn::PointSummary& point : summary.points)
    if (point.runs.size() > 1)
      files.emplace_back(out / point.point.name / learn::kRecordingsFile, text_of(point.pooled));
  return files;
}

void announce(Outputs& outputs, const fs::path& out, const StudyPlan& plan) {
  for (const char* name : {learn::kStudyFile, "study.html"})
    outputs.announce(out / name, "the study");
  for (std::size_t i = 0; i < plan.points.size(); ++i)
    if (std::ranges::count(plan.runs, i, &StudyRun::point) > 1)
      outputs.announce(out / plan.points[i].name / learn::kRecordingsFile, "the study");
  outputs.check();
}

}  // namespace

std::string study(const StudyOptions& options) {
  const learn::TrainConfig config = config_of(options.training);
  const StudyPlan plan = plan_study(options, config);
  const fs::path& out = options.training.out;
  check_runs(options, plan);
  learn::check_place(options.training, plan);
  Outputs outputs(options.training.overwrite);
  announce(outputs, out, plan);

  std::vector<std::vector<learn::FinishedRun>> runs(plan.points.size());
  std::size_t number = 0;
  for (const StudyRun& run : plan.runs)
    runs[run.point].push_back(run_one(options, run, ++number, plan.runs.size()));
  learn::StudySummary summary{config.title, {}, name_of(config.training.select_by), -1};
  for (std::size_t i = 0; i < plan.points.size(); ++i)
    summary.points.push_back(learn::summarise(plan.points[i], std::move(runs[i])));
  if (!options.search.empty()) summary.chosen = best_of(summary.points, config.training.select_by);

  const std::string text = json_text(study_json(summary), 2) + "\n";
  for (const auto& [path, content] : pooled_files(out, summary)) outputs.write(path, content);
  outputs.write(out / "study.html", learn::render_report(study_report(summary, learn::today())));
  outputs.write(out / learn::kStudyFile, text);
  return text;
}

}  // namespace segfuse
