#pragma once
// A row of the report for each label: chunks, and edges with their errors.

#include "learn/train/report/figures.h"

namespace segfuse::learn {

/// Of each system; without rows where nothing was counted by label.
ReportTable label_table(const Figures& figures, double edge_tolerance);

}  // namespace segfuse::learn
