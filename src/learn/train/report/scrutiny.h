#pragma once
// Where a person should look first: the recordings with the most errors, and gold labels that may
// be wrong.

#include <vector>

#include "base/json/json.h"
#include "learn/report/report.h"
#include "learn/train/decode/evaluation.h"

namespace segfuse::learn {

inline constexpr std::size_t kScrutinised = 20;

/// Those with errors, the highest label error rate first; of equals in the order of their ids.
std::vector<ReportWorst> worst_recordings(const LabelledSet& set, const Evaluation& evaluation);

/// The gold segments with the lowest posterior (Evaluation::gold_posterior), lowest first; of
/// equals in the order of the set.
std::vector<ReportDoubt> doubted_labels(const LabelledSet& set, const Evaluation& evaluation);

/// "worst_recordings" and "doubted_labels" of metrics.json.
void add_scrutiny(Json& json, const LabelledSet& set, const Evaluation& evaluation);

}  // namespace segfuse::learn
