#pragma once
// A trained model that is ready to decode.

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "learn/train/decode/decoder.h"
#include "learn/train/files/model_file.h"
#include "segfuse/model.h"

namespace segfuse::learn {

struct SegmentRules;

/// The model of a path as model_path() takes it, whose parameters are numbers; a `channel` that is
/// not empty wins over the one it was trained with; `channel_is` is what the user calls it.
TrainedModel open_model(const std::filesystem::path& given, const std::string& channel,
                        std::string_view channel_is = "--channel");

class LoadedModel {
 public:
  static constexpr std::int64_t kMaxBest = 1000;
  static constexpr std::int64_t kMaxSamples = 100'000;

  LoadedModel(TrainedModel model, const Context& context);

  const TrainedModel& model() const { return model_; }
  const FeatureExtractor& extractor() const { return extractor_; }
  /// The decoder's options for these.
  Decoder::Options how(const InferenceOptions& options) const;
  /// Normalises the features of a recording. DataError when they have other columns.
  Sequence sequence_of(std::string id, Tensor features) const;
  /// One result a sequence; long ones are decoded piece by piece where that can be done.
  std::vector<Decoded> decode(const std::vector<Sequence>& sequences, const Decoder::Options& how);
  /// A recording whose features come in pieces, not normalised: what decode() makes of all of them.
  /// `scratch` as Decoder::decode_long() has it.
  Decoded decode(const std::string& id, const FeaturePieces& next, const Decoder::Options& how,
                 const std::filesystem::path& scratch);
  /// Whether recordings of so many frames are.
  bool is_long(std::int64_t frames, const Decoder::Options& how) const {
    return frames > how.batch_frames && decoder_.can_decode_long(how);
  }
  /// Decoder::live().
  std::unique_ptr<LiveDecoding> live(const std::string& id, std::int64_t piece_frames,
                                     std::optional<std::int64_t> lookahead);
  std::int64_t least_lookahead(std::int64_t piece_frames) const;
  /// In place, the features of a recording or of a part of it. DataError when they have other
  /// columns.
  void normalise(const std::string& id, Tensor& features) const;
  /// How long segments may be when they are aligned.
  SegmentRules rules() const;
  std::vector<Decoded> align(const std::vector<Sequence>& sequences,
                             const std::vector<semicrf::LabelOrders>& orders);

 private:
  TrainedModel model_;
  FeatureExtractor extractor_;
  Decoder decoder_;
};

}  // namespace segfuse::learn

namespace segfuse {

struct Model::State {
  State(learn::TrainedModel model, Context of);

  std::vector<Prediction> decode(const std::vector<learn::Sequence>& sequences,
                                 const std::vector<double>& seconds,
                                 const InferenceOptions& options);
  Prediction align(const learn::Sequence& sequence, double seconds, std::string_view order,
                   const std::string& optional);
  learn::Sequence sequence_of(const Audio& audio) const;
  learn::Sequence sequence_of(const Tensor& values, const std::string& name) const;

  Context context;
  learn::LoadedModel loaded;
  std::string configuration;
  std::string head;
  std::int64_t parameters = 0;
  std::mutex mutex;  // the decoder keeps its buffers
};

}  // namespace segfuse
