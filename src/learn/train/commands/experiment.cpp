#include "learn/train/commands/experiment.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "base/console/log.h"
#include "base/console/progress.h"
#include "learn/data/feature_store.h"
#include "learn/data/recordings.h"
#include "learn/data/text.h"
#include "learn/data/unlabelled.h"
#include "learn/train/commands/initial_model.h"
#include "learn/train/loop/crf_start.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

LabelOptions label_options(const DataSource& data) {
  LabelOptions options;
  options.tier = data.tier;
  options.fill_label = data.unlabelled_unknown ? data::kUnlabelled : data.fill_label;
  return options;
}

FoldingMap folding(const DataSource& data) {
  return data.fold.empty() ? FoldingMap() : read_folding_map(data.fold);
}

/// Loads in portions so that progress shows.
std::vector<Example> load_with_progress(const std::vector<Recording>& recordings,
                                        const TrainConfig& config, const Context& context,
                                        data::FeatureStore& store, Progress& progress) {
  constexpr std::size_t kPortion = 16;
  const FeatureExtractor extractor(config.features);
  const FoldingMap fold = folding(config.data);
  std::vector<Example> all;
  for (std::size_t i = 0; i < recordings.size(); i += kPortion) {
    const std::size_t count = std::min(kPortion, recordings.size() - i);
    for (Example& example : data::load_examples(std::span(recordings).subspan(i, count), extractor,
                                                label_options(config.data), fold, context, store))
      for (Example& part : data::labelled_parts(std::move(example), extractor.hop_seconds()))
        all.push_back(std::move(part));
    progress.advance(static_cast<std::int64_t>(count));
  }
  return all;
}

/// Recordings of stacked channels or of values say how many columns there are.
void check_columns(const std::vector<Example>& examples, std::size_t columns) {
  for (const Example& example : examples)
    if (example.features.shape()[1] != static_cast<std::int64_t>(columns))
      throw DataError(fmt::format(
          "{}: its features have {} columns, those of the first training recording {}; all "
          "recordings need the same channels or values",
          example.id, example.features.shape()[1], columns));
}

/// Normalises in place and turns labels into frames. Labels that the model lacks are kept: nothing
/// that it decodes is right there.
LabelledSet make_set(std::vector<Example> examples, const Alphabet& labels,
                     const Normalisation& normalisation, const TrainConfig& config,
                     data::FeatureStore& store) {
  LabelledSet set;
  set.examples = std::move(examples);
  FrameOptions options;
  options.allow_unknown = true;
  check_columns(set.examples, normalisation.mean.size());
  for (Example& example : set.examples) {
    for (const LabelSegment& segment : example.gold.segments)
      if (!labels.find(segment.label)) ++set.unknown[segment.label];
    for (const auto& [label, count] : example.joined) set.joined[label] += count;
    store.change(example.features, [&](Tensor& rows) { normalisation.apply(rows); });
    FrameLabels frames = to_frames(example.gold, labels, config.features.hop_ms / 1000,
                                   example.features.shape()[0], options);
    set.dropped += frames.dropped;
    set.sequences.push_back({example.id, std::move(example.features), std::move(frames.segments)});
  }
  return set;
}

/// Who allowed commands sees what they are before the first one runs.
void tell_commands(const std::vector<Recording>& recordings) {
  constexpr std::int64_t kShown = 20;
  std::int64_t count = 0;
  for (const Recording& recording : recordings) {
    if (!recording.command || ++count > kShown) continue;
    log(LogLevel::kInfo, "{}: runs {}", recording.command->source, recording.command->line);
  }
  if (count > kShown) log(LogLevel::kInfo, "and {} commands more", count - kShown);
}

