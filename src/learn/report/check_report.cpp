#include <cmath>

#include "base/check.h"
#include "base/console/markup.h"
#include "learn/report/report_json.h"

namespace segfuse::learn {
namespace {

void check_label(std::int32_t label, std::size_t labels, const std::string& where) {
  SEGFUSE_CHECK(label >= 0 && static_cast<std::size_t>(label) < labels,
                "report: {} names label {} of {}", printable_utf8(where), label, labels);
}

void check_segments(const std::vector<ReportSegment>& segments, std::size_t labels,
                    const std::string& where) {
  for (const ReportSegment& s : segments) {
    if (s.label != -1) check_label(s.label, labels, where);
    SEGFUSE_CHECK(std::isfinite(s.start) && std::isfinite(s.end) && s.start <= s.end,
                  "report: {} has a segment from {} to {} s", printable_utf8(where), s.start,
                  s.end);
  }
}

void check_size(std::size_t found, std::size_t expected, const char* field) {
  SEGFUSE_CHECK(found == 0 || found == expected, "report: {} has {} entries, expected {}", field,
                found, expected);
}

}  // namespace

void check_recording(const ReportRecording& recording, std::size_t labels) {
  const std::string where = "recording " + recording.name;
  check_segments(recording.gold, labels, where);
  for (const ReportLane& lane : recording.decoded) check_segments(lane.segments, labels, where);
  SEGFUSE_CHECK(recording.waveform.empty() || recording.sample_rate > 0,
                "report: {} has a waveform but no sample rate", printable_utf8(where));
  SEGFUSE_CHECK(recording.boundary.empty() || recording.boundary_step > 0,
                "report: {} has boundary posteriors but no boundary_step", printable_utf8(where));
  if (recording.features.empty()) return;
  SEGFUSE_CHECK(recording.feature_step > 0 && recording.feature_bins > 0,
                "report: {} has features but no feature_step or feature_bins",
                printable_utf8(where));
  SEGFUSE_CHECK(recording.features.size() % static_cast<std::size_t>(recording.feature_bins) == 0,
                "report: {} has {} feature cells, expected a multiple of {} bins",
                printable_utf8(where), recording.features.size(), recording.feature_bins);
}

void check_report(const ReportData& data) {
  const std::size_t labels = data.labels.size();
  const std::size_t columns = data.systems.empty() ? 1 : data.systems.size();
  for (const ReportMetric& metric : data.metrics) {
    SEGFUSE_CHECK(metric.values.size() == columns, "report: metric {} has {} values, expected {}",
                  printable_utf8(metric.name), metric.values.size(), columns);
    check_size(metric.intervals.size(), columns, "metrics.intervals");
    check_size(metric.differences.size(), columns, "metrics.differences");
    check_size(metric.level.size(), columns, "metrics.level");
  }
  for (const ReportChart& chart : data.charts)
    for (const ReportLine& line : chart.lines) {
      SEGFUSE_CHECK(line.values.size() == chart.x.size(),
                    "report: line {} has {} values, expected {}", printable_utf8(line.name),
                    line.values.size(), chart.x.size());
      check_size(line.intervals.size(), chart.x.size(), "lines.intervals");
    }
  for (const ReportTable& table : data.tables)
    for (const std::vector<std::string>& row : table.rows)
      SEGFUSE_CHECK(row.size() == table.head.size(),
                    "report: table {} has a row of {}, expected {}", printable_utf8(table.title),
                    row.size(), table.head.size());
  for (const ReportDurations& d : data.durations) {
    check_label(d.label, labels, "durations");
    SEGFUSE_CHECK(d.step > 0, "report: durations of label {} have step {}", d.label, d.step);
  }
  check_size(data.confusions.pairs.size(), labels * labels, "confusions.pairs");
  check_size(data.confusions.deletions.size(), labels, "confusions.deletions");
  check_size(data.confusions.insertions.size(), labels, "confusions.insertions");
  for (const ReportLabelRow& row : data.label_rows) check_label(row.label, labels, "label_rows");
  for (const ReportRecording& recording : data.recordings) check_recording(recording, labels);
}

}  // namespace segfuse::learn
