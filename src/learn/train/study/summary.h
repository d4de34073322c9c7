#pragma once
// The summary of a study: study.json and study.html.

#include <string>
#include <vector>

#include "base/json/json.h"
#include "learn/report/report.h"
#include "learn/train/report/figures.h"
#include "learn/train/study/plan.h"
#include "learn/train/study/pooled.h"

namespace segfuse::learn {

/// A run that is done: its metrics.json and recordings.json.
struct FinishedRun {
  StudyRun run;
  Json metrics;
  MeasuredRun measured;
};

/// Over seeds, of each seed's folds together.
struct SeedSpread {
  double mean = 0;
  double deviation = 0;  ///< of a sample: its squares are divided by one less than the seeds
  double lowest = 0;
  double highest = 0;
};

struct PointSummary {
  StudyPoint point;
  std::vector<FinishedRun> runs;
  RecordingsFile pooled;
  Figures figures;                              ///< of the pooled counts, one system or several
  double train = 0;                             ///< training recordings, the mean of its runs
  double dev_score = kNoValue;                  ///< the mean of its runs; NaN where one has none
  std::vector<std::vector<SeedSpread>> spread;  ///< [system][row of figures]; empty for one seed
};

struct StudySummary {
  std::string title;
  std::vector<PointSummary> points;
  std::string selected_by;     ///< training.select_by
  std::ptrdiff_t chosen = -1;  ///< of a search, the point that is best on the development set
};

PointSummary summarise(const StudyPoint& point, std::vector<FinishedRun> runs);
Json study_json(const StudySummary& study);
ReportData study_report(const StudySummary& study, const std::string& date);

}  // namespace segfuse::learn
