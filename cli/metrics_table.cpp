// The figures that people ask for first, as a table; all of them are in metrics.json.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "commands.h"

namespace segfuse::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Column {
  std::string key;
  std::string title;
};

/// One for each tolerance, in their order: "20ms".
std::vector<std::string> tolerances_of(const Json& metrics) {
  constexpr std::string_view kKey = "boundary_f1_";
  std::vector<std::string> all;
  for (const auto& [key, value] : metrics.items())
    if (key.starts_with(kKey)) all.push_back(key.substr(kKey.size()));
  return all;
}

std::vector<Column> columns_of(const Json& metrics) {
  std::vector<Column> columns{{"label_error_rate", "label err"}};
  if (metrics.contains("background") && !metrics["background"].empty())
    columns.push_back({"segment_error_rate", "segment err"});
  for (const std::string& tolerance : tolerances_of(metrics)) {
    columns.push_back({"boundary_f1_" + tolerance, "boundary F1 " + tolerance});
    columns.push_back({"r_value_" + tolerance, "R-value " + tolerance});
  }
  columns.push_back({"frame_accuracy", "frame acc"});
  return columns;
}

bool has_number(const Json& json, const std::string& key) {
  return json.contains(key) && json[key].is_number();
}
bool has_interval(const Json& json) { return json.is_array() && json.size() == 2; }

/// "0.1493 ±0.0121".
std::string value_text(const Json& metrics, const std::string& key) {
  if (!has_number(metrics, key)) return "-";
  std::string text = fmt::format("{:.4f}", metrics[key].get<double>());
  if (!metrics.contains("intervals") || !metrics["intervals"].contains(key)) return text;
  const Json& interval = metrics["intervals"][key];
  if (has_interval(interval))
    text +=
        fmt::format(" \xC2\xB1{:.4f}", (interval[1].get<double>() - interval[0].get<double>()) / 2);
  return text;
}

/// "+0.0057 (-0.0012 to +0.0123)".
std::string difference_text(const Json& difference, const std::string& key) {
  if (!difference.contains(key) || !has_number(difference[key], "value")) return "-";
  std::string text = fmt::format("{:+.4f}", difference[key]["value"].get<double>());
  const Json& interval = difference[key]["interval"];
  if (has_interval(interval))
    text +=
        fmt::format(" ({:+.4f} to {:+.4f})", interval[0].get<double>(), interval[1].get<double>());
  return text;
}

std::size_t width_of(const std::string& text) {  // code points
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// Rows of texts, the first one left, the others right.
void put_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      line += i == 0 ? row[i] + padding : "  " + padding + row[i];
    }
    put("{}\n", line);
  }
}

using NamedMetrics = std::vector<std::pair<std::string, const Json*>>;

void put_values(const NamedMetrics& systems, const std::vector<Column>& columns) {
  std::vector<std::vector<std::string>> rows(1, {""});
  for (const Column& column : columns) rows[0].push_back(column.title);
  for (const auto& [name, metrics] : systems) {
    rows.push_back({name});
    for (const Column& column : columns) rows.back().push_back(value_text(*metrics, column.key));
  }
  put_table(rows);
}

void put_differences(const NamedMetrics& systems, const std::vector<Column>& columns) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, metrics] : systems) {
    if (!metrics->contains("difference")) continue;
    const Json& difference = (*metrics)["difference"];
    if (rows.empty()) {
      rows.push_back({"minus " + difference.value("to", "")});
      for (const Column& column : columns) rows.back().push_back(column.title);
    }
    rows.push_back({name});
    for (const Column& column : columns)
      rows.back().push_back(difference_text(difference, column.key));
  }
  if (rows.empty()) return;
  put("\n");
  put_table(rows);
}

void put_clean_up(const Json& metrics) {
  if (!metrics.contains("clean_up")) return;
  const Json& chosen = metrics["clean_up"];
  const auto milliseconds = [&](const char* key) {
    return fmt::format("{:g} ms", 1000 * chosen.value(key, 0.0));
  };
  put("{}: {}, {}; the best {} of {} settings on the development set\n", metrics.value("head", ""),
      chosen.value("minimum_frames", 1) > 1 ? "minimum duration " + milliseconds("minimum_duration")
                                            : "no minimum duration",
      chosen.value("vote_frames", 1) > 1 ? "majority vote over " + milliseconds("vote")
                                         : "no majority vote",
      chosen.value("chosen_by", ""), chosen.value("settings_tried", 0));
}

