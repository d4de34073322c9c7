#pragma once
// Made-up but plausible report data, to test and to look at.

#include <cstdint>

#include "learn/report/report.h"

namespace segfuse::learn {

struct FakeReport {
  std::int32_t labels = 42;
  std::int64_t recordings = 4;
  std::int64_t epochs = 24;
  double seconds = 5;  ///< of a recording
  std::uint64_t seed = 7;
};

/// A report with every part filled. Same arguments, same data.
ReportData fake_report(const FakeReport& options = {});

}  // namespace segfuse::learn
