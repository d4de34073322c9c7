// Reports of doctor streams in words.

#include <fmt/core.h>

#include "base/json/json.h"
#include "segfuse/doctor/streams.h"

namespace segfuse {

std::string stream_report_text(const StreamReport& report) {
  const std::string of = report.command.empty() ? "" : report.command + ": ";
  std::string text = fmt::format("{}{} launches, copies and fills\n", of, report.operations);
  for (const StreamRace& race : report.races) {
    text += fmt::format("\n{}: {}\n", race.kind, race.sentence);
    const auto row = [&](const std::string& name, const std::string& value) {
      if (value.empty()) return;
      text += fmt::format("  {:<10}", name);
      for (const char letter : value)
        text += letter == '\n' ? "\n            " : std::string(1, letter);
      text += "\n";
    };
    for (const auto& [name, place] : race.places) row(name, place);
    row("missing", race.missing);
    row("remedy", race.remedy);
  }
  if (!report.races.empty() && !report.notes.empty()) text += "\n";
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  if (report.operations == 0)
    text += "note: nothing was enqueued on a stream, so nothing was checked\n";
  else if (report.races.empty())
    text += "no race: every use of memory waits for those it depends on\n";
  return text;
}

std::string stream_report_json(const StreamReport& report) {
  Json races = Json::array();
  for (const StreamRace& race : report.races) {
    Json json{{"sentence", race.sentence}, {"missing", race.missing}, {"picture", race.picture}};
    if (!race.places.empty()) {
      Json places;
      for (const auto& [name, place] : race.places) places[name] = place;
      json["kind"] = race.kind;
      json["places"] = places;
      json["remedy"] = race.remedy;
    }
    races.push_back(json);
  }
  Json json{{"command", report.command}, {"operations", report.operations}, {"races", races}};
  if (!report.notes.empty()) json["notes"] = report.notes;
  return json_text(json, 2) + "\n";
}

}  // namespace segfuse
