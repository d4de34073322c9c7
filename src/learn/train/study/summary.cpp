#include "learn/train/study/summary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "learn/report/text.h"

namespace segfuse::learn {
namespace {

/// Of the measures, by seed: the counts of its folds added up.
std::vector<SeedSpread> spread_of(const std::vector<MeasuredRun>& runs_by_seed,
                                  const std::string& system, const Figures& figures) {
  std::vector<MetricCounts> sums;
  for (const MeasuredRun& run : runs_by_seed) {
    const auto found = std::ranges::find(run.file.systems, system, &MeasuredSystem::name);
    MetricCounts sum;
    sum.boundaries.resize(run.file.tolerances.size());
    sum.segments.resize(run.file.tolerances.size());
    for (const auto& [id, counts] : found->by_recording) sum.add(counts);
    sums.push_back(std::move(sum));
  }
  std::vector<SeedSpread> rows;
  for (const FigureRow& row : figures.rows) {
    std::vector<double> values;
    double total = 0;
    for (const MetricCounts& sum : sums) total += values.emplace_back(row.measure.value(sum));
    const double mean = total / static_cast<double>(values.size());
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    rows.push_back({mean, std::sqrt(squares / static_cast<double>(values.size() - 1)),
                    std::ranges::min(values), std::ranges::max(values)});
  }
  return rows;
}

std::vector<MeasuredRun> by_seed(const std::vector<FinishedRun>& runs) {
  std::map<std::uint64_t, std::vector<MeasuredRun>> seeds;
  for (const FinishedRun& run : runs) seeds[run.run.seed].push_back(run.measured);
  std::vector<MeasuredRun> all;
  for (const auto& [seed, folds] : seeds) all.push_back({folds[0].folder, pooled(folds)});
  return all;
}

double number_of(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_number() ? json[key].get<double>() : kNoValue;
}

Json number_json(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json spread_json(const PointSummary& point, std::size_t system) {
  Json json = Json::object();
  for (std::size_t row = 0; row < point.figures.rows.size(); ++row) {
    const SeedSpread& spread = point.spread[system][row];
    json[point.figures.rows[row].measure.key] = {{"mean", spread.mean},
                                                 {"standard_deviation", spread.deviation},
                                                 {"lowest", spread.lowest},
                                                 {"highest", spread.highest}};
  }
  return json;
}

Json run_json(const FinishedRun& run, const Figures& figures) {
  Json json{{"folder", run.run.name}, {"seed", run.run.seed}};
  if (run.run.fold > 0) json["fold"] = run.run.fold;
  for (const char* key : {"recordings", "best_epoch", "dev_score", "train_seconds"})
    json[key] = run.metrics.value(key, Json());
  for (const FigureRow& row : figures.rows)
    json[row.measure.key] = run.metrics.value(row.measure.key, Json());
  return json;
}

Json point_json(const PointSummary& point) {
  Json json{{"name", point.point.name},
            {"share", point.point.share},
            {"overrides", point.point.overrides},
            {"train_recordings", point.train},
            {"dev_score", number_json(point.dev_score)},
            {"bootstrap", bootstrap_json(point.figures.recordings)}};
  for (std::size_t i = 0; i < point.figures.systems.size(); ++i) {
    Json& system = json["systems"][point.figures.systems[i]];
    system["head"] = point.figures.systems[i];
    for (const FigureRow& row : point.figures.rows) system[row.measure.key] = row.figures[i].value;
    add_figures(system, point.figures, i);
    if (!point.spread.empty()) system["over_seeds"] = spread_json(point, i);
  }
  for (const FinishedRun& run : point.runs) json["runs"].push_back(run_json(run, point.figures));
  return json;
}

std::string value_text(const Figure& figure) {
  std::string text = format_value(figure.value, ReportUnit::kPercent);
  if (figure.interval)
    text += " \xC2\xB1" + format_value(figure.interval->half_width(), ReportUnit::kPercent);
  return text;
}

/// What a point is called where it is the only one.
std::string title_of(const PointSummary& point) {
  return point.point.name.empty() ? "all runs" : point.point.name;
}

/// One row a point and system.
ReportTable points_table(const StudySummary& study) {
  ReportTable table{"Points", "", {"point", "system", "training recordings"}, {}};
  for (const FigureRow& row : study.points[0].figures.rows)
    if (row.measure.headline) table.head.push_back(row.measure.name);
  const bool has_seeds = !study.points[0].spread.empty();
  if (has_seeds) table.head.push_back("label error rate over seeds");
  if (study.chosen >= 0) table.head.push_back("dev " + study.selected_by);
  for (const PointSummary& point : study.points)
    for (std::size_t i = 0; i < point.figures.systems.size(); ++i) {
      std::vector<std::string>& cells = table.rows.emplace_back();
      cells = {title_of(point), point.figures.systems[i], fmt::format("{:g}", point.train)};
      for (const FigureRow& row : point.figures.rows)
        if (row.measure.headline) cells.push_back(value_text(row.figures[i]));
      if (has_seeds)
        cells.push_back(
            fmt::format("{} (sd {})", format_value(point.spread[i][0].mean, ReportUnit::kPercent),
                        format_value(point.spread[i][0].deviation, ReportUnit::kPercent)));
      if (study.chosen >= 0) cells.push_back(format_value(point.dev_score, ReportUnit::kRatio));
    }
  return table;
}

ReportTable runs_table(const StudySummary& study) {
  ReportTable table{"Runs",
                    "Each is a training of its own, with its report in its directory.",
                    {"run", "epoch kept", "dev " + study.selected_by},
                    {}};
  for (const FigureRow& row : study.points[0].figures.rows)
    if (row.measure.headline) table.head.push_back(row.measure.name);
  for (const PointSummary& point : study.points)
    for (const FinishedRun& run : point.runs) {
      std::vector<std::string>& cells = table.rows.emplace_back();
      cells = {run.run.name, format_value(number_of(run.metrics, "best_epoch"), ReportUnit::kCount),
               format_value(number_of(run.metrics, "dev_score"), ReportUnit::kRatio)};
      for (const FigureRow& row : point.figures.rows)
        if (row.measure.headline)
          cells.push_back(
              format_value(number_of(run.metrics, row.measure.key.c_str()), ReportUnit::kPercent));
    }
  return table;
}

/// The label error rate of each system over the training recordings.
ReportChart curve_of(const StudySummary& study) {
  ReportChart chart{"Label error rate on unseen recordings",
                    "training recordings",
                    "label errors / gold segments",
                    true,
                    {},
                    {}};
  for (const PointSummary& point : study.points) chart.x.push_back(point.train);
  for (std::size_t i = 0; i < study.points[0].figures.systems.size(); ++i) {
    ReportLine& line = chart.lines.emplace_back();
    line.name = study.points[0].figures.systems[i];
    for (const PointSummary& point : study.points) {
      const auto& names = point.figures.systems;
      const auto found = std::ranges::find(names, line.name);
      const Figure figure =
          found == names.end()
              ? Figure{.value = kNoValue, .interval = {}, .difference_interval = {}}
              : point.figures.rows[0].figures[static_cast<std::size_t>(found - names.begin())];
      line.values.push_back(figure.value);
      line.intervals.push_back(figure.interval
                                   ? ReportInterval{figure.interval->low, figure.interval->high}
                                   : ReportInterval{});
    }
  }
  return chart;
}

bool is_curve(const StudySummary& study) {
  return study.points.size() > 1 && study.points.back().point.share > study.points[0].point.share;
}

}  // namespace

PointSummary summarise(const StudyPoint& point, std::vector<FinishedRun> runs) {
  PointSummary summary{point, std::move(runs), {}, {}, 0, 0, {}};
  std::vector<MeasuredRun> measured;
  for (const FinishedRun& run : summary.runs) {
    measured.push_back(run.measured);
    const double count = static_cast<double>(summary.runs.size());
    summary.train += number_of(run.metrics["recordings"], "train") / count;
    summary.dev_score += number_of(run.metrics, "dev_score") / count;
  }
  summary.pooled = pooled(measured);
  const auto& systems = summary.pooled.systems;
  const auto reference =
      std::ranges::find(systems, name_of(HeadKind::kSemiMarkov), &MeasuredSystem::name);
  summary.figures = figures_of(
      systems, summary.pooled.tolerances,
      reference == systems.end() ? 0 : static_cast<std::size_t>(reference - systems.begin()),
      summary.pooled.edge_tolerance);
  const std::vector<MeasuredRun> seeds = by_seed(summary.runs);
  if (seeds.size() > 1)
    for (const MeasuredSystem& system : systems)
      summary.spread.push_back(spread_of(seeds, system.name, summary.figures));
  return summary;
}

Json study_json(const StudySummary& study) {
  Json json{{"title", study.title}, {"selected_by", study.selected_by}};
  if (study.chosen >= 0) {
    const StudyPoint& chosen = study.points[static_cast<std::size_t>(study.chosen)].point;
    json["chosen"] = {{"name", chosen.name}, {"overrides", chosen.overrides}};
  }
  for (const PointSummary& point : study.points) json["points"].push_back(point_json(point));
  return json;
}

ReportData study_report(const StudySummary& study, const std::string& date) {
  ReportData report;
  report.title = study.title.empty() ? "Study" : study.title;
  report.date = date;
  report.notes.push_back(interval_note(study.points[0].figures.recordings));
  if (study.chosen >= 0) {
    const StudyPoint& chosen = study.points[static_cast<std::size_t>(study.chosen)].point;
    report.notes.push_back(
        fmt::format("{} is the best on the development set ({}): {}. Figures of the test set take "
                    "no part in the choice.",
                    chosen.name, study.selected_by, fmt::join(chosen.overrides, ", ")));
  }
  if (is_curve(study)) report.charts.push_back(curve_of(study));
  report.tables.push_back(points_table(study));
  for (const PointSummary& point : study.points)
    if (!point.point.overrides.empty())
      report.environment.emplace_back(point.point.name,
                                      fmt::format("{}", fmt::join(point.point.overrides, "\n")));
  report.tables.push_back(runs_table(study));
  return report;
}

}  // namespace segfuse::learn
