#pragma once
// The files of a report: what train() and evaluate() write beside models.

#include <filesystem>
#include <string>

#include "base/outputs.h"
#include "learn/report/report.h"

namespace segfuse::learn {

/// Refuses what is in the way of a report's files in that folder.
void announce_report(Outputs& outputs, const std::filesystem::path& out);
/// metrics.json, recordings.json, report.html and, where a recording was decoded, sequence.svg.
void write_report(Outputs& outputs, const std::filesystem::path& out, const ReportData& report,
                  const std::string& metrics, const std::string& recordings);
/// The date and time of a report, local.
std::string today();

}  // namespace segfuse::learn
