#include "segfuse/model.h"

#include <fmt/core.h>

#include "base/context/pool.h"
#include "learn/data/recordings.h"
#include "learn/data/values/values.h"
#include "learn/train/decode/alternatives.h"
#include "learn/train/decode/evaluation.h"
#include "learn/train/decode/given_model.h"
#include "learn/train/decode/loaded_model.h"
#include "learn/train/decode/orders.h"
#include "segfuse/error.h"

namespace segfuse {

namespace {

std::vector<ScoredAnnotation> annotations_of(const std::vector<learn::Alternative>& alternatives,
                                             const Alphabet& labels, double hop, double seconds) {
  std::vector<ScoredAnnotation> out;
  for (const learn::Alternative& a : alternatives)
    out.push_back({to_annotation(a.segments, labels, hop, seconds), a.log_probability});
  return out;
}

Prediction prediction_of(const learn::Decoded& decoded, const Alphabet& labels, double hop,
                         double seconds) {
  Prediction out;
  out.seconds = seconds;
  out.log_probability = decoded.log_probability;
  const Annotation annotation = learn::to_annotation(decoded, labels, hop, seconds);
  for (std::size_t i = 0; i < decoded.segments.size(); ++i) {
    const LabelSegment& at = annotation.segments[i];
    const learn::DecodedSegment& d = decoded.segments[i];
    out.segments.push_back(
        {at.start, at.end, at.label, d.posterior, d.label_posterior, d.start_confidence});
  }
  out.best = annotations_of(decoded.best, labels, hop, seconds);
  out.samples = annotations_of(decoded.samples, labels, hop, seconds);
  if (!decoded.label.empty())
    out.label_posteriors =
        Tensor::from(decoded.label, {std::ssize(decoded.label) / labels.size(), labels.size()});
  if (!decoded.label.empty() && !decoded.boundary.empty())
    out.boundary_posteriors = Tensor::from(decoded.boundary, {std::ssize(decoded.boundary)});
  return out;
}

}  // namespace

Model::State::State(learn::TrainedModel model, Context of)
    : context(std::move(of)), loaded(std::move(model), context) {
  configuration = learn::settings_text(loaded.model().config);
  head = learn::name_of(loaded.model().config.model.head);
  for (const Tensor& parameter : loaded.model().parameters) parameters += parameter.size();
}

std::vector<Prediction> Model::State::decode(const std::vector<learn::Sequence>& sequences,
                                             const std::vector<double>& seconds,
                                             const InferenceOptions& options) {
  const learn::Decoder::Options how = loaded.how(options);
  const std::lock_guard lock(mutex);
  const std::vector<learn::Decoded> decoded = loaded.decode(sequences, how);
  std::vector<Prediction> out;
  for (std::size_t i = 0; i < decoded.size(); ++i)
    out.push_back(prediction_of(decoded[i], loaded.model().labels, loaded.extractor().hop_seconds(),
                                seconds[i]));
  return out;
}

Prediction Model::State::align(const learn::Sequence& sequence, double seconds,
                               std::string_view order, const std::string& optional) {
  const Alphabet& labels = loaded.model().labels;
  const double hop = loaded.extractor().hop_seconds();
  std::optional<std::int32_t> between;
  if (!optional.empty()) between = learn::optional_label(optional, labels);
  const semicrf::LabelOrders orders = learn::parse_orders(order, "the order", labels, between);
  learn::check_frames(orders, loaded.rules(), sequence.frames(), hop, sequence.id);
  const std::lock_guard lock(mutex);
  return prediction_of(loaded.align({sequence}, {orders}).front(), labels, hop, seconds);
}

learn::Sequence Model::State::sequence_of(const Tensor& values, const std::string& name) const {
  data::check_size(static_cast<double>(values.shape().at(0)),
                   static_cast<double>(values.shape().at(1)), name);
  data::check_finite(values, name);
  return loaded.sequence_of(name, loaded.extractor().extract_values(values, name));
}

learn::Sequence Model::State::sequence_of(const Audio& audio) const {
  data::check_finite(audio);
  const FeatureExtractor& extractor = loaded.extractor();
  return loaded.sequence_of(audio.source,
                            extractor.extract(resample(audio, extractor.config().sample_rate)));
}

Model Model::load(const std::filesystem::path& path, const Context& context,
                  const std::string& channel) {
  return Model(std::make_shared<State>(learn::open_model(path, channel, "channel"), context));
}

Model Model::of(const ModelParts& parts, const Context& context) {
  return Model(std::make_shared<State>(learn::model_of(parts), context));
}

void Model::save(const std::filesystem::path& path, bool overwrite) const {
  learn::save_model(state_->loaded.model(), path, overwrite);
}

Model Model::on(const Context& context) const {
  return Model(std::make_shared<State>(state_->loaded.model(), context));
}

const Alphabet& Model::labels() const { return state_->loaded.model().labels; }
const FeatureConfig& Model::features() const { return state_->loaded.extractor().config(); }
double Model::hop_seconds() const { return state_->loaded.extractor().hop_seconds(); }
const std::string& Model::head() const { return state_->head; }
std::int64_t Model::max_duration() const {
  const learn::ModelConfig& config = state_->loaded.model().config.model;
  return config.head == learn::HeadKind::kSemiMarkov ? config.max_duration : 1;
}
std::vector<std::pair<std::string, Tensor>> Model::parameters() const {
  const learn::TrainedModel& model = state_->loaded.model();
  const learn::Segmenter segmenter(model.config.model);
  std::vector<std::pair<std::string, Tensor>> all;
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    all.emplace_back(segmenter.parameters()[i].name, model.parameters[i]);
  return all;
}
std::vector<std::pair<std::string, Tensor>> Model::constants() const {
  return learn::Segmenter(state_->loaded.model().config.model).constants();
}
std::int64_t Model::parameter_count() const { return state_->parameters; }
const std::string& Model::configuration() const { return state_->configuration; }

Prediction Model::decode(const Audio& audio, const InferenceOptions& options) const {
  return std::move(decode(std::span(&audio, 1), options).front());
}

std::vector<Prediction> Model::decode(std::span<const Audio> recordings,
                                      const InferenceOptions& options) const {
  std::vector<learn::Sequence> sequences(recordings.size());
  pool_of(state_->context).run(std::ssize(recordings), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    sequences[at] = state_->sequence_of(recordings[at]);
  });
  std::vector<double> seconds;
  for (const Audio& audio : recordings) seconds.push_back(audio.seconds());
  return state_->decode(sequences, seconds, options);
}

