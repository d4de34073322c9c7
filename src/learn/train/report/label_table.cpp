#include "learn/train/report/label_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace segfuse::learn {
namespace {

constexpr std::size_t kMaxLabels = 100;

std::string percent(double value) { return fmt::format("{:.1f}%", 100 * value); }

/// "+3.1 ± 12.4".
std::string error_text(const EdgeCounts& edges) {
  if (edges.hits == 0) return "-";
  std::string text = fmt::format("{:+.1f}", edges.mean_ms());
  if (edges.hits > 1) text += fmt::format(" \xC2\xB1 {:.1f}", edges.deviation_ms());
  return text;
}

/// The most frequent ones of the gold, then of what was decoded, then by name.
std::vector<std::string> labels_of(const std::vector<MetricCounts>& sums) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> counts;
  for (const MetricCounts& sum : sums)
    for (const auto& [label, counted] : sum.by_label) {
      counts[label].first += counted.chunks.gold;
      counts[label].second += counted.chunks.predicted;
    }
  std::vector<std::string> labels;
  for (const auto& [label, count] : counts) labels.push_back(label);
  std::ranges::stable_sort(
      labels, [&](const std::string& a, const std::string& b) { return counts[a] > counts[b]; });
  return labels;
}

}  // namespace

ReportTable label_table(const Figures& figures, double edge_tolerance) {
  ReportTable table;
  if (!std::ranges::all_of(figures.sums, &MetricCounts::has_fields)) return table;
  std::vector<std::string> labels = labels_of(figures.sums);
  const std::size_t hidden = labels.size() - std::min(labels.size(), kMaxLabels);
  labels.resize(labels.size() - hidden);
  table.title = "Labels: chunks and edges";
  table.note = fmt::format(
      "Chunks: label and both edges on the frame. Edges: within {:g} ms of a gold one, with mean "
      "and standard deviation of decoded minus gold in ms.",
      1000 * edge_tolerance);
  if (hidden > 0) table.note += fmt::format(" {} rarer labels are in metrics.json.", hidden);
  table.head = {"label", "gold", "decoded", "precision", "recall", "F1"};
  for (const char* edge : {"onset", "offset"})
    for (const char* what : {"sensitivity", "PPV", "error"})
      table.head.push_back(fmt::format("{} {}", edge, what));
  const bool several = figures.systems.size() > 1;
  if (several) table.head.insert(table.head.begin() + 1, "system");
  for (const std::string& label : labels)
    for (std::size_t i = 0; i < figures.sums.size(); ++i) {
      const auto found = figures.sums[i].by_label.find(label);
      const LabelCounts counted =
          found == figures.sums[i].by_label.end() ? LabelCounts() : found->second;
      std::vector<std::string>& row = table.rows.emplace_back();
      row.push_back(label);
      if (several) row.push_back(figures.systems[i]);
      const MatchCounts& chunks = counted.chunks;
      row.insert(row.end(),
                 {std::to_string(chunks.gold), std::to_string(chunks.predicted),
                  percent(chunks.precision()), percent(chunks.recall()), percent(chunks.f1())});
      for (const EdgeCounts* edges : {&counted.onsets, &counted.offsets})
        row.insert(row.end(),
                   {percent(edges->recall()), percent(edges->precision()), error_text(*edges)});
    }
  return table;
}

}  // namespace segfuse::learn
