#include "learn/train/report/report_builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/json/json.h"
#include "learn/model/given_encoder.h"
#include "learn/train/decode/clean_up.h"
#include "learn/train/report/facts.h"
#include "learn/train/report/figures.h"
#include "learn/train/report/label_table.h"
#include "learn/train/report/recordings_file.h"
#include "learn/train/report/scrutiny.h"

namespace segfuse::learn {
namespace {

std::string title_of(HeadKind head) {
  switch (head) {
    case HeadKind::kSoftmax: return "per-frame softmax";
    case HeadKind::kLinearChain: return "linear-chain CRF";
    case HeadKind::kSemiMarkov: break;
  }
  return "semi-Markov CRF";
}

std::string title_of(const System& system) {
  const std::string title = title_of(system.model.config.model.head);
  return system.clean_up ? title + ", cleaned up" : title;
}

std::string lane_of(const System& system, std::size_t systems) {
  if (systems == 1) return "decoded";
  if (system.clean_up) return "cleaned";
  switch (system.model.config.model.head) {
    case HeadKind::kSoftmax: return "softmax";
    case HeadKind::kLinearChain: return "chain";
    case HeadKind::kSemiMarkov: break;
  }
  return "segments";
}

std::string milliseconds(double seconds) { return fmt::format("{:g} ms", seconds * 1000); }

/// One system's decode of the evaluated set.
struct View {
  std::string name;
  std::string lane;  ///< short, for the margin of a picture
  const TrainedModel* model;
  const Evaluation* evaluation;
};

std::vector<ReportEpoch> epochs_of(const TrainingOutcome& outcome) {
  std::vector<ReportEpoch> epochs;
  for (const EpochRecord& r : outcome.history)
    epochs.push_back({static_cast<double>(r.epoch), r.train_loss, r.dev_loss, r.dev_error,
                      r.learning_rate,
                      r.crf_largest > 0 ? r.crf_largest : std::numeric_limits<double>::quiet_NaN(),
                      r.other_largest});
  return epochs;
}

void count_durations(const std::vector<std::vector<FrameSegment>>& rows, std::int64_t classes,
                     std::int64_t longest, std::vector<std::vector<double>>& counts) {
  counts.assign(static_cast<std::size_t>(classes),
                std::vector<double>(static_cast<std::size_t>(longest), 0));
  for (const auto& row : rows)
    for (const FrameSegment& s : row)
      if (s.label != kUnknownLabel)
        counts[static_cast<std::size_t>(s.label)]
              [static_cast<std::size_t>(std::min(s.duration, longest) - 1)] += 1;
}

/// Gold and decoded counts of each duration; the model's line is what it expects on these
/// recordings.
std::vector<ReportDurations> durations_of(const TrainedModel& model, const LabelledSet& set,
                                          const Evaluation& evaluation) {
  const std::int64_t classes = model.labels.size();
  std::int64_t longest = model.config.model.max_duration;
  std::vector<std::vector<FrameSegment>> gold_rows;
  std::vector<std::vector<FrameSegment>> decoded_rows;
  for (const Sequence& s : set.sequences) gold_rows.push_back(s.segments);
  for (const Decoded& d : evaluation.decoded) {
    decoded_rows.emplace_back();
    for (const DecodedSegment& s : d.segments) decoded_rows.back().push_back(s.segment);
  }
  std::vector<std::vector<double>> gold;
  std::vector<std::vector<double>> decoded;
  count_durations(gold_rows, classes, longest, gold);
  count_durations(decoded_rows, classes, longest, decoded);
  std::vector<std::vector<double>> expected(gold.size());
  for (const Decoded& d : evaluation.decoded) {
    for (std::size_t i = 0; i < d.duration.size(); ++i) {
      auto& row = expected[i % gold.size()];
      row.resize(static_cast<std::size_t>(longest), 0);
      row[i / gold.size()] += d.duration[i];
    }
  }
  const double hop = model.config.features.hop_ms / 1000;
  std::vector<ReportDurations> all;
  for (std::size_t c = 0; c < gold.size(); ++c)
    all.push_back({static_cast<std::int32_t>(c), hop, hop, gold[c], expected[c], decoded[c]});
  return all;
}

ReportConfusions confusions_of(const Metrics& metrics, const Alphabet& labels) {
  const auto n = static_cast<std::size_t>(labels.size());
  ReportConfusions result{std::vector<double>(n * n, 0), std::vector<double>(n, 0),
                          std::vector<double>(n, 0)};
  for (const auto& [pair, count] : metrics.confusions()) {
    const auto gold = labels.find(pair.first);
    const auto decoded = labels.find(pair.second);
    const double value = static_cast<double>(count);
    if (gold && decoded)
      result.pairs[static_cast<std::size_t>(*gold) * n + static_cast<std::size_t>(*decoded)] +=
          value;
    if (gold && pair.second.empty()) result.deletions[static_cast<std::size_t>(*gold)] += value;
    if (decoded && pair.first.empty())
      result.insertions[static_cast<std::size_t>(*decoded)] += value;
  }
  return result;
}

std::vector<ReportLabelRow> label_rows_of(const Metrics& metrics, const Alphabet& labels) {
  std::vector<ReportLabelRow> rows;
  for (const auto& [label, d] : metrics.durations()) {
    const auto id = labels.find(label);
    if (!id) continue;
    ReportLabelRow row;
    row.label = *id;
    row.gold = static_cast<double>(d.gold);
    row.decoded = static_cast<double>(d.predicted);
    if (d.predicted > 0)
      row.precision = static_cast<double>(d.matched) / static_cast<double>(d.predicted);
    if (d.gold > 0) row.recall = static_cast<double>(d.matched) / static_cast<double>(d.gold);
    if (d.gold > 0) row.mean_duration = d.gold_seconds / static_cast<double>(d.gold);
    if (d.matched > 0) row.duration_error = d.mean_absolute_error;
    if (d.gold > 0 && d.predicted > 0) row.duration_bias = d.relative_bias * row.mean_duration;
    rows.push_back(row);
  }
  return rows;
}

ReportCalibration calibration_of(std::string name, const std::vector<ReliabilityBin>& bins) {
  ReportCalibration result;
  result.name = std::move(name);
  double total = 0;
  double error = 0;
  for (const ReliabilityBin& bin : bins) {
    ReportCalibration::Bin shown;
    shown.count = bin.count;
    if (bin.count > 0) {
      shown.predicted = bin.predicted / bin.count;
      shown.observed = bin.observed / bin.count;
      error += std::abs(bin.predicted - bin.observed);
      total += bin.count;
    }
    result.bins.push_back(shown);
  }
  if (total == 0) result.bins.clear();
  if (total > 0) result.expected_error = error / total;
  return result;
}

std::vector<ReportSegment> lane_of(const Annotation& annotation, const Alphabet& labels,
                                   const Decoded* decoded) {
  std::vector<ReportSegment> lane;
  for (std::size_t i = 0; i < annotation.segments.size(); ++i) {
    const LabelSegment& s = annotation.segments[i];
    const auto id = labels.find(s.label);
    ReportSegment shown{s.start, s.end, id ? *id : -1, kNoValue};
    if (decoded != nullptr && i < decoded->segments.size())
      shown.posterior = decoded->segments[i].label_posterior;
    lane.push_back(shown);
  }
  return lane;
}

double error_rate_of(const TrainConfig& config, const Annotation& gold,
                     const Annotation& predicted) {
  Metrics metrics(metrics_config(config));
  metrics.add(gold, predicted);
  return metrics.label_error_rate();
}

ReportRecording shown_recording(const LabelledSet& set, const std::vector<View>& views,
                                std::size_t index) {
  const TrainedModel& model = *views[0].model;
  const Example& example = set.examples[index];
  const Sequence& sequence = set.sequences[index];
  ReportRecording shown;
  shown.name = example.id;
  shown.seconds = example.gold.duration;
  const double hop = model.config.features.hop_ms / 1000;
  const std::int64_t width = sequence.features.shape()[1];
  const bool stacked_deltas = model.config.features.deltas > 0;
  const std::int64_t bins = stacked_deltas ? width / (model.config.features.deltas + 1) : width;
  const auto features = sequence.features.span<float>();
  if (bins >= 8) {
    shown.feature_step = hop;
    shown.feature_bins = static_cast<std::int32_t>(bins);
    for (std::int64_t t = 0; t < sequence.frames(); ++t)
      shown.features.insert(shown.features.end(), features.begin() + t * width,
                            features.begin() + t * width + bins);
  } else {  // a trace: the first columns are the signal, frame by frame
    shown.sample_rate = static_cast<double>(bins) / hop;
    for (std::int64_t t = 0; t < sequence.frames(); ++t)
      shown.waveform.insert(shown.waveform.end(), features.begin() + t * width,
                            features.begin() + t * width + bins);
    float peak = 1e-6F;
    for (const float x : shown.waveform) peak = std::max(peak, std::abs(x));
    for (float& x : shown.waveform) x /= peak;
  }
  shown.gold = lane_of(example.gold, model.labels, nullptr);
  for (const View& view : views)
    shown.decoded.push_back({view.lane, lane_of(view.evaluation->predicted[index], model.labels,
                                                &view.evaluation->decoded[index])});
  shown.boundary = views[0].evaluation->decoded[index].boundary;
  shown.boundary_step = shown.boundary.empty() ? 0 : hop;
  shown.label_error_rate =
      error_rate_of(model.config, example.gold, views[0].evaluation->predicted[index]);
  return shown;
}

/// The worst recordings can be looked at too.
void add_worst(const LabelledSet& set, const std::vector<View>& views, std::size_t stride,
               ReportData& report) {
  constexpr std::size_t kWorst = 6;
  const std::size_t even = report.recordings.size();
  for (std::size_t w = 0; w < report.worst.size() && report.worst_shown < kWorst; ++w)
    for (std::size_t i = 0; i < set.examples.size() && report.worst_shown < kWorst; ++i) {
      const bool is_there = i % stride == 0 && i / stride < even;
      if (is_there || recording_of(set.examples[i]) != report.worst[w].name) continue;
      report.recordings.push_back(shown_recording(set, views, i));
      ++report.worst_shown;
    }
}

ReportData common(const std::vector<View>& views, const LabelledSet& set, const Figures& figures) {
  constexpr std::size_t kRecordings = 12;
  const TrainedModel& model = *views[0].model;
  const Evaluation& evaluation = *views[0].evaluation;
  ReportData report;
  report.title = model.config.title.empty() ? "segfuse" : model.config.title;
  report.labels = model.labels.labels();
  report.config = settings_text(model.config);
  report.metrics = report_metrics(figures);
  if (ReportTable labels = label_table(figures, model.config.edge_tolerance); !labels.rows.empty())
    report.tables.push_back(std::move(labels));
  if (views.size() > 1) {
    for (const View& view : views) report.systems.push_back(view.name);
    report.reference = report.systems[figures.reference];
  }
  report.notes.push_back(interval_note(figures.recordings));
  report.durations = durations_of(model, set, evaluation);
  report.confusions = confusions_of(evaluation.metrics, model.labels);
  report.label_rows = label_rows_of(evaluation.metrics, model.labels);
  if (const std::string text = limit_text(model, evaluation); !text.empty())
    report.notes.push_back(text + ".");
  if (!set.joined.empty())
    report.notes.push_back(
        fmt::format("The folding map {} gave neighbours of different labels one label; they were "
                    "joined in the gold: {}.",
                    model.config.data.fold, counts_text(set.joined)));
  if (!set.unknown.empty())
    report.notes.push_back(fmt::format(
        "Labels that the training set lacks: {}. Every segment decoded there counts as wrong.",
        counts_text(set.unknown)));
  report.calibrations.push_back(
      calibration_of("label posterior of a segment's frames", evaluation.label_bins));
  const ReportCalibration boundaries = calibration_of(
      "boundary within " + milliseconds(model.config.tolerances.front()), evaluation.boundary_bins);
  if (model.config.model.head == HeadKind::kSemiMarkov) report.calibrations.push_back(boundaries);
  const std::size_t stride = std::max<std::size_t>(1, set.examples.size() / kRecordings);
  for (std::size_t i = 0; i < set.examples.size() && report.recordings.size() < kRecordings;
       i += stride)
    report.recordings.push_back(shown_recording(set, views, i));
  report.worst = worst_recordings(set, evaluation);
  report.doubted = doubted_labels(set, evaluation);
  add_worst(set, views, stride, report);
  return report;
}

Json clean_up_json(const System& system) {
  const TunedCleanUp& tuned = *system.clean_up;
  const double hop = system.model.config.features.hop_ms / 1000;
  return {{"minimum_duration", static_cast<double>(tuned.setting.shortest) * hop},
          {"minimum_frames", tuned.setting.shortest},
          {"vote", static_cast<double>(tuned.setting.window) * hop},
          {"vote_frames", tuned.setting.window},
          {"settings_tried", tuned.tried},
          {"chosen_by", name_of(clean_up_criterion(system.model.config))},
          {"dev_score", tuned.score}};
}

/// Of the epoch that was kept; null where no development set chose it.
Json dev_score_of(const TrainingOutcome& outcome) {
  const auto best = std::ranges::find(outcome.history, outcome.best_epoch, &EpochRecord::epoch);
  if (best == outcome.history.end() || !std::isfinite(best->dev_score)) return nullptr;
  return best->dev_score;
}

Json system_json(const System& system, const Figures& figures, std::size_t index) {
  Json json = parse_json(system.evaluation.metrics.to_json(), "metrics");
  json["head"] = system.name;
  add_figures(json, figures, index);
  json["parameters"] = system.parameter_count;
  json["train_seconds"] = system.seconds;
  json["decode_seconds"] = system.evaluation.decode_seconds;
  json["best_epoch"] = system.outcome.best_epoch;
  json["selected_by"] = name_of(system.model.config.training.select_by);
  json["dev_score"] = dev_score_of(system.outcome);
  if (system.clean_up) json["clean_up"] = clean_up_json(system);
  json["epochs"] = system.outcome.history.size();
  json["max_duration"] = system.model.config.model.max_duration;
  json["segments_at_limit"] = {{"gold", system.evaluation.gold_at_limit},
                               {"decoded", system.evaluation.decoded_at_limit}};
  return json;
}

std::vector<MeasuredSystem> measured(const std::vector<System>& systems) {
  std::vector<MeasuredSystem> all;
  for (const System& system : systems) all.push_back({system.name, system.evaluation.by_recording});
  return all;
}

std::vector<MeasuredSystem> measured(const TrainedModel& model, const Evaluation& evaluation) {
  return {{name_of(model.config.model.head), evaluation.by_recording}};
}

Figures figures_of(const std::vector<System>& systems) {
  const auto reference = std::ranges::find(systems, name_of(HeadKind::kSemiMarkov), &System::name);
  return figures_of(
      measured(systems), systems[0].model.config.tolerances,
      reference == systems.end() ? 0 : static_cast<std::size_t>(reference - systems.begin()),
      systems[0].model.config.edge_tolerance);
}

Figures figures_of(const Evaluation& evaluation, const TrainedModel& model) {
  return figures_of(measured(model, evaluation), model.config.tolerances, 0,
                    model.config.edge_tolerance);
}

const LabelledSet& measured_set(const Corpus& corpus) {
  return corpus.test.sequences.empty() ? corpus.dev : corpus.test;
}

}  // namespace

std::string metrics_json(const TrainConfig& config, const Corpus& corpus,
                         const std::vector<System>& systems, const RunFacts& facts) {
  const Figures figures = figures_of(systems);
  Json json = system_json(systems[0], figures, 0);
  json["bootstrap"] = bootstrap_json(figures.recordings);
  json["title"] = config.title;
  json["evaluated_on"] = corpus.test.sequences.empty() ? "dev" : "test";
  json["recordings"] = {{"train", corpus.train.sequences.size()},
                        {"dev", corpus.dev.sequences.size()},
                        {"test", corpus.test.sequences.size()}};
  json["audio_seconds"] = corpus.seconds;
  json["labels"] = corpus.labels.size();
  json["threads"] = facts.threads;
  json["seconds"] = facts.seconds;
  json["run"] = facts_json(facts, systems[0].model.config);
  add_scrutiny(json, measured_set(corpus), systems[0].evaluation);
  if (systems.size() > 1)
    for (std::size_t i = 0; i < systems.size(); ++i)
      json["systems"][systems[i].name] = system_json(systems[i], figures, i);
  return json_text(json, 2) + "\n";
}

std::string evaluation_json(const TrainedModel& model, const LabelledSet& set,
                            const Evaluation& evaluation, const RunFacts& facts,
                            const EvaluationNames& names) {
  Json json = parse_json(evaluation.metrics.to_json(), "metrics");
  const Figures figures = figures_of(evaluation, model);
  add_figures(json, figures, 0);
  json["bootstrap"] = bootstrap_json(figures.recordings);
  add_scrutiny(json, set, evaluation);
  json["run"] = facts_json(facts, model.config);
  json["model"] = names.model;
  json["data"] = names.data;
  json["split"] = names.split;
  json["decode_seconds"] = evaluation.decode_seconds;
  return json_text(json, 2) + "\n";
}

std::string recordings_json(const Corpus& corpus, const std::vector<System>& systems) {
  return text_of(recordings_of(systems[0].model.config, measured_set(corpus), measured(systems)));
}

std::string recordings_json(const TrainedModel& model, const LabelledSet& set,
                            const Evaluation& evaluation) {
  return text_of(recordings_of(model.config, set, measured(model, evaluation)));
}

namespace {

std::string encoder_text(const ModelConfig& model) {
  if (model.given) return fmt::format("the encoder {}", model.given->encoder().name);
  return fmt::format("{} {}residual convolution blocks of width {}", model.dilations.size(),
                     model.causal ? "causal " : "", model.width);
}

}  // namespace

ReportData build_report(const TrainConfig& config, const Corpus& corpus,
                        const std::vector<System>& systems, const RunFacts& facts,
                        const std::string& date) {
  std::vector<View> views;
  for (const System& system : systems)
    views.push_back(
        {title_of(system), lane_of(system, systems.size()), &system.model, &system.evaluation});
  const bool has_test = !corpus.test.sequences.empty();
  ReportData report = common(views, has_test ? corpus.test : corpus.dev, figures_of(systems));
  const System& first = systems[0];
  report.date = date;
  report.data_set = config.data.path;
  report.model = fmt::format("{}, {}, K = {} frames", title_of(first), encoder_text(config.model),
                             first.model.config.model.max_duration);
  report.parameters = static_cast<double>(first.parameter_count);
  report.seconds = first.seconds;
  report.epochs = epochs_of(first.outcome);
  report.selected_epoch = static_cast<double>(first.outcome.best_epoch);
  report.facts = {
      {"recordings", fmt::format("{} train, {} dev, {} test", corpus.train.sequences.size(),
                                 corpus.dev.sequences.size(), corpus.test.sequences.size())},
      {"audio", fmt::format("{:.2f} h", corpus.seconds / 3600)},
      {"labels", std::to_string(corpus.labels.size())}};
  if (!has_test)
    report.notes.push_back(
        "There are no test recordings: all figures are on the development set, which also chose "
        "the epoch and the clean-up of a softmax.");
  if (systems.size() > 1) {
    ReportMetric seconds;
    seconds.name = "training time";
    seconds.unit = ReportUnit::kSeconds;
    seconds.better = ReportBetter::kNeither;
    for (const System& system : systems) seconds.values.push_back(system.seconds);
    report.metrics.push_back(seconds);
    report.notes.push_back(
        "All systems share the encoder, the data, the seed and the training plan; one run each. "
        "Intervals are for other recordings; another seed would change the figures as well.");
    for (const System& system : systems)
      if (const std::string text = clean_up_text(system); !text.empty())
        report.notes.push_back(text + ".");
  }
  report.environment = facts_rows(facts, first.model.config);
  return report;
}

ReportData build_report(const TrainedModel& model, const LabelledSet& set,
                        const Evaluation& evaluation, const RunFacts& facts,
                        const std::string& data, const std::string& date) {
  ReportData report = common({{title_of(model.config.model.head), "decoded", &model, &evaluation}},
                             set, figures_of(evaluation, model));
  report.date = date;
  report.data_set = data;
  report.model = title_of(model.config.model.head);
  report.environment = facts_rows(facts, model.config);
  return report;
}

}  // namespace segfuse::learn
