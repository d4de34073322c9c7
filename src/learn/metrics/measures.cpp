#include "learn/metrics/measures.h"

#include <fmt/format.h>

namespace segfuse::metrics {

std::string suffix_of(double tolerance) { return fmt::format("{:.6g}ms", tolerance * 1000); }

namespace {

void add_fields(std::vector<Measure>& all, double edge_tolerance) {
  const auto add = [&](std::string key, std::string name, const char* note, Better better,
                       std::function<double(const MetricCounts&)> value) {
    all.push_back({std::move(key), std::move(name), note, better, false, std::move(value), true});
  };
  using enum Better;
  add("segment_error_rate", "segment error rate",
      "label error rate without the background (syllable error rate)", kLower,
      [](const MetricCounts& c) { return c.foreground.rate(); });
  add("chunk_precision", "chunk precision", "label and both edges on the frame, no background",
      kHigher, [](const MetricCounts& c) { return c.chunks.precision(); });
  add("chunk_recall", "chunk recall", "", kHigher,
      [](const MetricCounts& c) { return c.chunks.recall(); });
  add("chunk_f1", "chunk F1", "of all labels together", kHigher,
      [](const MetricCounts& c) { return c.chunks.f1(); });
  add("chunk_f1_macro", "chunk F1, macro", "mean over labels", kHigher,
      [](const MetricCounts& c) { return c.chunk_f1_macro(); });
  const std::string suffix = "_" + suffix_of(edge_tolerance);
  const std::string at = fmt::format(" at {:g} ms", edge_tolerance * 1000);
  add("edge_sensitivity" + suffix, "edge sensitivity" + at, "onsets and offsets of each label",
      kHigher, [](const MetricCounts& c) { return c.edges.recall(); });
  add("edge_ppv" + suffix, "edge PPV" + at, "positive predictive value", kHigher,
      [](const MetricCounts& c) { return c.edges.precision(); });
}

}  // namespace

std::vector<Measure> measures_of(const std::vector<double>& tolerances, double edge_tolerance) {
  using enum Better;
  std::vector<Measure> all;
  all.push_back({"label_error_rate", "label error rate",
                 "substitutions, insertions and deletions per gold segment", kLower, true,
                 [](const MetricCounts& c) { return c.labels.rate(); }});
  for (std::size_t i = 0; i < tolerances.size(); ++i) {
    const std::string suffix = "_" + suffix_of(tolerances[i]);
    const std::string at = fmt::format(" at {:g} ms", tolerances[i] * 1000);
    const bool first = i == 0;
    const auto add = [&](const char* key, const char* name, const char* note, Better better,
                         bool headline, std::function<double(const MetricCounts&)> value) {
      all.push_back({key + suffix, name + at, note, better, headline, std::move(value)});
    };
    add("boundary_f1", "boundary F1", "optimal one-to-one matching", kHigher, first,
        [i](const MetricCounts& c) { return c.boundaries.at(i).f1(); });
    add("boundary_precision", "boundary precision", "", kHigher, false,
        [i](const MetricCounts& c) { return c.boundaries.at(i).precision(); });
    add("boundary_recall", "boundary recall", "", kHigher, false,
        [i](const MetricCounts& c) { return c.boundaries.at(i).recall(); });
    add("over_segmentation", "over-segmentation", "decoded boundaries per gold one, less 1",
        kNeither, false,
        [i](const MetricCounts& c) { return c.boundaries.at(i).over_segmentation(); });
    add("r_value", "R-value", "punishes over-segmentation", kHigher, first,
        [i](const MetricCounts& c) { return c.boundaries.at(i).r_value(); });
    add("segment_f1", "segment F1", "label and both edges right", kHigher, first,
        [i](const MetricCounts& c) { return c.segments.at(i).f1(); });
  }
  all.push_back({"segment_f1", "exact segment F1", "label and both edges on the frame", kHigher,
                 false, [](const MetricCounts& c) { return c.exact_segments.f1(); }});
  add_fields(all, edge_tolerance);
  all.push_back({"frame_accuracy", "frame accuracy", "", kHigher, true,
                 [](const MetricCounts& c) { return c.frame_accuracy(); }});
  return all;
}

}  // namespace segfuse::metrics
