#include "learn/report/report.h"

#include <fmt/core.h>

#include "base/check.h"
#include "base/console/markup.h"
#include "base/json/json.h"
#include "learn/report/assets.h"
#include "learn/report/report_json.h"
#include "learn/report/text.h"

namespace segfuse::learn {
namespace {

/// `{{name}}` in the skeleton; each is looked at once, so the values may hold any text.
std::string slot_value(std::string_view slot, const ReportData& data, const ReportLimits& limits) {
  if (slot == "title") return escape_markup(data.title.empty() ? "Training report" : data.title);
  if (slot == "style") return report_asset("report.css");
  if (slot == "data") return json_for_script(json_text(report_json(data, limits)));
  if (slot == "script") {
    std::string out;
    for (const char* name : {"util.js", "charts.js", "tables.js", "viewer.js", "report.js"}) {
      out += report_asset(name);
    }
    return out;
  }
  throw InternalError(fmt::format("the report's skeleton has an unknown slot \"{}\"", slot));
}

}  // namespace

std::string render_report(const ReportData& data, const ReportLimits& limits) {
  const std::string skeleton = report_asset("report.html");
  std::string out;
  std::size_t at = 0;
  for (;;) {
    const std::size_t open = skeleton.find("{{", at);
    const std::size_t close = skeleton.find("}}", open);
    out += skeleton.substr(at, open - at);
    if (open == std::string::npos) return out;
    SEGFUSE_CHECK(close != std::string::npos, "the report's skeleton has an open slot at {}", open);
    out += slot_value(std::string_view(skeleton).substr(open + 2, close - open - 2), data, limits);
    at = close + 2;
  }
}

}  // namespace segfuse::learn
