#include "learn/train/decode/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/console/log.h"
#include "learn/train/decode/alternatives.h"
#include "learn/train/decode/on_ranks.h"
#include "learn/train/loop/company.h"

namespace segfuse::learn {
namespace {

constexpr std::size_t kBins = 10;

void add_to(std::vector<ReliabilityBin>& bins, double probability, double outcome) {
  if (!std::isfinite(probability)) return;
  const auto index =
      std::min(kBins - 1, static_cast<std::size_t>(std::clamp(probability, 0.0, 1.0) * kBins));
  bins[index].predicted += probability;
  bins[index].observed += outcome;
  bins[index].count += 1;
}

void add_calibration(const LabelledSet& set, double tolerance, double hop, Evaluation& evaluation) {
  evaluation.boundary_bins.assign(kBins, {});
  evaluation.label_bins.assign(kBins, {});
  for (std::size_t i = 0; i < set.sequences.size(); ++i) {
    std::vector<std::int32_t> gold(static_cast<std::size_t>(set.sequences[i].frames()), -1);
    for (const FrameSegment& s : set.sequences[i].segments)
      std::fill_n(gold.begin() + s.start, s.duration, s.label);
    const auto& boundaries = set.examples[i].gold.segments;
    for (const DecodedSegment& d : evaluation.decoded[i].segments) {
      const auto first = gold.begin() + d.segment.start;
      const auto right = std::count(first, first + d.segment.duration, d.segment.label);
      add_to(evaluation.label_bins, d.label_posterior,
             static_cast<double>(right) / static_cast<double>(d.segment.duration));
      if (d.segment.start == 0) continue;
      const double time = static_cast<double>(d.segment.start) * hop;
      const bool hit =
          std::any_of(boundaries.begin(), boundaries.end(), [&](const LabelSegment& s) {
            return s.start > 0 && std::abs(s.start - time) <= tolerance + 1e-9;
          });
      add_to(evaluation.boundary_bins, d.start_confidence, hit ? 1 : 0);
    }
  }
}

}  // namespace

const std::string& recording_of(const Example& example) {
  return example.part_of.empty() ? example.id : example.part_of;
}

namespace {

void count_at_limit(const TrainedModel& model, const LabelledSet& set, Evaluation& evaluation) {
  if (model.config.model.head != HeadKind::kSemiMarkov) return;
  const std::vector<std::int64_t> limits = limits_of(model.duration_limit);
  const double hop = model.config.features.hop_ms / 1000;
  for (const Example& example : set.examples)
    for (const LabelSegment& s : example.gold.segments)
      if (const auto label = model.labels.find(s.label))
        evaluation.gold_at_limit +=
            std::llround((s.end - s.start) / hop) >= limits[static_cast<std::size_t>(*label)];
  for (const Decoded& decoded : evaluation.decoded)
    for (const DecodedSegment& s : decoded.segments)
      evaluation.decoded_at_limit +=
          s.segment.duration >= limits[static_cast<std::size_t>(s.segment.label)];
}

}  // namespace

std::string limit_text(const TrainedModel& model, const Evaluation& evaluation) {
  if (evaluation.gold_at_limit == 0 && evaluation.decoded_at_limit == 0) return "";
  std::int64_t decoded = 0;
  for (const Decoded& d : evaluation.decoded) decoded += std::ssize(d.segments);
  return fmt::format(
      "{} gold and {} of {} decoded segments last as long as their label may (at most K = {} "
      "frames) or longer; {}",
      evaluation.gold_at_limit, evaluation.decoded_at_limit, decoded,
      model.config.model.max_duration,
      model.config.model.joins_neighbours.empty()
          ? "longer ones are decoded in pieces, unless the model is trained with "
            "model.long_segments = \"joined\""
          : "pieces of longer ones are joined");
}

namespace {

/// Of the gold segments of an example, from those of its pieces on frames.
std::vector<double> gold_posterior(const Example& example, const Sequence& sequence,
                                   const std::vector<double>& of_pieces, double hop) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> all;
  std::size_t piece = 0;
  for (const LabelSegment& segment : example.gold.segments) {
    double sum = 0;
    double frames = 0;
    for (; piece < of_pieces.size(); ++piece) {
      const FrameSegment& s = sequence.segments[piece];
      const double middle = (static_cast<double>(s.start) + static_cast<double>(s.duration) / 2);
      if (middle * hop > segment.end + 1e-9) break;
      sum += of_pieces[piece] * static_cast<double>(s.duration);
      frames += static_cast<double>(s.duration);
    }
    all.push_back(frames > 0 ? sum / frames : kNone);
  }
  return all;
}

}  // namespace