/// What became of the gold that its owner would not expect.
void report_gold(const std::vector<const LabelledSet*>& sets, const TrainConfig& config) {
  std::int64_t dropped = 0;
  JoinedCounts joined, unknown;
  for (const LabelledSet* set : sets) {
    dropped += set->dropped;
    for (const auto& [label, count] : set->joined) joined[label] += count;
    for (const auto& [label, count] : set->unknown) unknown[label] += count;
  }
  if (dropped > 0)
    log(LogLevel::kWarning,
        "{} gold segments are shorter than a frame and share one with others; they were dropped",
        dropped);
  if (!joined.empty())
    log(LogLevel::kInfo,
        "data.fold ({}) gave neighbours of different labels one label; they were joined: {}",
        config.data.fold, counts_text(joined));
  if (!unknown.empty())
    log(LogLevel::kWarning,
        "labels that the training set lacks, so every segment decoded there counts as wrong: {}",
        counts_text(unknown));
}

/// Labels that look the same are different labels, which their owner cannot see.
void warn_of_look_alikes(const std::vector<const std::vector<Example>*>& sets) {
  std::set<std::string> labels;
  for (const std::vector<Example>* set : sets)
    for (const Example& example : *set)
      for (const LabelSegment& segment : example.gold.segments) labels.insert(segment.label);
  for (const auto& [a, b] : data::look_alikes({labels.begin(), labels.end()}))
    log(LogLevel::kWarning,
        "the labels {} (bytes {}) and {} (bytes {}) look the same and are two labels; "
        "data.fold makes them one",
        data::shown(a), data::byte_text(a), data::shown(b), data::byte_text(b));
}

void tell_resampled(const std::vector<const std::vector<Example>*>& sets,
                    const FeatureConfig& features) {
  if (features.kind == FeatureKind::kValues) return;
  std::map<double, std::int64_t> rates;
  for (const std::vector<Example>* set : sets)
    for (const Example& example : *set) ++rates[example.sample_rate];
  tell(data::resampled_text(rates, features.sample_rate));
}

void check_labels(const std::vector<Recording>& recordings) {
  for (const Recording& recording : recordings)
    if (recording.labels.empty())
      throw DataError(
          fmt::format("{}: the recording has no labels; training and evaluation need them",
                      recording.command ? recording.id : recording.audio.string()));
}

std::vector<Tensor> initial_parameters(const Segmenter& segmenter,
                                       const LabelStatistics& statistics, std::uint64_t seed) {
  std::vector<Tensor> parameters = segmenter.initial(seed);
  start_crf(segmenter, statistics, parameters);
  return parameters;
}

/// Labels that never follow themselves in the training set: neighbours that have one can only be
/// pieces of a longer segment.
std::vector<bool> never_repeated(const Corpus& corpus) {
  std::vector<bool> never(static_cast<std::size_t>(corpus.labels.size()), true);
  for (const Sequence& sequence : corpus.train.sequences)
    for (std::size_t i = 1; i < sequence.segments.size(); ++i)
      if (sequence.segments[i].label == sequence.segments[i - 1].label)
        never[static_cast<std::size_t>(sequence.segments[i].label)] = false;
  return never;
}

/// Gold segments as the head sees them: none longer than its label's limit.
struct Durations {
  std::int64_t longest = 1;
  std::vector<std::int64_t> limits, shortest;
  Tensor table = Tensor::zeros(DType::kF32, {0});
};

Durations duration_rules(const TrainConfig& config, const Rules& rules, const Corpus& corpus) {
  Durations durations;
  durations.shortest = rules.shortest;
  durations.longest = config.max_duration;
  if (durations.longest == 0) {
    for (const Sequence& sequence : corpus.train.sequences)
      for (const FrameSegment& s : sequence.segments)
        durations.longest = std::max(durations.longest, s.duration);
    durations.longest = std::max(durations.longest, std::ranges::max(rules.longest));
  }
  const LabelStatistics raw =
      count_labels(corpus.train.sequences, corpus.labels.size(), durations.longest);
  durations.limits = duration_limits(raw, durations.longest);
  for (std::size_t c = 0; c < durations.limits.size(); ++c) {
    if (rules.longest[c] > durations.longest)
      throw DataError(fmt::format(
          "grammar.longest: segments of '{}' may have {} frames, but model.max_duration is {}; "
          "raise it, or set it to 0",
          corpus.labels.label(static_cast<std::int64_t>(c)), rules.longest[c], durations.longest));
    if (rules.longest[c] > 0) durations.limits[c] = rules.longest[c];
  }
  durations.table = duration_limit_table(durations.limits, durations.longest, durations.shortest);
  return durations;
}

