// Reports of doctor streams in words.

#include <fmt/core.h>

#include "base/json/json.h"
#include "segfuse/doctor/streams.h"

namespace segfuse {

std::string stream_report_text(const StreamReport& report) {
  std::string text = fmt::format("{}: {} launches, copies and fills on a GPU\n", report.command,
                                 report.operations);
  for (const StreamRace& race : report.races)
    text += fmt::format("\nrace: {}\n  {:<10}{}\n", race.sentence, "missing", race.missing);
  if (report.operations == 0)
    text += "note: nothing was enqueued on a stream, so nothing was looked at\n";
  else if (report.races.empty())
    text += "no race: every use of memory waits for those it depends on\n";
  return text;
}

std::string stream_report_json(const StreamReport& report) {
  Json races = Json::array();
  for (const StreamRace& race : report.races)
    races.push_back(
        Json{{"sentence", race.sentence}, {"missing", race.missing}, {"picture", race.picture}});
  const Json json{{"command", report.command}, {"operations", report.operations}, {"races", races}};
  return json_text(json, 2) + "\n";
}

}  // namespace segfuse
