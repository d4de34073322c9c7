#pragma once
// A trained model in memory: takes samples, gives segments with their probabilities.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "segfuse/context.h"
#include "segfuse/data.h"
#include "segfuse/error.h"
#include "segfuse/tensor.h"

namespace segfuse {

/// An encoder of another library, which replaces the encoder of [model]: programs in text form
/// (docs/ir.md). Inputs: "features" f32 (1, stride * H, D) for a symbol H, one recording;
/// "encoder.NAME" for those of `parameters` and `constants` that it needs; that for training may
/// take "seed" i64 (2). One output: f32 (1, H, W).
struct Encoder {
  std::string name;                                        ///< for reports, as "Tagger"
  std::string training;                                    ///< with dropout
  std::string inference;                                   ///< without
  std::vector<std::pair<std::string, Tensor>> parameters;  ///< f32: initial values
  std::vector<std::pair<std::string, Tensor>> constants;   ///< values that no training step changes
  std::int64_t stride = 1;
  bool scores = false;          ///< W = stride * C, scores of the labels; else a linear layer makes
                                ///< them of the W features
  std::int64_t most_steps = 0;  ///< the largest supported H; 0: any
};

/// Called with D, the columns of the features, and the C labels in their order.
using EncoderSource =
    std::function<Encoder(std::int64_t columns, const std::vector<std::string>& labels)>;

/// The parts of a model that was trained elsewhere. Its encoder gives the scores of labels.
struct ModelParts {
  EncoderSource encoder;
  std::vector<std::string> labels;    ///< in the order of the scores
  std::vector<std::string> settings;  ///< "section.key=value": the features, ...
  std::int64_t channels = 0;          ///< of values: D
  /// f32 transition (C, C), duration (K, C), initial (C), final (C), all finite; K is 1 without
  /// durations. No transition: a softmax, each frame for itself.
  Tensor transition{}, duration{}, initial{}, final{};
};

struct InferenceOptions {
  bool minimum_risk = false;  ///< the best expected boundary F1 instead of the most probable
  bool posteriors = false;    ///< fills label_posteriors and boundary_posteriors
  std::int64_t k_best = 0;    ///< number of most probable segmentations for `best`; at most 1000
  std::int64_t samples = 0;   ///< number of segmentations to draw for `samples`; at most 100,000
  std::uint64_t seed = 0;     ///< of the samples
};

struct PredictedSegment {
  double start = 0;  ///< in seconds
  double end = 0;    ///< in seconds
  std::string label;
  /// P(exactly this segment) for a semi-Markov model. For other models, and for a segment that was
  /// joined from pieces, the mean label posterior of its frames.
  double posterior = 0;
  double label_posterior = 0;   ///< mean over its frames of P(the frame has this label)
  double start_confidence = 0;  ///< P(a boundary within the model's tolerance of its start), 1 for
                                ///< the first segment; NaN for a linear chain
};

/// Another segmentation of a recording.
struct ScoredAnnotation {
  Annotation annotation;
  double log_probability = 0;
};

struct Prediction {
  std::vector<PredictedSegment> segments;  ///< in time order, without gaps
  double seconds = 0;                      ///< of the recording
  double log_probability = 0;              ///< of the segments under the model; NaN for a softmax
  std::vector<ScoredAnnotation> best;      ///< best first
  std::vector<ScoredAnnotation> samples;
  /// f32 (T, C): P(frame t has label c), labels in the order of Model::labels(). Frame t covers the
  /// time from t to t + 1 times Model::hop_seconds().
  Tensor label_posteriors;
  /// f32 (T): P(a segment starts at frame t); of a linear chain none.
  Tensor boundary_posteriors;
};

/// A model that was read from model.safetensors. A handle; copies share the model. Calls
/// from several threads run one after another; each uses the threads of the model's context. The
/// segments of a recording do not depend on other recordings or on the number of threads.
class Model {
 public:
  /// Reads a model file, or model.safetensors in a directory; any other text may be a name of
  /// pretrained_models(). DataError when the file is not a model of this version of segfuse or
  /// contains NaN. `channel` ("0", "mean", ...) chooses one channel of files with several, instead
  /// of what the model was trained with; empty: that.
  static Model load(const std::filesystem::path& path, const Context& context = {},
                    const std::string& channel = {});

  /// UsageError when the parts do not fit together. Features are not normalised.
  static Model of(const ModelParts& parts, const Context& context = {});
  /// Writes the model as load() reads it; a directory gets model.safetensors. UsageError where
  /// there is a file already, unless `overwrite`.
  void save(const std::filesystem::path& path, bool overwrite = false) const;

  const Alphabet& labels() const;
  const FeatureConfig& features() const;  ///< the features that samples are converted to
  double hop_seconds() const;             ///< of a frame of the posteriors
  const std::string& head() const;        ///< semi_markov, linear_chain or softmax
  std::int64_t max_duration() const;      ///< K, in frames; 1 for heads without durations
  std::int64_t parameter_count() const;
  /// The trained parameters by name, as in the file but without "parameter.".
  std::vector<std::pair<std::string, Tensor>> parameters() const;
  /// What its encoder needs and no step changed (Encoder::constants), by name as above.
  std::vector<std::pair<std::string, Tensor>> constants() const;
  const std::string& configuration() const;  ///< the settings it was trained with, as TOML