/// Labels that follow themselves whatever the grammar says: from frame to frame, or as pieces that
/// are joined afterwards.
std::vector<bool> repeated_labels(const TrainConfig& config, HeadKind head, const Rules& rules) {
  std::vector<bool> repeated;
  for (const std::int64_t longest : rules.longest)
    repeated.push_back(head == HeadKind::kLinearChain || (config.join_long && longest == 0));
  return repeated;
}

/// Returns how many segments were longer than their labels' limits.
std::int64_t split_segments(LabelledSet& set, const Durations& durations, bool full) {
  std::int64_t cut = 0;
  for (Sequence& sequence : set.sequences) {
    for (const FrameSegment& s : sequence.segments) {
      if (s.label == kUnknownLabel) continue;
      const auto label = static_cast<std::size_t>(s.label);
      if (s.duration <= durations.limits[label]) continue;
      if (durations.limits[label] + 1 < 2 * durations.shortest[label])
        throw DataError(fmt::format(
            "{}: a segment of {} frames is longer than the model's longest segment of {} frames, "
            "and its pieces would be shorter than the {} frames of grammar.shortest; raise "
            "model.max_duration",
            sequence.id, s.duration, durations.limits[label], durations.shortest[label]));
      ++cut;
    }
    sequence.segments = split_long(sequence.segments, durations.limits, full, durations.shortest);
  }
  return cut;
}

/// No gold may break a rule, before it is cut into pieces. Pieces need to follow each other.
void check_grammar(const TrainConfig& config, const Rules& rules, const Corpus& corpus,
                   const Durations& durations) {
  for (const LabelledSet* set : {&corpus.train, &corpus.dev, &corpus.test})
    for (const Sequence& sequence : set->sequences) {
      check_gold(rules, corpus.labels, sequence.id, sequence.segments,
                 config.features.hop_ms / 1000);
      for (const FrameSegment& s : sequence.segments) {
        if (s.label == kUnknownLabel || config.join_long) continue;
        const auto label = static_cast<std::size_t>(s.label);
        if (s.duration > durations.limits[label] && !rules.next[label][label])
          throw DataError(fmt::format(
              "{}: a segment '{}' of {} frames is longer than the model's longest segment of {} "
              "frames, and grammar.next lets no piece of it follow another; set "
              "model.long_segments to "
              "\"joined\" or raise model.max_duration",
              sequence.id, corpus.labels.label(s.label), s.duration, durations.limits[label]));
      }
    }
}

/// That of the model which the training begins with: its weights know no other.
Normalisation normalisation_of(const Corpus& corpus, const std::vector<Tensor>& features) {
  if (!corpus.init) return compute_normalisation(features);
  const std::int64_t columns = features[0].shape()[1];
  if (columns != corpus.init->model.config.model.features)
    throw DataError(fmt::format(
        "{}: the model has {} columns of features, the recordings have {}; it needs recordings "
        "with as many channels or values as it was trained on",
        corpus.init->name, corpus.init->model.config.model.features, columns));
  tell(labels_known_text(*corpus.init, corpus.labels));
  return corpus.init->model.normalisation;
}

}  // namespace

void tell(const std::string& text) {
  if (!text.empty()) log(LogLevel::kInfo, "{}", text);
}

Corpus load_corpus(const TrainConfig& config, const std::filesystem::path& scratch,
                   const Context& context) {
  data::FeatureStore store(scratch);
  return load_corpus(config, store, context);
}

