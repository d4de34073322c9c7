#include "base/thread_pool.h"
#include "segfuse/data.h"

namespace segfuse {

std::vector<Example> load_examples(std::span<const Recording> recordings,
                                   const FeatureExtractor& extractor, const LabelOptions& labels,
                                   const FoldingMap& folding, ThreadPool& pool) {
  std::vector<Example> out(recordings.size());
  pool.run(static_cast<std::int64_t>(out.size()), [&](std::int64_t task) {
    const Recording& recording = recordings[static_cast<std::size_t>(task)];
    Example& example = out[static_cast<std::size_t>(task)];
    const Audio audio = read_recording(recording);
    example.id = recording.id;
    example.seconds = audio.seconds();
    example.features = extractor.extract(audio);
    if (recording.labels.empty()) return;
    LabelOptions options = labels;
    options.sample_rate = audio.sample_rate;
    example.gold = fold(read_labels(recording.labels, options), folding);
  });
  return out;
}

}  // namespace segfuse