  /// Segments a recording, which is resampled if its rate differs. DataError when it has no samples
  /// or one that is not finite, or when no segmentation is possible.
  Prediction decode(const Audio& audio, const InferenceOptions& options = {}) const;
  /// The same for each recording; if one cannot be segmented, the call throws its DataError.
  std::vector<Prediction> decode(std::span<const Audio> recordings,
                                 const InferenceOptions& options = {}) const;
  /// The same of values (T, D) f32, for a model of values: a row is a frame. UsageError where the
  /// model takes audio, DataError for other columns than its own.
  std::vector<Prediction> decode_values(std::span<const Tensor> recordings,
                                        const InferenceOptions& options = {}) const;
  /// The same model on another context, with its own buffers: for another device or number of
  /// threads, or in a child of fork(), where the threads of the parent's contexts do not exist.
  Model on(const Context& context) const;

  /// Reads and segments a file.
  Prediction decode_file(const std::filesystem::path& path,
                         const InferenceOptions& options = {}) const;

  /// Finds where the labels of a recording are, given their order in the text form of
  /// docs/alignment.md; `optional`: a label that may stand before, between and after words. All
  /// probabilities are those given the order, and start confidences are NaN. DataError when the
  /// text is not an order of this model's labels, or when the recording cannot have that order.
  Prediction align(const Audio& audio, std::string_view order,
                   const std::string& optional = {}) const;
  /// The same of values (T, D) f32, for a model of values.
  Prediction align_values(const Tensor& values, std::string_view order,
                          const std::string& optional = {}) const;
  /// Reads and aligns a file.
  Prediction align_file(const std::filesystem::path& path, std::string_view order,
                        const std::string& optional = {}) const;

  /// The implementation, for the library itself.
  struct State;
  const std::shared_ptr<State>& state() const { return state_.checked(); }

 private:
  explicit Model(std::shared_ptr<State> state) : state_(std::move(state)) {}
  StatePointer<std::shared_ptr<State>, "Model"> state_;
};

struct LiveOptions {
  /// Seconds. Without a value, a segment is given when no later input can change it, and the
  /// segments are those of Model::decode(). With a value, a boundary is decided at the latest when
  /// so much input after it has arrived, and later segments continue from there, so segments may
  /// differ from those of the whole recording. Resampling adds to this delay, and so does the next
  /// segment if the model joins pieces of long segments.
  std::optional<double> lookahead{};
};

/// Decodes a recording as it arrives, in pieces of any size; the segments do not depend on the
/// sizes. Memory grows only with the undecided part: two numbers of four bytes for each label and
/// frame. Calls of several threads run one after another. Segments have no probabilities, because
/// these depend on later input.
class LiveDecoder {
 public:
  /// UsageError for a model whose encoder or features need the whole recording (attention,
  /// blocks that go backward, another library's encoder, features.normalise_recording, whisper
  /// features), and for a lookahead that is shorter than the model's longest segment and what its
  /// network looks ahead.
  explicit LiveDecoder(const Model& model, const LiveOptions& options = {});
  ~LiveDecoder();
  LiveDecoder(LiveDecoder&&) noexcept;
  LiveDecoder& operator=(LiveDecoder&&) noexcept;

  /// The next samples, as Model::decode() takes them; rate and channels are those of the first
  /// piece. Returns the segments that are final now, in order: together with those before they tile
  /// the time. DataError for a sample that is not finite; nothing of the piece is then taken.
  std::vector<LabelSegment> push(const Audio& samples);
  /// The same of the next rows (n, D) f32, for a model of values.
  std::vector<LabelSegment> push_values(const Tensor& rows);
  /// Ends the recording and returns the rest. DataError where nothing came or no segmentation is
  /// possible. UsageError for any call behind it.
  std::vector<LabelSegment> finish();
  double seconds() const;  ///< of what has come

 private:
  struct State;
  StatePointer<std::unique_ptr<State>, "LiveDecoder"> state_;
};

// ----------------------------------------------------------------------------- pretrained models

/// What the index of a folder of models says of one.
struct PretrainedModel {
  std::string name;                 ///< "ecg-waves"
  std::string title;                ///< what it labels
  std::string recordings;           ///< what it was trained on: language or sensor, speakers
  int sample_rate = 0;              ///< in Hz
  double hop_ms = 0;                ///< of its frames
  std::vector<std::string> labels;  ///< in the order of its posteriors
  std::string licence;              ///< of the model, and what its data ask for
  std::string figure;               ///< how good it is on recordings it was not trained on
  std::uint64_t bytes = 0;
  std::string sha256;          ///< of its file, 64 digits
  std::filesystem::path path;  ///< its file
};

/// The folders where models are looked for, those that are not there included, the first one first:
/// what SEGFUSE_MODELS names (with colons between them), PREFIX/share/segfuse/models of the
/// installed program or library (in a build: the models of the source tree), and the Python
/// package segfuse-models beside the one that this code is a part of.
std::vector<std::filesystem::path> pretrained_folders();

/// The models of all these folders; of two with one name the first. DataError where an index is
/// malformed, or where a folder of SEGFUSE_MODELS has none.
std::vector<PretrainedModel> pretrained_models();

/// The file of a model by its name, whose SHA-256 is that of the index: else a DataError. DataError
/// with the nearest name and the folders where there is no such model. What takes a model (load(),
/// train(), decode(), ...) asks this by itself for what is neither a file nor a folder.
std::filesystem::path pretrained_file(const std::string& name);

/// The card of a model, as Markdown: data, licence, split, figures, uses and limits.
std::string pretrained_card(const std::string& name);

}  // namespace segfuse
