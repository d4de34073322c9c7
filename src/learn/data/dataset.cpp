#include <fmt/core.h>

#include <filesystem>
#include <optional>

#include "base/context/pool.h"
#include "base/thread_pool.h"
#include "learn/data/feature_reader.h"
#include "learn/data/feature_store.h"
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

/// Files of more bytes are read in pieces: of audio a few minutes, or a quarter of an hour of MP3.
constexpr std::uint64_t kLongFile = std::uint64_t{16} << 20;

AudioOptions audio_options(const Recording& recording, const FeatureExtractor& extractor) {
  AudioOptions how;
  how.channel = recording.channel.value_or(extractor.config().channel);
  return how;
}

void check_stacked(const Tensor& features, const Recording& recording,
                   const FeatureExtractor& extractor) {
  const std::int64_t columns = extractor.num_features();
  if (columns > 0 && features.shape()[1] != columns)
    throw DataError(fmt::format(
        "{}: all channels are stacked here, but not of all recordings; set features.channel = "
        "\"stack\"",
        recording.id));
}

/// Of a long recording that can be read piece by piece, read_features().
std::optional<RecordingFeatures> read_in_pieces(const Recording& recording,
                                                const FeatureExtractor& extractor,
                                                data::FeatureStore& store) {
  if (recording.command || recording.held || store.folder().empty()) return std::nullopt;
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(recording.audio, unknown);
  if (unknown || bytes < kLongFile) return std::nullopt;
  const auto reader = data::FeatureReader::open(recording.audio, extractor, store.folder(),
                                                audio_options(recording, extractor));
  const std::optional<std::int64_t> rows = reader ? reader->announced() : std::nullopt;
  // A header that announces more than the file can hold is refused at its end, wherever that is.
  if (!rows || static_cast<std::uintmax_t>(*rows) > bytes) return std::nullopt;
  RecordingFeatures out;
  out.features = store.keep(*rows, [&] { return reader->next(); });
  out.seconds = reader->seconds();
  out.sample_rate = reader->sample_rate();
  check_stacked(out.features, recording, extractor);
  return out;
}

RecordingFeatures kept_features(const Recording& recording, const FeatureExtractor& extractor,
                                data::FeatureStore& store) {
  if (std::optional<RecordingFeatures> kept = read_in_pieces(recording, extractor, store))
    return std::move(*kept);
  RecordingFeatures read = read_features(recording, extractor);
  read.features = store.keep(std::move(read.features));
  return read;
}

}  // namespace

RecordingFeatures read_features(const Recording& recording, const FeatureExtractor& extractor) {
  if (extractor.config().kind == FeatureKind::kValues)
    return features_of_values(recording, extractor);
  Audio audio = read_recording(recording, audio_options(recording, extractor));
  RecordingFeatures out{Tensor::zeros(DType::kF32, {0}), audio.seconds(),
                        static_cast<double>(audio.sample_rate)};
  out.features = extractor.extract(resample(std::move(audio), extractor.config().sample_rate));
  check_stacked(out.features, recording, extractor);
  return out;
}

std::vector<Example> load_examples(std::span<const Recording> recordings,
                                   const FeatureExtractor& extractor, const LabelOptions& labels,
                                   const FoldingMap& folding, const Context& context) {
  data::FeatureStore in_memory({});
  return data::load_examples(recordings, extractor, labels, folding, context, in_memory);
}

std::vector<Example> data::load_examples(std::span<const Recording> recordings,
                                         const FeatureExtractor& extractor,
                                         const LabelOptions& labels, const FoldingMap& folding,
                                         const Context& context, FeatureStore& store) {
  std::vector<Example> out(recordings.size());
  pool_of(context).run(static_cast<std::int64_t>(out.size()), [&](std::int64_t task) {
    const Recording& recording = recordings[static_cast<std::size_t>(task)];
    Example& example = out[static_cast<std::size_t>(task)];
    RecordingFeatures read = kept_features(recording, extractor, store);
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
