#include "learn/train/report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace segfuse::learn {
namespace {

using metrics::Better;
using metrics::Interval;

MetricCounts sum_of(const std::vector<MetricCounts>& all, std::size_t tolerances) {
  MetricCounts sum;
  sum.boundaries.resize(tolerances);
  sum.segments.resize(tolerances);
  for (const MetricCounts& counts : all) sum.add(counts);
  return sum;
}

/// A system's counts and their draws.
struct Drawn {
  std::vector<MetricCounts> recordings;
  MetricCounts sum;
  std::vector<MetricCounts> draws;
};

Drawn drawn(const MeasuredSystem& system, std::size_t tolerances) {
  Drawn result;
  for (const auto& [id, counts] : system.by_recording) result.recordings.push_back(counts);
  result.sum = sum_of(result.recordings, tolerances);
  result.draws = metrics::resample(result.recordings);
  return result;
}

std::size_t best_of(const std::vector<Figure>& figures, Better better) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < figures.size(); ++i)
    if (better == Better::kLower ? figures[i].value < figures[best].value
                                 : figures[i].value > figures[best].value)
      best = i;
  return best;
}

FigureRow row_of(const metrics::Measure& measure, const std::vector<Drawn>& systems,
                 std::size_t reference) {
  FigureRow row{measure, {}};
  for (std::size_t i = 0; i < systems.size(); ++i) {
    Figure& figure = row.figures.emplace_back();
    figure.value = systems[i].recordings.empty() ? kNoValue : measure.value(systems[i].sum);
    figure.interval = metrics::interval_of(systems[i].draws, measure.value);
    if (i == reference) continue;
    figure.difference = figure.value - measure.value(systems[reference].sum);
    figure.difference_interval =
        metrics::difference_interval(systems[i].draws, systems[reference].draws, measure.value);
  }
  const std::size_t best = best_of(row.figures, measure.better);
  for (std::size_t i = 0; i < systems.size(); ++i) {
    const auto interval =
        metrics::difference_interval(systems[i].draws, systems[best].draws, measure.value);
    row.figures[i].level = interval && interval->holds(0);
  }
  return row;
}

Json interval_json(const std::optional<Interval>& interval) {
  if (!interval) return nullptr;
  return Json::array({interval->low, interval->high});
}

ReportInterval report_interval(const std::optional<Interval>& interval) {
  return interval ? ReportInterval{interval->low, interval->high} : ReportInterval{};
}

ReportBetter report_better(Better better) {
  switch (better) {
    case Better::kHigher: return ReportBetter::kHigher;
    case Better::kLower: return ReportBetter::kLower;
    case Better::kNeither: break;
  }
  return ReportBetter::kNeither;
}

}  // namespace

Figures figures_of(const std::vector<MeasuredSystem>& systems,
                   const std::vector<double>& tolerances, std::size_t reference,
                   double edge_tolerance) {
  Figures figures;
  figures.reference = reference;
  std::vector<Drawn> all;
  for (const MeasuredSystem& system : systems) {
    figures.systems.push_back(system.name);
    all.push_back(drawn(system, tolerances.size()));
    SEGFUSE_CHECK(all.back().recordings.size() == all.front().recordings.size(),
                  "systems have the same recordings");
  }
  figures.recordings = std::ssize(all.at(0).recordings);
  for (const Drawn& system : all) figures.sums.push_back(system.sum);
  const bool has_fields = std::ranges::all_of(figures.sums, &MetricCounts::has_fields);
  for (const metrics::Measure& measure : metrics::measures_of(tolerances, edge_tolerance))
    if (has_fields || !measure.of_fields) figures.rows.push_back(row_of(measure, all, reference));
  return figures;
}

Json bootstrap_json(std::int64_t recordings) {
  Json json{{"over", "recordings"},
            {"recordings", recordings},
            {"resamples", metrics::kResamples},
            {"seed", metrics::kBootstrapSeed},
            {"confidence", metrics::kConfidence}};
  if (recordings < 2) json["note"] = interval_note(recordings);
  return json;
}

void add_figures(Json& json, const Figures& figures, std::size_t system) {
  if (figures.recordings == 0)  // sums of nothing would be perfect
    for (const FigureRow& row : figures.rows) json[row.measure.key] = nullptr;
  Json& intervals = json["intervals"] = Json::object();
  for (const FigureRow& row : figures.rows)
    intervals[row.measure.key] = interval_json(row.figures[system].interval);
  if (system == figures.reference) return;
  Json& difference = json["difference"];
  difference["to"] = figures.systems[figures.reference];
  for (const FigureRow& row : figures.rows)
    difference[row.measure.key] = {
        {"value", row.figures[system].difference},
        {"interval", interval_json(row.figures[system].difference_interval)}};
}

std::vector<ReportMetric> report_metrics(const Figures& figures) {
  std::vector<ReportMetric> all;
  for (const FigureRow& row : figures.rows) {
    ReportMetric& m = all.emplace_back();
    m.name = row.measure.name;
    m.unit = ReportUnit::kPercent;
    m.better = report_better(row.measure.better);
    m.headline = row.measure.headline;
    m.note = row.measure.note;
    for (const Figure& figure : row.figures) {
      m.values.push_back(figure.value);
      m.intervals.push_back(report_interval(figure.interval));
      m.level.push_back(figure.level);
      if (row.figures.size() > 1)
        m.differences.push_back({figure.difference, report_interval(figure.difference_interval)});
    }
  }
  return all;
}

std::string interval_note(std::int64_t recordings) {
  if (recordings == 0)
    return "Nothing was measured: there are neither development nor test recordings, so no "
           "interval "
           "can be given.";
  if (recordings < 2)
    return "There is one recording only, so no interval can be given: how much the figures would "
           "vary over other recordings is not known.";
  return fmt::format(
      "\xC2\xB1 is half of a {:g} % bootstrap interval over the {} recordings ({} resamples). It "
      "says how much a figure would vary over other recordings of this kind, not over other "
      "trainings.",
      100 * metrics::kConfidence, recordings, metrics::kResamples);
}

}  // namespace segfuse::learn
