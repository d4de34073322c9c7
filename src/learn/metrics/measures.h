#pragma once
// The measures that are reported: each is a number made of the counts of some recordings.

#include <functional>
#include <string>
#include <vector>

#include "segfuse/metrics.h"

namespace segfuse::metrics {

enum class Better { kHigher, kLower, kNeither };

struct Measure {
  std::string key;   ///< in metrics.json: "boundary_f1_20ms"
  std::string name;  ///< for people: "boundary F1 at 20 ms"
  std::string note;  ///< what is measured; may be empty
  Better better = Better::kHigher;
  bool headline = false;  ///< shown first
  std::function<double(const MetricCounts&)> value;
  bool of_fields = false;  ///< of counts that not all have (MetricCounts::has_fields)
};

/// All of them, in the order in which they are shown.
std::vector<Measure> measures_of(const std::vector<double>& tolerances,
                                 double edge_tolerance = MetricsConfig().edge_tolerance);

/// 0.02 -> "20ms", 0.0125 -> "12.5ms": what the keys of a tolerance end in.
std::string suffix_of(double tolerance);

}  // namespace segfuse::metrics
