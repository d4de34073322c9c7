#include "learn/report/report_json.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/console/markup.h"
#include "base/json/json.h"
#include "learn/report/align.h"
#include "learn/report/media.h"
#include "learn/report/text.h"

namespace segfuse::learn {
namespace {

constexpr int kDigits = 6;
constexpr std::int64_t kMaxFeatureBins = 80;

Json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  const double rounded = round_significant(value, kDigits);
  const bool whole = rounded == std::floor(rounded) && std::abs(rounded) < 1e15;
  return whole ? Json(static_cast<std::int64_t>(rounded)) : Json(rounded);
}

Json numbers(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double v : values) out.push_back(number(v));
  return out;
}

Json text(std::string_view value) { return printable_utf8(value); }

Json texts(const std::vector<std::string>& values) {
  Json out = Json::array();
  for (const std::string& v : values) out.push_back(text(v));
  return out;
}

Json text_pairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json out = Json::array();
  for (const auto& [name, value] : pairs) out.push_back(Json::array({text(name), text(value)}));
  return out;
}

void put_text(Json& out, const char* key, const std::string& value) {
  if (!value.empty()) out[key] = text(value);
}

double total(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += std::isfinite(v) ? v : 0;
  return sum;
}

const char* name_of(ReportBetter better) {
  switch (better) {
    case ReportBetter::kHigher: return "higher";
    case ReportBetter::kLower: return "lower";
    case ReportBetter::kNeither: return "";
  }
  return "";
}

/// Half of its width; empty where there is none.
std::string interval_text(const ReportInterval& interval, ReportUnit unit) {
  const double half = (interval.high - interval.low) / 2;
  return std::isfinite(half) ? "\xC2\xB1" + format_value(half, unit) : "";
}

std::string signed_text(double value, ReportUnit unit) {
  return (value > 0 ? "+" : "") + format_value(value, unit);
}

std::string difference_text(const ReportDifference& difference, ReportUnit unit) {
  if (!std::isfinite(difference.value)) return "";
  const std::string text = signed_text(difference.value, unit);
  const ReportInterval& interval = difference.interval;
  if (!std::isfinite(interval.low) || !std::isfinite(interval.high)) return text;
  return text + " (" + signed_text(interval.low, unit) + " to " + signed_text(interval.high, unit) +
         ")";
}

Json metrics_json(const ReportData& data) {
  Json out = Json::array();
  for (const ReportMetric& metric : data.metrics) {
    Json row{{"name", text(metric.name)}, {"better", name_of(metric.better)}};
    put_text(row, "note", metric.note);
    if (metric.headline) row["headline"] = true;
    for (const double v : metric.values) row["text"].push_back(format_value(v, metric.unit));
    row["mark"] = comparison_marks(metric);
    for (const ReportInterval& interval : metric.intervals)
      row["interval"].push_back(interval_text(interval, metric.unit));
    for (const ReportDifference& difference : metric.differences)
      row["difference"].push_back(difference_text(difference, metric.unit));
    out.push_back(std::move(row));
  }
  return out;
}

Json charts_json(const ReportData& data) {
  Json out = Json::array();
  for (const ReportChart& chart : data.charts) {
    Json lines = Json::array();
    for (const ReportLine& line : chart.lines) {
      Json row{{"name", text(line.name)}, {"values", numbers(line.values)}};
      for (const ReportInterval& interval : line.intervals)
        row["intervals"].push_back(Json::array({number(interval.low), number(interval.high)}));
      lines.push_back(std::move(row));
    }
    out.push_back({{"title", text(chart.title)},
                   {"x_title", text(chart.x_title)},
                   {"y_title", text(chart.y_title)},
                   {"doubling", chart.doubling},
                   {"x", numbers(chart.x)},
                   {"lines", std::move(lines)}});
  }
  return out;
}

Json tables_json(const ReportData& data) {
  Json out = Json::array();
  for (const ReportTable& table : data.tables) {
    Json rows = Json::array();
    for (const std::vector<std::string>& row : table.rows) rows.push_back(texts(row));
    out.push_back({{"title", text(table.title)},
                   {"note", text(table.note)},
                   {"head", texts(table.head)},
                   {"rows", std::move(rows)}});
  }
  return out;
}

