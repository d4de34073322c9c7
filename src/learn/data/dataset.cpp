#include "base/context/pool.h"
#include "base/thread_pool.h"
#include "segfuse/data.h"

namespace segfuse {

std::vector<Example> load_examples(std::span<const Recording> recordings,
                                   const FeatureExtractor& extractor, const LabelOptions& labels,
                                   const FoldingMap& folding, const Context& context) {
  std::vector<Example> out(recordings.size());
  pool_of(context).run(static_cast<std::int64_t>(out.size()), [&](std::int64_t task) {
    const Recording& recording = recordings[static_cast<std::size_t>(task)];
    Example& example = out[static_cast<std::size_t>(task)];
    AudioOptions how;
    how.channel = recording.channel.value_or(extractor.config().channel);
    const Audio audio = read_recording(recording, how);
    example.id = recording.id;
    example.seconds = audio.seconds();
    example.features = extractor.extract(audio);
    if (recording.labels.empty()) return;
    LabelOptions options = labels;
    options.sample_rate = audio.sample_rate;
    FrameOptions ends;
    ends.fill_label = labels.fill_label;
    const Annotation whole =
        covering(read_labels(recording.labels, options), extractor.hop_seconds(),
                 example.features.shape()[0], example.seconds, ends);
    example.gold = fold(whole, folding, &example.joined);
  });
  return out;
}

}  // namespace segfuse
