#pragma once
// The measures of one or more systems over the same recordings, with bootstrap intervals.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "learn/metrics/bootstrap.h"
#include "learn/metrics/measures.h"
#include "learn/report/report.h"

namespace segfuse::learn {

/// The results of one system, by the ids of the recordings.
struct MeasuredSystem {
  std::string name;
  std::map<std::string, MetricCounts> by_recording;
};

struct Figure {
  double value = 0;
  std::optional<metrics::Interval> interval;  ///< none for one recording
  double difference = kNoValue;               ///< to the reference; NaN of itself
  std::optional<metrics::Interval> difference_interval;
  bool level = false;  ///< the interval of its difference to the best system holds 0
};

struct FigureRow {
  metrics::Measure measure;
  std::vector<Figure> figures;  ///< one a system
};

struct Figures {
  std::int64_t recordings = 0;
  std::vector<std::string> systems;
  std::size_t reference = 0;  ///< the system that differences are to
  std::vector<FigureRow> rows;
  std::vector<MetricCounts> sums;  ///< over the recordings, of each system
};

/// All systems have the same recordings (InternalError). Measures whose counts one of them lacks
/// are left out.
Figures figures_of(const std::vector<MeasuredSystem>& systems,
                   const std::vector<double>& tolerances, std::size_t reference = 0,
                   double edge_tolerance = MetricsConfig().edge_tolerance);

/// How the intervals were made: "bootstrap" of metrics.json. With fewer than two recordings it says
/// that there are none.
Json bootstrap_json(std::int64_t recordings);
/// Adds "intervals" and, for all but the reference, "difference" to a system's JSON.
void add_figures(Json& json, const Figures& figures, std::size_t system);
/// The rows of the report.
std::vector<ReportMetric> report_metrics(const Figures& figures);
/// How to read them: a note of the report.
std::string interval_note(std::int64_t recordings);

}  // namespace segfuse::learn