/// Every `stride`-th epoch, the last and the selected one always among them.
Json epochs_json(const ReportData& data, std::int64_t max_epochs) {
  const auto count = static_cast<std::int64_t>(data.epochs.size());
  const std::int64_t stride = std::max<std::int64_t>(1, (count + max_epochs - 1) / max_epochs);
  const bool magnitudes =
      std::any_of(data.epochs.begin(), data.epochs.end(),
                  [](const ReportEpoch& e) { return std::isfinite(e.other_largest); });
  Json out;
  for (std::int64_t i = 0; i < count; ++i) {
    const ReportEpoch& e = data.epochs[static_cast<std::size_t>(i)];
    if (i % stride != 0 && i + 1 != count && e.epoch != data.selected_epoch) continue;
    out["epoch"].push_back(number(e.epoch));
    out["train_loss"].push_back(number(e.train_loss));
    out["dev_loss"].push_back(number(e.dev_loss));
    out["dev_label_error_rate"].push_back(number(e.dev_label_error_rate));
    out["learning_rate"].push_back(number(e.learning_rate));
    if (magnitudes) {
      out["crf_largest"].push_back(number(e.crf_largest));
      out["other_largest"].push_back(number(e.other_largest));
    }
  }
  out["selected"] = number(data.selected_epoch);
  return out;
}

/// Sums of `group` neighbours each.
std::vector<double> merged(const std::vector<double>& values, std::size_t group) {
  std::vector<double> out((values.size() + group - 1) / group, 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    out[i / group] += std::isfinite(values[i]) ? values[i] : 0;
  }
  return out;
}

Json durations_json(const ReportData& data, const ReportLimits& limits) {
  std::vector<const ReportDurations*> order;
  for (const ReportDurations& d : data.durations) order.push_back(&d);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return total(a->gold) > total(b->gold); });
  if (static_cast<std::int64_t>(order.size()) > limits.labels) {
    order.resize(static_cast<std::size_t>(limits.labels));
  }
  Json out = Json::array();
  for (const ReportDurations* d : order) {
    const std::size_t longest = std::max({d->gold.size(), d->model.size(), d->decoded.size()});
    const auto most = static_cast<std::size_t>(limits.duration_bins);
    const std::size_t group = std::max<std::size_t>(1, (longest + most - 1) / most);
    const double width = static_cast<double>(group);
    out.push_back({{"label", d->label},
                   {"first", number(d->first + d->step * (width - 1) / 2)},
                   {"step", number(d->step * width)},
                   {"gold", numbers(merged(d->gold, group))},
                   {"model", numbers(merged(d->model, group))},
                   {"decoded", numbers(merged(d->decoded, group))}});
  }
  return out;
}

double entry(const std::vector<double>& values, std::size_t i) {
  return i < values.size() && std::isfinite(values[i]) ? values[i] : 0;
}

Json confusions_json(const ReportData& data, const ReportLimits& limits) {
  const std::size_t labels = data.labels.size();
  const ReportConfusions& c = data.confusions;
  std::vector<double> gold(labels, 0.0);
  std::vector<double> decoded(labels, 0.0);
  for (std::size_t g = 0; g < labels; ++g) {
    gold[g] += entry(c.deletions, g);
    decoded[g] += entry(c.insertions, g);
    for (std::size_t d = 0; d < labels; ++d) {
      gold[g] += entry(c.pairs, g * labels + d);
      decoded[d] += entry(c.pairs, g * labels + d);
    }
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < labels; ++i) {
    if (gold[i] + decoded[i] > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return gold[a] != gold[b] ? gold[a] > gold[b] : decoded[a] > decoded[b];
  });
  const std::size_t shown = std::min(order.size(), static_cast<std::size_t>(limits.labels));
  Json out{{"hidden", order.size() - shown}};
  order.resize(shown);
  for (const char* key : {"order", "gold", "deleted", "inserted", "cells"})
    out[key] = Json::array();
  for (const std::size_t g : order) {
    out["order"].push_back(g);
    out["gold"].push_back(number(gold[g]));
    out["deleted"].push_back(number(entry(c.deletions, g)));
    out["inserted"].push_back(number(entry(c.insertions, g)));
    for (const std::size_t d : order) {
      const double n = entry(c.pairs, g * labels + d);
      if (n > 0) out["cells"].push_back(Json::array({g, d, number(n)}));
    }
  }
  return out;
}

Json label_rows_json(const ReportData& data) {
  Json out = Json::array();
  for (const ReportLabelRow& r : data.label_rows) {
    const double sum = r.precision + r.recall;
    const double f1 = sum > 0 ? 2 * r.precision * r.recall / sum : sum;
    out.push_back(Json::array({r.label, number(r.gold), number(r.decoded), number(r.precision),
                               number(r.recall), number(f1), number(r.mean_duration),
                               number(r.duration_error), number(r.duration_bias)}));
  }
  return out;
}