std::string counts_text(const JoinedCounts& counts) {
  constexpr std::size_t kShown = 10;
  std::string text;
  std::size_t shown = 0;
  for (const auto& [label, count] : counts) {
    if (++shown > kShown) return text + fmt::format(" and {} more labels", counts.size() - kShown);
    text += fmt::format("{}'{}' {}", text.empty() ? "" : ", ", label, count);
  }
  return text;
}

std::vector<std::string> background_of(const TrainConfig& config) {
  if (config.background) return *config.background;
  // As it is measured: behind both foldings.
  std::optional<std::string> label = config.data.fill_label;
  for (const std::string& map : {config.data.fold, config.data.metric_fold})
    if (label && !map.empty()) label = read_folding_map(map).fold(*label);
  if (!label) return {};
  return {*label};
}

MetricsConfig metrics_config(const TrainConfig& config) {
  MetricsConfig metrics;
  metrics.frame_seconds = config.features.hop_ms / 1000;
  metrics.tolerances = config.tolerances;
  metrics.edge_tolerance = config.edge_tolerance;
  metrics.background = background_of(config);
  metrics.merge_folded = config.data.metric_merge;
  if (!config.data.metric_fold.empty()) metrics.folding = read_folding_map(config.data.metric_fold);
  return metrics;
}

namespace {

/// A name that was not meant says nothing otherwise.
void check_background(const TrainConfig& config, const Metrics& metrics) {
  if (!config.background || metrics.recordings() == 0) return;
  for (const std::string& label : *config.background) {
    const bool is_there = std::ranges::any_of(metrics.confusions(), [&](const auto& pair) {
      return pair.first.first == label || pair.first.second == label;
    });
    if (!is_there)
      log(LogLevel::kWarning, "evaluation.background names '{}', which no measured segment has",
          label);
  }
  if (metrics.counts().chunks.gold == 0)
    log(LogLevel::kWarning,
        "evaluation.background has all labels of the recordings, so no segment is left to evaluate "
        "without the background");
}

}  // namespace

Evaluation measure(const TrainedModel& model, const LabelledSet& set,
                   std::vector<Decoded> decoded) {
  const double hop = model.config.features.hop_ms / 1000;
  const MetricsConfig config = metrics_config(model.config);
  Evaluation evaluation{Metrics(config)};
  evaluation.decoded = std::move(decoded);
  for (std::size_t i = 0; i < set.sequences.size(); ++i) {
    const Example& example = set.examples[i];
    evaluation.predicted.push_back(
        to_annotation(evaluation.decoded[i], model.labels, hop, example.gold.duration));
    Metrics one(config);
    one.add(example.gold, evaluation.predicted.back());
    evaluation.metrics.merge(one);
    const auto [found, is_new] =
        evaluation.by_recording.try_emplace(recording_of(example), one.counts());
    if (!is_new) found->second.add(one.counts());
    evaluation.gold_posterior.push_back(
        gold_posterior(example, set.sequences[i], evaluation.decoded[i].gold, hop));
  }
  count_at_limit(model, set, evaluation);
  add_calibration(set, model.config.tolerances.front(), hop, evaluation);
  return evaluation;
}

Evaluation evaluate_model(const TrainedModel& model, const LabelledSet& set, const Context& context,
                          comm::Group* group) {
  const auto begin = std::chrono::steady_clock::now();
  const double hop = model.config.features.hop_ms / 1000;
  const double tolerance = model.config.tolerances.front();
  const Segmenter segmenter(model.config.model);
  Decoder decoder(segmenter, model.parameters, model.limits(), engine::executable_options(context),
                  model.source);
  Decoder::Options options;
  options.tolerance_frames = static_cast<std::int64_t>(tolerance / hop + 1e-9);
  options.durations = true;
  std::vector<Decoded> decoded = decode_on_ranks(decoder, set.sequences, options, group);
  if (rank_of(group) > 0) return Evaluation{Metrics(metrics_config(model.config))};
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  Evaluation evaluation = measure(model, set, std::move(decoded));
  evaluation.decode_seconds = seconds;
  check_background(model.config, evaluation.metrics);
  if (const std::string text = limit_text(model, evaluation); !text.empty())
    log(LogLevel::kInfo, "{}", text);
  return evaluation;
}

}  // namespace segfuse::learn
