#include <fmt/core.h>

#include "base/context/pool.h"
#include "base/thread_pool.h"
#include "learn/data/recordings.h"
#include "segfuse/error.h"

namespace segfuse {

namespace {

RecordingFeatures features_of_values(const Recording& recording,
                                     const FeatureExtractor& extractor) {
  const double rate = extractor.config().frame_rate;
  const Tensor values = data::values_of(recording);
  return {extractor.extract_values(values, recording.audio.string()),
          static_cast<double>(values.shape()[0]) / rate, rate};
}

}  // namespace

RecordingFeatures read_features(const Recording& recording, const FeatureExtractor& extractor) {
  if (extractor.config().kind == FeatureKind::kValues)
    return features_of_values(recording, extractor);
  AudioOptions how;
  how.channel = recording.channel.value_or(extractor.config().channel);
  Audio audio = read_recording(recording, how);
  RecordingFeatures out{Tensor::zeros(DType::kF32, {0}), audio.seconds(),
                        static_cast<double>(audio.sample_rate)};
  out.features = extractor.extract(resample(std::move(audio), extractor.config().sample_rate));
  const std::int64_t columns = extractor.num_features();
  if (columns > 0 && out.features.shape()[1] != columns)
    throw DataError(fmt::format(
        "{}: all channels are stacked here, but not of all recordings; set features.channel = "
        "\"stack\"",
        recording.id));
  return out;
}

std::vector<Example> load_examples(std::span<const Recording> recordings,
                                   const FeatureExtractor& extractor, const LabelOptions& labels,
                                   const FoldingMap& folding, const Context& context) {
  std::vector<Example> out(recordings.size());
  pool_of(context).run(static_cast<std::int64_t>(out.size()), [&](std::int64_t task) {
    const Recording& recording = recordings[static_cast<std::size_t>(task)];
    Example& example = out[static_cast<std::size_t>(task)];
    RecordingFeatures read = read_features(recording, extractor);
    example.id = recording.id;
    example.seconds = read.seconds;
    example.sample_rate = read.sample_rate;
    example.features = std::move(read.features);
    if (recording.labels.empty()) return;
    LabelOptions options = labels;
    options.sample_rate = read.sample_rate;
    FrameOptions ends;
    ends.fill_label = labels.fill_label;
    const Annotation whole = covering(data::labels_of(recording, options), extractor.hop_seconds(),
                                      example.features.shape()[0], example.seconds, ends);
    example.gold = fold(whole, folding, &example.joined);
  });
  return out;
}

}  // namespace segfuse