Json calibrations_json(const ReportData& data) {
  Json out = Json::array();
  for (const ReportCalibration& c : data.calibrations) {
    Json bins = Json::array();
    for (const ReportCalibration::Bin& b : c.bins) {
      bins.push_back(Json::array({number(b.predicted), number(b.observed), number(b.count)}));
    }
    out.push_back({{"name", text(c.name)},
                   {"bins", std::move(bins)},
                   {"error", format_value(c.expected_error, ReportUnit::kRatio)}});
  }
  return out;
}

Json segments_json(const std::vector<ReportSegment>& segments) {
  Json out = Json::array();
  for (const ReportSegment& s : segments) {
    Json row = Json::array({number(s.start), number(s.end), s.label});
    if (std::isfinite(s.posterior)) row.push_back(number(round_significant(s.posterior, 3)));
    out.push_back(std::move(row));
  }
  return out;
}

Json signals_json(const ReportRecording& r, const ReportLimits& limits) {
  Json out = Json::object();
  if (!r.waveform.empty()) {
    const Envelope e = make_envelope(r.waveform, limits.envelope_columns);
    out["wave"] = {{"seconds", number(static_cast<double>(r.waveform.size()) / r.sample_rate)},
                   {"columns", e.columns},
                   {"bytes", base64(e.bytes)}};
  }
  if (!r.features.empty()) {
    const FeatureImage f =
        make_feature_image(r.features, r.feature_bins, kMaxFeatureBins, limits.feature_cells);
    const auto frames = r.features.size() / static_cast<std::size_t>(r.feature_bins);
    out["features"] = {{"seconds", number(static_cast<double>(frames) * r.feature_step)},
                       {"frames", f.frames},
                       {"bins", f.bins},
                       {"bytes", base64(f.bytes)}};
  }
  if (!r.boundary.empty()) {
    const ProbabilityCurve p = make_probability_curve(r.boundary, limits.boundary_columns);
    out["boundary"] = {
        {"seconds", number(static_cast<double>(r.boundary.size()) * r.boundary_step)},
        {"columns", p.columns},
        {"bytes", base64(p.bytes)}};
  }
  return out;
}

Json recording_json(ReportRecording r, const ReportLimits& limits) {
  const double seconds = recording_seconds(r);
  const double kept = cut_recording(r, limits.segments);
  Json out{{"name", text(r.name)}, {"seconds", number(seconds)}};
  if (kept < seconds) out["kept"] = number(kept);
  if (std::isfinite(r.label_error_rate)) {
    out["label_error_rate"] = format_value(r.label_error_rate, ReportUnit::kPercent);
  }
  out.update(signals_json(r, limits));
  out["gold"] = segments_json(r.gold);
  out["decoded"] = Json::array();
  for (const ReportLane& lane : r.decoded) {
    const Alignment a = align_segments(r.gold, lane.segments);
    Json row{{"name", text(lane.name)}, {"segments", segments_json(lane.segments)}};
    if (!r.gold.empty()) row.update({{"gold_marks", a.gold}, {"marks", a.decoded}});
    out["decoded"].push_back(std::move(row));
  }
  return out;
}

Json recordings_json(const ReportData& data, const ReportLimits& limits) {
  Json out = Json::array();
  for (const ReportRecording& r : data.recordings) {
    if (static_cast<std::int64_t>(out.size()) >= limits.recordings) break;
    out.push_back(recording_json(r, limits));
  }
  return out;
}

Json worst_json(const ReportData& data) {
  Json out = Json::array();
  for (const ReportWorst& w : data.worst)
    out.push_back(Json::array({text(w.name), format_value(w.seconds, ReportUnit::kSeconds),
                               format_value(w.gold, ReportUnit::kCount),
                               format_value(w.errors, ReportUnit::kCount),
                               format_value(w.label_error_rate, ReportUnit::kPercent)}));
  return out;
}

Json doubted_json(const ReportData& data) {
  Json out = Json::array();
  for (const ReportDoubt& d : data.doubted)
    out.push_back(Json::array({text(d.recording), number(d.start), number(d.end), text(d.label),
                               text(d.decoded), number(round_significant(d.posterior, 3))}));
  return out;
}

template <class T>
void keep_until(std::vector<T>& values, double count) {
  const auto most = static_cast<std::size_t>(std::max(0.0, std::ceil(count)));
  if (values.size() > most) values.resize(most);
}

}  // namespace