std::vector<Prediction> Model::decode_values(std::span<const Tensor> recordings,
                                             const InferenceOptions& options) const {
  std::vector<learn::Sequence> sequences;
  std::vector<double> seconds;
  for (std::size_t i = 0; i < recordings.size(); ++i) {
    const std::string name =
        recordings.size() == 1 ? "the recording" : fmt::format("recording {}", i);
    sequences.push_back(state_->sequence_of(recordings[i], name));
    seconds.push_back(static_cast<double>(recordings[i].shape()[0]) * hop_seconds());
  }
  return state_->decode(sequences, seconds, options);
}

namespace {

/// The features of a file, and its length in seconds.
std::pair<learn::Sequence, double> read_sequence(const learn::LoadedModel& loaded,
                                                 const std::filesystem::path& path) {
  Recording recording;
  recording.audio = path;
  RecordingFeatures read = read_features(recording, loaded.extractor());
  return {loaded.sequence_of(path.string(), std::move(read.features)), read.seconds};
}

}  // namespace

Prediction Model::decode_file(const std::filesystem::path& path,
                              const InferenceOptions& options) const {
  const auto [sequence, seconds] = read_sequence(state_->loaded, path);
  return std::move(state_->decode({sequence}, {seconds}, options).front());
}

Prediction Model::align(const Audio& audio, std::string_view order,
                        const std::string& optional) const {
  return state_->align(state_->sequence_of(audio), audio.seconds(), order, optional);
}

Prediction Model::align_values(const Tensor& values, std::string_view order,
                               const std::string& optional) const {
  const learn::Sequence sequence = state_->sequence_of(values, "the recording");
  return state_->align(sequence, static_cast<double>(values.shape()[0]) * hop_seconds(), order,
                       optional);
}

Prediction Model::align_file(const std::filesystem::path& path, std::string_view order,
                             const std::string& optional) const {
  const auto [sequence, seconds] = read_sequence(state_->loaded, path);
  return state_->align(sequence, seconds, order, optional);
}

}  // namespace segfuse
