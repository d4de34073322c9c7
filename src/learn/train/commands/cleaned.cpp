#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/console/log.h"
#include "base/context/pool.h"
#include "learn/train/commands/experiment.h"
#include "learn/train/decode/clean_up.h"
#include "learn/train/decode/on_ranks.h"
#include "learn/train/loop/company.h"

namespace segfuse::learn {
namespace {

std::vector<Decoded> decode(const System& softmax, const std::vector<Sequence>& sequences,
                            const TrainerOptions& options) {
  const Segmenter segmenter(softmax.model.config.model);
  Decoder decoder(segmenter, softmax.model.parameters, softmax.model.limits(), options.execution);
  return decode_on_ranks(decoder, sequences, {.posteriors = false}, options.group);
}

/// Segments without posteriors: a vote has none.
Decoded cleaned(const Decoded& decoded, CleanUp setting) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  Decoded out;
  for (const FrameSegment& s : clean_up(segments_of({decoded}).front(), setting))
    out.segments.push_back({s, kNone, kNone, kNone});
  return out;
}

std::vector<std::vector<FrameSegment>> gold_of(const std::vector<Sequence>& sequences) {
  std::vector<std::vector<FrameSegment>> all;
  for (const Sequence& sequence : sequences) all.push_back(sequence.segments);
  return all;
}

}  // namespace

namespace {

System cleaned_system(const TrainConfig& config, const System& softmax, const Corpus& corpus,
                      const TrainerOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  System system;
  system.name = "softmax_cleaned";
  system.model = softmax.model;
  system.outcome = softmax.outcome;
  system.parameter_count = softmax.parameter_count;
  const std::vector<Decoded> dev = decode(softmax, corpus.dev.sequences, options);
  if (rank_of(options.group) > 0) return system;
  const Selection by = clean_up_criterion(config);
  const Scorer scores = make_scorer(config, corpus);
  system.clean_up = std::make_shared<const TunedCleanUp>(tune_clean_up(
      segments_of(dev), clean_up_candidates(gold_of(corpus.train.sequences)),
      [&](const auto& segments) { return score_of(scores(segments), by); }, lower_is_better(by),
      pool_of(options.execution.context)));
  const CleanUp setting = system.clean_up->setting;
  std::vector<Decoded> decoded;
  for (const Decoded& raw : softmax.evaluation.decoded) decoded.push_back(cleaned(raw, setting));
  system.evaluation = measure(
      system.model, corpus.test.sequences.empty() ? corpus.dev : corpus.test, std::move(decoded));
  system.evaluation.decode_seconds = softmax.evaluation.decode_seconds;
  system.seconds = softmax.seconds +
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  log(LogLevel::kInfo, "{}", clean_up_text(system));
  return system;
}

}  // namespace

void add_cleaned(const TrainConfig& config, const Corpus& corpus, const TrainerOptions& options,
                 std::vector<System>& systems) {
  if (corpus.dev.sequences.empty()) {
    if (rank_of(options.group) == 0)
      log(LogLevel::kWarning,
          "there are no development recordings to tune a clean-up of the softmax on; the "
          "comparison is without it");
    return;
  }
  const auto softmax = std::ranges::find(systems, name_of(HeadKind::kSoftmax), &System::name);
  System cleaned = cleaned_system(config, *softmax, corpus, options);
  systems.push_back(std::move(cleaned));
}

Selection clean_up_criterion(const TrainConfig& config) {
  const Selection by = config.training.select_by;
  return by == Selection::kLoss ? Selection::kLabelError : by;
}

std::string clean_up_text(const System& system) {
  if (!system.clean_up) return "";
  const TunedCleanUp& tuned = *system.clean_up;
  const TrainConfig& config = system.model.config;
  const double hop = config.features.hop_ms;
  const auto milliseconds = [&](std::int64_t frames) {
    return fmt::format("{:g} ms", static_cast<double>(frames) * hop);
  };
  const CleanUp setting = tuned.setting;
  return fmt::format("{}: {}, {}; the best {} of {} settings on the development set, {:.4f}",
                     system.name,
                     setting.shortest > 1 ? "minimum duration " + milliseconds(setting.shortest)
                                          : "no minimum duration",
                     setting.window > 1 ? "majority vote over " + milliseconds(setting.window)
                                        : "no majority vote",
                     name_of(clean_up_criterion(config)), tuned.tried, tuned.score);
}

}  // namespace segfuse::learn