void put_method(const Json& metrics) {
  if (!metrics.contains("bootstrap")) return;
  const Json& bootstrap = metrics["bootstrap"];
  if (bootstrap.contains("note"))
    put("{}\n", bootstrap["note"].get<std::string>());
  else
    put("\xC2\xB1 is half of a {:g} % bootstrap interval over {} recordings\n",
        100 * bootstrap.value("confidence", 0.0), bootstrap.value("recordings", 0));
}

/// Of two runs, what differs.
void put_settings(const Json& comparison) {
  if (!comparison.contains("settings")) return;
  std::vector<std::vector<std::string>> rows;
  const auto text = [](const Json& row, const char* key) {
    const std::string value = row.value(key, "");
    return value.empty() ? "-" : value;
  };
  for (const Json& row : comparison["settings"])
    rows.push_back({row.value("key", ""), text(row, "first"), text(row, "second")});
  put("\n{}\n", rows.empty() ? "both have the same settings" : "settings that differ:");
  if (!rows.empty()) put_table(rows);
}

/// Of a study's point and one of its systems, what a row is called.
std::string row_name(const Json& point, const std::string& system, bool several) {
  const std::string name = point.value("name", "");
  if (name.empty()) return several ? system : "all runs";
  return several ? name + " " + system : name;
}

/// "0.1493, sd 0.0102, 0.1401 to 0.1602", of the seeds.
void put_spread(const std::string& name, const Json& system) {
  if (!system.contains("over_seeds")) return;
  const Json& spread = system["over_seeds"]["label_error_rate"];
  const auto number = [&](const char* key) { return spread.value(key, 0.0); };
  put("{}: label error rate {:.4f} over seeds, sd {:.4f}, {:.4f} to {:.4f}\n", name, number("mean"),
      number("standard_deviation"), number("lowest"), number("highest"));
}

}  // namespace

void put_study(const std::string& text) {
  const Json study = Json::parse(text);
  const Json& points = study["points"];
  NamedMetrics rows;
  for (const Json& point : points)
    for (const auto& [name, system] : point["systems"].items())
      rows.emplace_back(row_name(point, name, point["systems"].size() > 1), &system);
  if (points.size() == 1)
    for (const Json& run : points[0]["runs"]) rows.emplace_back(run.value("folder", ""), &run);
  put_values(rows, columns_of(*rows[0].second));
  put("\n");
  for (const auto& [name, system] : rows) put_spread(name, *system);
  const bool chosen = study.contains("chosen");
  for (const Json& point : points) {
    std::string settings;
    for (const Json& one : point["overrides"])
      settings += (settings.empty() ? "" : ", ") + one.get<std::string>();
    const std::string score = has_number(point, "dev_score")
                                  ? fmt::format("{:.4f}", point["dev_score"].get<double>())
                                  : "-";
    if (chosen)
      put("{}: {}; dev {} {}{}\n", point.value("name", ""), settings,
          study.value("selected_by", ""), score,
          point["name"] == study["chosen"]["name"] ? ", the best" : "");
    else if (points.size() > 1)
      put("{}: {:g} training recordings\n", point.value("name", ""),
          point.value("train_recordings", 0.0));
  }
  put_method(points[0]);
}

void put_metrics(const std::string& text) {
  const Json metrics = Json::parse(text);
  NamedMetrics systems;
  if (metrics.contains("systems"))
    for (const auto& [name, system] : metrics["systems"].items())
      systems.emplace_back(name, &system);
  else
    systems.emplace_back(metrics.value("head", metrics.value("split", "")), &metrics);
  const std::vector<Column> columns = columns_of(*systems[0].second);
  put_values(systems, columns);
  put_differences(systems, columns);
  put("\n");
  for (const auto& [name, system] : systems) put_clean_up(*system);
  put_method(metrics);
  put_settings(metrics);
}

}  // namespace segfuse::cli
