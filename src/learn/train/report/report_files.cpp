#include "learn/train/report/report_files.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>

#include "learn/train/report/recordings_file.h"

namespace segfuse::learn {

namespace fs = std::filesystem;

namespace {

/// The test recording that shows the model as it is: the one with the median error.
const ReportRecording* typical(const ReportData& report) {
  std::vector<const ReportRecording*> order;
  for (const ReportRecording& r : report.recordings) order.push_back(&r);
  order.resize(order.size() - report.worst_shown);
  if (order.empty()) return nullptr;
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->label_error_rate < b->label_error_rate;
  });
  return order[order.size() / 2];
}

}  // namespace

void announce_report(Outputs& outputs, const fs::path& out) {
  for (const char* name : {"metrics.json", kRecordingsFile, "report.html", "sequence.svg"})
    outputs.announce(out / name, "the report");
  outputs.check();
}

void write_report(Outputs& outputs, const fs::path& out, const ReportData& report,
                  const std::string& metrics, const std::string& recordings) {
  outputs.write(out / "metrics.json", metrics);
  outputs.write(out / kRecordingsFile, recordings);
  outputs.write(out / "report.html", render_report(report));
  const ReportRecording* shown = typical(report);
  if (shown == nullptr) return;
  SequencePicture picture;
  picture.to = std::min(shown->seconds, 3.0);
  outputs.write(out / "sequence.svg", render_sequence_svg(*shown, report.labels, picture));
}

std::string today() {
  const std::time_t t = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&t, &local);
  return fmt::format("{:%Y-%m-%d %H:%M}", local);
}

}  // namespace segfuse::learn
