#include <fmt/ranges.h>

#include <algorithm>

#include "base/os/file.h"
#include "base/outputs.h"
#include "base/text.h"
#include "learn/metrics/counts_json.h"
#include "learn/train/report/label_table.h"
#include "learn/train/report/recordings_file.h"
#include "learn/train/report/report_files.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;
using learn::MeasuredSystem;
using learn::RecordingsFile;

/// One of the two that are compared.
struct Side {
  std::string path;
  RecordingsFile file;
  MeasuredSystem system;
};

Side side_of(const fs::path& folder, const std::string& name) {
  Side side{folder.string(), learn::read_recordings(folder), {}};
  const auto& systems = side.file.systems;
  const auto found =
      name.empty() ? systems.begin() : std::ranges::find(systems, name, &MeasuredSystem::name);
  if (found == systems.end()) {
    std::vector<std::string> known;
    for (const MeasuredSystem& system : systems) known.push_back(system.name);
    throw UsageError(fmt::format("{}: there is no system '{}' in this run; {}", side.path, name,
                                 suggestion(name, known)));
  }
  side.system = *found;
  return side;
}

/// Only what was measured on the same recordings and gold, in the same way, can be compared.
void check_same(const Side& a, const Side& b) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(
        fmt::format("{} and {} were not measured on the same recordings: {}; evaluate "
                    "both on the same data by `segfuse eval --data PATH --out DIR`",
                    a.path, b.path, why));
  };
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)})
    for (const auto& [id, recording] : one->file.recordings)
      if (!other->file.recordings.contains(id))
        refuse(fmt::format("'{}' is only in {} ({} against {} recordings)", id, one->path,
                           one->file.recordings.size(), other->file.recordings.size()));
  for (const auto& [id, recording] : a.file.recordings)
    if (recording.gold != b.file.recordings.at(id).gold)
      refuse(fmt::format("the gold segments of '{}' are others", id));
  if (a.file.tolerances != b.file.tolerances)
    throw UsageError(fmt::format(
        "{} was measured with tolerances of {} s and {} with {} s; measure both with the same "
        "evaluation.tolerances",
        a.path, fmt::join(a.file.tolerances, ", "), b.path, fmt::join(b.file.tolerances, ", ")));
  if (counts_fields(a.system) && counts_fields(b.system) &&
      (a.file.edge_tolerance != b.file.edge_tolerance || a.file.background != b.file.background))
    throw UsageError(fmt::format(
        "{} was measured with an edge tolerance of {} s and the background \"{}\", {} with {} s "
        "and \"{}\"; measure both with the same evaluation.edge_tolerance and "
        "evaluation.background",
        a.path, a.file.edge_tolerance, fmt::join(a.file.background, ", "), b.path,
        b.file.edge_tolerance, fmt::join(b.file.background, ", ")));
}

/// The paths, with the systems where the paths or the systems do not tell.
std::pair<std::string, std::string> names_of(const Side& a, const Side& b) {
  if (a.path != b.path && a.system.name == b.system.name) return {a.path, b.path};
  std::pair names(fmt::format("{} ({})", a.path, a.system.name),
                  fmt::format("{} ({})", b.path, b.system.name));
  if (names.first == names.second) names.second += " again";
  return names;
}

struct Difference {
  std::string key, first, second;
};
std::vector<Difference> differing_settings(const Side& a, const Side& b) {
  const auto value = [](const Side& side, const std::string& key) -> std::string {
    const auto found = side.file.settings.find(key);
    return found == side.file.settings.end() ? "" : found->second;
  };
  std::map<std::string, std::string> all = a.file.settings;
  all.insert(b.file.settings.begin(), b.file.settings.end());
  std::vector<Difference> found;
  for (const auto& [key, unused] : all)
    if (value(a, key) != value(b, key)) found.push_back({key, value(a, key), value(b, key)});
  return found;
}

Json json_of(const learn::Figures& figures, const std::vector<Difference>& settings,
             const std::vector<std::string>& systems, const RecordingsFile& file) {
  Json json;
  json["bootstrap"] = learn::bootstrap_json(figures.recordings);
  const bool has_labels = std::ranges::all_of(figures.sums, &MetricCounts::has_fields);
  for (std::size_t i = 0; i < figures.systems.size(); ++i) {
    Json& system = json["systems"][figures.systems[i]];
    system["head"] = systems[i];
    for (const learn::FigureRow& row : figures.rows) system[row.measure.key] = row.figures[i].value;
    if (has_labels) {
      system["background"] = file.background;
      system["edge_tolerance"] = file.edge_tolerance;
      system["by_label"] = metrics::label_figures_json(figures.sums[i]);
    }
    learn::add_figures(system, figures, i);
  }
  json["settings"] = Json::array();
  for (const Difference& d : settings)
    json["settings"].push_back({{"key", d.key}, {"first", d.first}, {"second", d.second}});
  return json;
}

learn::ReportData report_of(const learn::Figures& figures, const std::vector<Difference>& settings,
                            double edge_tolerance) {
  learn::ReportData report;
  report.title = fmt::format("{} and {}", figures.systems[0], figures.systems[1]);
  report.date = learn::today();
  report.facts = {{"recordings", std::to_string(figures.recordings)}};
  report.systems = figures.systems;
  report.reference = figures.systems[0];
  report.metrics = learn::report_metrics(figures);
  if (learn::ReportTable labels = learn::label_table(figures, edge_tolerance); !labels.rows.empty())
    report.tables.push_back(std::move(labels));
  report.notes.push_back(learn::interval_note(figures.recordings));
  for (const Difference& d : settings)
    report.environment.emplace_back(d.key, fmt::format("{} | {}", d.first.empty() ? "-" : d.first,
                                                       d.second.empty() ? "-" : d.second));
  if (settings.empty()) report.notes.push_back("Both runs have the same settings.");
  return report;
}

}  // namespace

Comparison compare(const CompareOptions& options) {
  Outputs outputs(options.overwrite);
  if (!options.out.empty()) {
    for (const char* name : {"compare.json", "compare.html"})
      outputs.announce(options.out / name, "the comparison");
    outputs.check();
  }
  Side a = side_of(options.first, options.first_system);
  Side b = side_of(options.second, options.second_system);
  check_same(a, b);
  // The settings are those of the run's own head, which need not be the one compared.
  for (Side* side : {&a, &b})
    side->file.settings["model.head"] = fmt::format("\"{}\"", side->system.name);
  Comparison result;
  std::tie(result.first, result.second) = names_of(a, b);
  const std::vector<std::string> systems{a.system.name, b.system.name};
  a.system.name = result.first;
  b.system.name = result.second;
  const learn::Figures figures =
      learn::figures_of({a.system, b.system}, a.file.tolerances, 0, a.file.edge_tolerance);
  const std::vector<Difference> settings = differing_settings(a, b);
  result.recordings = figures.recordings;
  result.json = json_text(json_of(figures, settings, systems, a.file), 2) + "\n";
  if (options.out.empty()) return result;
  make_directories(options.out);
  outputs.write(options.out / "compare.json", result.json);
  outputs.write(options.out / "compare.html",
                learn::render_report(report_of(figures, settings, a.file.edge_tolerance)));
  return result;
}

}  // namespace segfuse
