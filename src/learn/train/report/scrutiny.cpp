#include "learn/train/report/scrutiny.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace segfuse::learn {
namespace {

/// The label that most of the time from `start` to `end` was decoded as; of equals the first.
std::string label_between(const Annotation& decoded, double start, double end) {
  std::map<std::string, double> seconds;
  for (const LabelSegment& s : decoded.segments) {
    const double common = std::min(end, s.end) - std::max(start, s.start);
    if (common > 0) seconds[s.label] += common;
  }
  const auto most =
      std::ranges::max_element(seconds, {}, [](const auto& one) { return one.second; });
  return most == seconds.end() ? "" : most->first;
}

template <class T, class Worse>
void keep_worst(std::vector<T>& all, const Worse& worse) {
  std::ranges::stable_sort(all, worse);
  if (all.size() > kScrutinised) all.resize(kScrutinised);
}

}  // namespace

std::vector<ReportWorst> worst_recordings(const LabelledSet& set, const Evaluation& evaluation) {
  std::map<std::string, double> seconds;
  for (const Example& example : set.examples) seconds[recording_of(example)] += example.seconds;
  std::vector<ReportWorst> all;
  for (const auto& [id, counts] : evaluation.by_recording) {
    const LabelErrors& errors = counts.labels;
    const auto wrong = errors.substitutions + errors.insertions + errors.deletions;
    if (wrong > 0)
      all.push_back({id, seconds[id], static_cast<double>(errors.gold), static_cast<double>(wrong),
                     errors.rate()});
  }
  keep_worst(all, [](const ReportWorst& a, const ReportWorst& b) {
    return a.label_error_rate > b.label_error_rate;
  });
  return all;
}

std::vector<ReportDoubt> doubted_labels(const LabelledSet& set, const Evaluation& evaluation) {
  std::vector<ReportDoubt> all;
  for (std::size_t i = 0; i < set.examples.size(); ++i) {
    const Example& example = set.examples[i];
    for (std::size_t s = 0; s < evaluation.gold_posterior[i].size(); ++s) {
      const double posterior = evaluation.gold_posterior[i][s];
      const LabelSegment& gold = example.gold.segments[s];
      if (std::isfinite(posterior))
        all.push_back({example.id, gold.start, gold.end, gold.label, "", posterior, i});
    }
  }
  keep_worst(all,
             [](const ReportDoubt& a, const ReportDoubt& b) { return a.posterior < b.posterior; });
  for (ReportDoubt& doubt : all)
    doubt.decoded = label_between(evaluation.predicted[doubt.index], doubt.start, doubt.end);
  return all;
}

void add_scrutiny(Json& json, const LabelledSet& set, const Evaluation& evaluation) {
  Json& worst = json["worst_recordings"] = Json::array();
  for (const ReportWorst& row : worst_recordings(set, evaluation))
    worst.push_back({{"recording", row.name},
                     {"seconds", row.seconds},
                     {"gold", row.gold},
                     {"errors", row.errors},
                     {"label_error_rate", row.label_error_rate}});
  Json& doubted = json["doubted_labels"] = Json::array();
  for (const ReportDoubt& row : doubted_labels(set, evaluation))
    doubted.push_back({{"recording", row.recording},
                       {"start", row.start},
                       {"end", row.end},
                       {"label", row.label},
                       {"posterior", row.posterior},
                       {"decoded", row.decoded}});
}

}  // namespace segfuse::learn