Corpus load_corpus(const TrainConfig& config, data::FeatureStore& store, const Context& context) {
  if (config.data.path.empty() && config.data.held.empty())
    throw UsageError("no data was given; set data.path in the configuration or pass --data");
  Corpus corpus;
  corpus.init = read_initial_model(config);
  std::vector<Recording> recordings = config.data.held;
  if (recordings.empty())
    recordings = find_recordings(config, config.data.path, config.data.allow_commands);
  else
    choose_recordings(recordings, config);
  check_labels(recordings);
  tell_commands(recordings);
  Progress progress("reading recordings", static_cast<std::int64_t>(recordings.size()),
                    {.quiet = context.options().get(options::kQuiet)});
  auto load = [&](Split split) {
    return load_with_progress(recordings_of(recordings, split), config, context, store, progress);
  };
  std::vector<Example> train = load(Split::kTrain);
  std::vector<Example> dev = load(Split::kDev);
  std::vector<Example> test = load(Split::kTest);
  progress.finish();
  if (train.empty()) throw DataError(fmt::format("{}: no training recordings", config.data.path));
  tell_resampled({&train, &dev, &test}, config.features);
  check_columns(train, static_cast<std::size_t>(train[0].features.shape()[1]));

  std::vector<Annotation> golds;
  std::vector<Tensor> features;
  for (const Example& example : train) {
    golds.push_back(example.gold);
    features.push_back(example.features);
  }
  corpus.labels = Alphabet::of(golds);
  warn_of_look_alikes({&train, &dev, &test});
  corpus.normalisation = normalisation_of(corpus, features);
  features.clear();
  for (const auto* set : {&train, &dev, &test})
    for (const Example& example : *set) corpus.seconds += example.seconds;
  corpus.train = make_set(std::move(train), corpus.labels, corpus.normalisation, config, store);
  corpus.dev = make_set(std::move(dev), corpus.labels, corpus.normalisation, config, store);
  corpus.test = make_set(std::move(test), corpus.labels, corpus.normalisation, config, store);
  report_gold({&corpus.train, &corpus.dev, &corpus.test}, config);
  return corpus;
}

LabelledSet load_labelled(const TrainedModel& model, const std::string& data,
                          std::optional<Split> split, const Context& context) {
  const std::string path = data.empty() ? model.config.data.path : data;
  if (path.empty())
    throw UsageError(
        "the model was trained on recordings in memory; pass --data to name the recordings to "
        "evaluate");
  // A path out of the model file was chosen by the maker of that file.
  const bool allow_commands = model.config.data.allow_commands && !data.empty();
  TrainConfig source = model.config;
  // Where nothing is dealt, other recordings may have other groups.
  if (!split || (source.data.folds == 0 && !source.data.group.empty() &&
                 splits_are_given(source, path, allow_commands)))
    source.data.group.clear();
  std::vector<Recording> recordings = find_recordings(source, path, allow_commands);
  if (split) std::erase_if(recordings, [&](const Recording& r) { return r.split != *split; });
  if (recordings.empty())
    throw DataError(
        fmt::format("{}: no recordings in the split '{}'", path, split ? name_of(*split) : "all"));
  check_labels(recordings);
  tell_commands(recordings);
  Progress progress("reading recordings", static_cast<std::int64_t>(recordings.size()),
                    {.quiet = context.options().get(options::kQuiet)});
  data::FeatureStore store({});
  std::vector<Example> examples =
      load_with_progress(recordings, model.config, context, store, progress);
  progress.finish();
  tell_resampled({&examples}, model.config.features);
  LabelledSet set =
      make_set(std::move(examples), model.labels, model.normalisation, model.config, store);
  report_gold({&set}, model.config);
  return set;
}