double recording_seconds(const ReportRecording& recording) {
  double seconds = std::isfinite(recording.seconds) ? std::max(0.0, recording.seconds) : 0.0;
  for (const ReportSegment& s : recording.gold) seconds = std::max(seconds, s.end);
  for (const ReportLane& lane : recording.decoded) {
    for (const ReportSegment& s : lane.segments) seconds = std::max(seconds, s.end);
  }
  return seconds;
}

double cut_recording(ReportRecording& recording, std::int64_t max_segments) {
  const double seconds = recording_seconds(recording);
  double kept = seconds;
  const auto most = static_cast<std::size_t>(max_segments);
  const auto limit = [&](const std::vector<ReportSegment>& segments) {
    if (segments.size() > most) kept = std::min(kept, segments[most].start);
  };
  limit(recording.gold);
  for (const ReportLane& lane : recording.decoded) limit(lane.segments);
  if (kept >= seconds) return seconds;
  const auto cut = [&](std::vector<ReportSegment>& segments) {
    std::erase_if(segments, [&](const ReportSegment& s) { return s.start >= kept; });
    keep_until(segments, static_cast<double>(most));
  };
  cut(recording.gold);
  for (ReportLane& lane : recording.decoded) cut(lane.segments);
  keep_until(recording.waveform, kept * recording.sample_rate);
  keep_until(recording.boundary, kept / std::max(recording.boundary_step, 1e-9));
  const double frames = std::ceil(kept / std::max(recording.feature_step, 1e-9));
  keep_until(recording.features, frames * recording.feature_bins);
  return kept;
}

std::vector<std::string> comparison_marks(const ReportMetric& metric) {
  std::vector<std::string> marks(metric.values.size());
  const double sign = metric.better == ReportBetter::kLower ? -1 : 1;
  double best = kNoValue;
  int known = 0;
  for (const double v : metric.values) {
    if (!std::isfinite(v)) continue;
    ++known;
    if (!std::isfinite(best) || sign * v > sign * best) best = v;
  }
  if (known < 2 || metric.better == ReportBetter::kNeither) return marks;
  const std::string best_text = format_value(best, metric.unit);
  std::vector<std::size_t> level;
  for (std::size_t i = 0; i < metric.values.size(); ++i) {
    const double v = metric.values[i];
    if (!std::isfinite(v)) continue;
    const bool close = i < metric.level.size() && metric.level[i];
    if (close || format_value(v, metric.unit) == best_text) level.push_back(i);
  }
  for (const std::size_t i : level) marks[i] = level.size() == 1 ? "best" : "tie";
  return marks;
}

Json report_json(const ReportData& data, const ReportLimits& limits) {
  check_report(data);
  Json out{{"title", text(data.title.empty() ? "Training report" : data.title)}};
  put_text(out, "data_set", data.data_set);
  put_text(out, "date", data.date);
  put_text(out, "model", data.model);
  if (std::isfinite(data.parameters)) {
    out["parameters"] = format_value(data.parameters, ReportUnit::kCount);
  }
  if (std::isfinite(data.seconds)) out["time"] = format_value(data.seconds, ReportUnit::kSeconds);
  if (!data.facts.empty()) out["facts"] = text_pairs(data.facts);
  if (!data.notes.empty()) out["notes"] = texts(data.notes);
  if (!data.systems.empty()) out["systems"] = texts(data.systems);
  put_text(out, "reference", data.reference);
  if (!data.metrics.empty()) out["metrics"] = metrics_json(data);
  if (!data.charts.empty()) out["charts"] = charts_json(data);
  if (!data.tables.empty()) out["tables"] = tables_json(data);
  if (!data.epochs.empty()) out["epochs"] = epochs_json(data, limits.epochs);
  if (!data.labels.empty()) out["labels"] = texts(data.labels);
  if (!data.durations.empty()) out["durations"] = durations_json(data, limits);
  if (!data.confusions.pairs.empty()) out["confusions"] = confusions_json(data, limits);
  if (!data.label_rows.empty()) out["label_rows"] = label_rows_json(data);
  if (!data.calibrations.empty()) out["calibrations"] = calibrations_json(data);
  if (!data.recordings.empty()) {
    out["recordings"] = recordings_json(data, limits);
    out["recordings_given"] = data.recordings.size();
  }
  if (!data.worst.empty()) out["worst"] = worst_json(data);
  if (!data.doubted.empty()) out["doubted"] = doubted_json(data);
  if (!data.environment.empty()) out["environment"] = text_pairs(data.environment);
  put_text(out, "config", data.config);
  return out;
}

}  // namespace segfuse::learn
