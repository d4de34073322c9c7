#pragma once
// The report's data as the page's script reads it.

#include "base/json/json.h"
#include "learn/report/report.h"

namespace segfuse::learn {

/// Throws InternalError where `data` breaks the contract of report.h.
void check_report(const ReportData& data);
void check_recording(const ReportRecording& recording, std::size_t labels);

/// Everything the page shows; keys of parts that are empty are absent. Values that are not finite
/// are null, numbers have six significant digits, texts are printable UTF-8.
Json report_json(const ReportData& data, const ReportLimits& limits);

/// Marks of one row of the comparison, one a system: "best" for the single best value, "tie" for
/// each of several that do not differ from the best, "" otherwise and when fewer than two systems
/// have a value.
std::vector<std::string> comparison_marks(const ReportMetric& metric);

/// `recording` cut at the time where the first of its lanes reaches `max_segments` segments.
/// Returns the seconds kept; all of them when nothing was cut.
double cut_recording(ReportRecording& recording, std::int64_t max_segments);

/// The longest of what is known: the stated length and the end of the last segment.
double recording_seconds(const ReportRecording& recording);

}  // namespace segfuse::learn