Start start_of(const TrainConfig& config, HeadKind head, Corpus& corpus) {
  Start start;
  start.model = {config, corpus.labels, corpus.normalisation, Tensor::zeros(DType::kF32, {0}), {}};
  ModelConfig& sizes = start.model.config.model;
  sizes.head = head;
  sizes.features = static_cast<std::int64_t>(corpus.normalisation.mean.size());
  sizes.classes = corpus.labels.size();
  const bool semi = head == HeadKind::kSemiMarkov;
  const Rules rules = rules_of(config.grammar, corpus.labels, config.features.hop_ms / 1000,
                               config.join_long && semi);
  const Durations durations = duration_rules(config, rules, corpus);
  if (head == config.model.head) check_grammar(config, rules, corpus, durations);
  sizes.max_duration = durations.longest;
  sizes.ordered = is_ordered(config, head);
  if (sizes.ordered)
    start.model.order_limit = order_limit(rules, repeated_labels(config, head, rules));
  if (semi) {
    start.model.duration_limit = durations.table;
    if (config.join_long) sizes.joins_neighbours = never_repeated(corpus);
    std::int64_t cut = 0;
    for (LabelledSet* set : {&corpus.train, &corpus.dev, &corpus.test})
      cut += split_segments(*set, durations, config.join_long);
    if (cut > 0)
      log(LogLevel::kInfo,
          "{} gold segments are longer than what their labels may last (at most K = {} frames); "
          "the "
          "loss sees them in pieces, and {}",
          cut, durations.longest,
          config.join_long ? "decoded pieces are joined"
                           : "decoded ones stay in pieces (model.long_segments = \"joined\" joins "
                             "them)");
  }
  const LabelStatistics statistics =
      count_labels(corpus.train.sequences, sizes.classes, sizes.max_duration);
  const Segmenter segmenter(sizes);
  start.parameters = initial_parameters(segmenter, statistics, config.training.seed);
  if (corpus.init) copy_initial_model(*corpus.init, segmenter, corpus.labels, start.parameters);
  return start;
}

std::vector<Sequence> training_sequences(const TrainConfig& config, const Corpus& corpus) {
  const std::vector<Sequence>& all = corpus.train.sequences;
  const std::int64_t frames = config.training.fixed_length;
  if (frames == 0) return all;
  std::vector<Sequence> pieces = pieces_of(all, frames);
  std::int64_t longest = 0;
  std::int64_t shorter = 0;
  for (const Sequence& sequence : all) {
    longest = std::max(longest, sequence.frames());
    shorter += sequence.frames() < frames;
  }
  if (pieces.empty())
    throw UsageError(
        fmt::format("no training recording has {} frames, the longest has {}; lower --fixed-length",
                    frames, longest));
  if (shorter > 0)
    log(LogLevel::kWarning, "{} training recordings are shorter than {} frames and were left out",
        shorter, frames);
  return pieces;
}

System run_system(const TrainConfig& config, HeadKind head, Corpus& corpus,
                  const TrainerOptions& options) {
  const double begin = now();
  System system;
  system.name = name_of(head);
  Start start = start_of(config, head, corpus);
  system.model = std::move(start.model);
  system.model.source = options.checkpoint.string();
  TrainerOptions with_recipe = options;
  with_recipe.recipe = recipe_of(system.model.config, corpus.labels);
  add_data(with_recipe.recipe, "test", corpus.test.sequences);
  if (corpus.init) with_recipe.recipe.emplace_back("SHA-256 of training.init", corpus.init->sha256);
  with_recipe.augmenter = augmenter_of(config.augmentation, config.features, corpus.normalisation,
                                       config.training.seed);
  const Segmenter segmenter(system.model.config.model);
  system.parameter_count = segmenter.parameter_count();
  system.outcome = train(segmenter, config.training, std::move(start.parameters),
                         system.model.limits(), training_sequences(config, corpus),
                         corpus.dev.sequences, make_scorer(config, corpus), with_recipe);
  system.model.recipe = system.outcome.recipe;
  system.model.parameters = system.outcome.parameters;
  system.seconds = now() - begin;
  system.evaluation =
      evaluate_model(system.model, corpus.test.sequences.empty() ? corpus.dev : corpus.test,
                     options.execution.context, options.group);
  return system;
}

Scorer make_scorer(const TrainConfig& config, const Corpus& corpus) {
  return [&config, &corpus](const std::vector<std::vector<FrameSegment>>& decoded) {
    Metrics metrics(metrics_config(config));
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      const Annotation& gold = corpus.dev.examples[i].gold;
      metrics.add(gold, to_annotation(decoded[i], corpus.labels, config.features.hop_ms / 1000,
                                      gold.duration));
    }
    return DevScores{metrics.label_error_rate(), metrics.boundaries().f1(),
                     metrics.segments().f1()};
  };
}

void introduce(const std::string& text) {
  if (!text.empty()) log(LogLevel::kInfo, "{}", text);
}

}  // namespace segfuse::learn
