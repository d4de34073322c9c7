// segfuse._native: trained models on the caller's samples; training and evaluation of files.

#include "models.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "arrays.h"
#include "engines.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "segfuse/model.h"
#include "segfuse/train.h"

namespace segfuse::python {
namespace {

using namespace nb::literals;
using Samples = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;  // (N) or (N, channels)

/// The process's context with these choices. Equal choices are one context, so that any number of
/// models share their threads and devices; a child made by fork has contexts of its own. To be
/// called with the GIL.
Context context_for(const std::string& device, bool quiet) {
  using Choice = std::tuple<int, std::string, int, bool>;
  static auto* const contexts = new std::map<Choice, Context>;  // an inherited one never ends
  const int threads = CpuEngine::instance().threads_wanted();
  const auto [found, added] = contexts->try_emplace({generation(), device, threads, quiet});
  if (added) {
    Options options = Context::process_default().options();
    if (!device.empty()) options.set_text("device", device, "device");
    if (threads > 0) options.set(options::kThreads, std::int64_t{threads});
    options.set(options::kQuiet, quiet);
    found->second = Context(std::move(options));
  }
  return found->second;
}

/// A model on a context of the process that calls. To be used with the GIL.
class LoadedModel {
 public:
  LoadedModel(const std::filesystem::path& path, std::string device, const std::string& channel)
      : device_(std::move(device)) {
    const Context context = context_for(device_, true);
    const nb::gil_scoped_release release;
    state_ = std::make_unique<State>(context, Model::load(path, context, channel));
  }
  /// One that was trained elsewhere.
  LoadedModel(const ModelParts& parts, std::string device) : device_(std::move(device)) {
    const Context context = context_for(device_, true);
    const nb::gil_scoped_release release;
    state_ = std::make_unique<State>(context, Model::of(parts, context));
  }
  ~LoadedModel() { leave_what_was_inherited(); }
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const Model& model() const { return state_->model; }

  /// Calls call(model) without the GIL.
  template <class Call>
  auto run(const Call& call) {
    const Context context = context_for(device_, true);
    if (context != state_->context) {  // other threads are wanted, or this is a child
      Model moved = state_->model.on(context);
      leave_what_was_inherited();
      state_ = std::make_unique<State>(context, std::move(moved));
    }
    const Model model = state_->model;  // another thread may replace it meanwhile
    const nb::gil_scoped_release release;
    return call(model);
  }

 private:
  struct State {
    State(Context on, Model loaded) : context(std::move(on)), model(std::move(loaded)) {}
    Context context;
    Model model;
    int born = generation();
  };

  /// Its threads cannot be waited for.
  void leave_what_was_inherited() {
    if (state_ && state_->born != generation()) (void)state_.release();
  }

  std::string device_;
  std::unique_ptr<State> state_;
};

Audio audio_of(const Samples& samples, int rate, const std::string& source) {
  Audio audio;
  audio.sample_rate = rate;
  audio.source = source;
  audio.channels = audio.stacked = samples.ndim() == 2 ? static_cast<int>(samples.shape(1)) : 1;
  audio.samples.assign(samples.data(), samples.data() + samples.size());
  return audio;
}

/// A NumPy array that owns what a tensor of float32 holds; None for one without elements.
nb::object array_of(const Tensor& tensor) {
  if (tensor.size() == 0) return nb::none();
  const std::span<const float> values = tensor.span<float>();
  nb::object flat = to_numpy(std::vector<float>(values.begin(), values.end()));
  nb::list shape;
  for (const std::int64_t extent : tensor.shape()) shape.append(extent);
  return flat.attr("reshape")(shape);
}

/// The trained parameters and their names.
nb::dict parameters_of(const LoadedModel& loaded) {
  nb::dict all;
  for (const auto& [name, tensor] : loaded.model().parameters())
    all[name.c_str()] = array_of(tensor);
  return all;
}

/// What the encoder needs and no step changed: those of float32, as a module's buffers.
nb::dict constants_of(const LoadedModel& loaded) {
  nb::dict all;
  for (const auto& [name, tensor] : loaded.model().constants())
    if (tensor.dtype() == DType::kF32) all[name.c_str()] = array_of(tensor);
  return all;
}

nb::list lists_of(const std::vector<ScoredAnnotation>& annotations) {
  nb::list out;
  for (const ScoredAnnotation& one : annotations) {
    nb::list segments;
    for (const LabelSegment& s : one.annotation.segments)
      segments.append(nb::make_tuple(s.start, s.end, s.label));
    out.append(nb::make_tuple(one.log_probability, segments));
  }
  return out;
}

nb::tuple tuple_of(const Prediction& prediction) {
  nb::list segments;
  for (const PredictedSegment& s : prediction.segments)
    segments.append(nb::make_tuple(s.start, s.end, s.label, s.posterior, s.label_posterior,
                                   s.start_confidence));
  return nb::make_tuple(segments, prediction.seconds, prediction.log_probability,
                        lists_of(prediction.best), lists_of(prediction.samples),
                        array_of(prediction.label_posteriors),
                        array_of(prediction.boundary_posteriors));
}

/// Rows of values: (T), or (T, D).
Tensor values_of(const Samples& rows) {
  const std::vector<float> copy(rows.data(), rows.data() + rows.size());
  const auto count = static_cast<std::int64_t>(rows.shape(0));
  return Tensor::from(copy,
                      {count, rows.ndim() == 2 ? static_cast<std::int64_t>(rows.shape(1)) : 1});
}

/// Of a model of audio `rate` is that of the samples in Hz; one of values knows its own.
nb::list decode(LoadedModel& loaded, const std::vector<Samples>& samples, int rate,
                const std::string& source, const InferenceOptions& options) {
  std::vector<Audio> recordings;
  std::vector<Tensor> values;
  const bool are_values = loaded.model().features().kind == FeatureKind::kValues;
  for (const Samples& one : samples) {
    if (are_values)
      values.push_back(values_of(one));
    else
      recordings.push_back(audio_of(one, rate, source));
  }
  const std::vector<Prediction> found = loaded.run([&](const Model& model) {
    return are_values ? model.decode_values(values, options) : model.decode(recordings, options);
  });
  nb::list out;
  for (const Prediction& one : found) out.append(tuple_of(one));
  return out;
}

nb::tuple decode_file(LoadedModel& loaded, const std::filesystem::path& path,
                      const InferenceOptions& options) {
  return tuple_of(loaded.run([&](const Model& model) { return model.decode_file(path, options); }));
}

/// As decode() takes them: samples with their rate, or values.
nb::tuple align(LoadedModel& loaded, const Samples& samples, int rate, const std::string& order,
                const std::string& optional) {
  const bool are_values = loaded.model().features().kind == FeatureKind::kValues;
  if (are_values) {
    const Tensor values = values_of(samples);
    return tuple_of(loaded.run(
        [&](const Model& model) { return model.align_values(values, order, optional); }));
  }
  const Audio audio = audio_of(samples, rate, "the recording");
  return tuple_of(
      loaded.run([&](const Model& model) { return model.align(audio, order, optional); }));
}

nb::tuple align_file(LoadedModel& loaded, const std::filesystem::path& path,
                     const std::string& order, const std::string& optional) {
  return tuple_of(
      loaded.run([&](const Model& model) { return model.align_file(path, order, optional); }));
}

nb::list tuples_of(const std::vector<LabelSegment>& segments) {
  nb::list out;
  for (const LabelSegment& s : segments) out.append(nb::make_tuple(s.start, s.end, s.label));
  return out;
}

/// A recording that is decoded as it arrives, in the process that began it.
class Stream {
 public:
  Stream(LoadedModel& loaded, std::optional<double> lookahead)
      : are_values_(loaded.model().features().kind == FeatureKind::kValues),
        live_(loaded.run([&](const Model& model) {
          return std::make_unique<LiveDecoder>(model, LiveOptions{lookahead});
        })) {}
  ~Stream() {
    if (born_ != generation()) (void)live_.release();  // its threads cannot be waited for
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// As decode() takes them.
  nb::list push(const Samples& samples, int rate) {
    check_process();
    Audio audio;
    Tensor values;
    if (are_values_)
      values = values_of(samples);
    else
      audio = audio_of(samples, rate, "the stream");
    return tuples_of(
        call([&] { return are_values_ ? live_->push_values(values) : live_->push(audio); }));
  }
  nb::list finish() {
    check_process();
    return tuples_of(call([&] { return live_->finish(); }));
  }
  double seconds() const { return live_->seconds(); }

 private:
  void check_process() const {
    if (born_ != generation())
      throw UsageError(
          "the stream was started before fork(), in the parent process; start another one here");
  }
  template <class Call>
  static std::vector<LabelSegment> call(const Call& work) {
    const nb::gil_scoped_release release;
    return work();
  }

  bool are_values_;
  std::unique_ptr<LiveDecoder> live_;
  int born_ = generation();
};

/// A C-contiguous array of NumPy, copied.
Tensor tensor_of(const nb::handle& array) {
  const auto text = nb::cast<std::string>(nb::str(array.attr("dtype").attr("name")));
  const std::map<std::string, DType> types = {{"bool", DType::kBool},   {"int32", DType::kI32},
                                              {"int64", DType::kI64},   {"float16", DType::kF16},
                                              {"float32", DType::kF32}, {"float64", DType::kF64}};
  const auto type = types.find(text);
  if (type == types.end()) throw UsageError("an array has the type " + text);
  Shape shape;
  for (const nb::handle extent : array.attr("shape"))
    shape.push_back(nb::cast<std::int64_t>(extent));
  Tensor tensor(type->second, shape);
  const auto bytes = nb::cast<nb::bytes>(array.attr("tobytes")());
  if (bytes.size() != tensor.bytes()) throw UsageError("an array has gaps in memory");
  std::memcpy(tensor.data(), bytes.c_str(), bytes.size());
  return tensor;
}

std::vector<std::pair<std::string, Tensor>> tensors_of(const nb::handle& arrays) {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& [name, array] : nb::cast<nb::dict>(arrays))
    all.emplace_back(nb::cast<std::string>(name), tensor_of(array));
  return all;
}

/// The attributes of segfuse.torch's Traced, which are those of Encoder.
Encoder encoder_of(const nb::handle& traced) {
  Encoder encoder;
  encoder.name = nb::cast<std::string>(traced.attr("name"));
  encoder.training = nb::cast<std::string>(traced.attr("training"));
  encoder.inference = nb::cast<std::string>(traced.attr("inference"));
  encoder.parameters = tensors_of(traced.attr("parameters"));
  encoder.constants = tensors_of(traced.attr("constants"));
  encoder.stride = nb::cast<std::int64_t>(traced.attr("stride"));
  encoder.scores = nb::cast<bool>(traced.attr("scores"));
  encoder.most_steps = nb::cast<std::int64_t>(traced.attr("most_steps"));
  return encoder;
}

/// Calls a function of Python, which has to outlive it: it may be copied without the GIL.
EncoderSource encoder_source(const nb::handle trace) {
  if (trace.is_none()) return {};
  return [trace](std::int64_t columns, const std::vector<std::string>& labels) {
    const nb::gil_scoped_acquire acquire;
    return encoder_of(trace(columns, labels));
  };
}

/// `crf` has the scores by name; empty: a softmax. `trace` outlives the call.
LoadedModel* model_of(const nb::handle trace, const std::vector<std::string>& labels,
                      const std::vector<std::string>& settings, std::int64_t channels,
                      const nb::dict& crf, const std::string& device) {
  ModelParts parts;
  parts.encoder = encoder_source(trace);
  parts.labels = labels;
  parts.settings = settings;
  parts.channels = channels;
  for (const auto& [name, tensor] : tensors_of(crf)) {
    if (name == "transition") parts.transition = tensor;
    if (name == "duration") parts.duration = tensor;
    if (name == "initial") parts.initial = tensor;
    if (name == "final") parts.final = tensor;
  }
  return new LoadedModel(parts, device);
}

/// Name, array, segments as (start, end, label), the split or nothing, and the group or nothing of
/// a recording.
using Given = std::tuple<std::string, Samples, std::vector<std::tuple<double, double, std::string>>,
                         std::string, std::string>;

std::optional<Split> split_of(const std::string& name) {
  for (const Split one : {Split::kTrain, Split::kDev, Split::kTest})
    if (name == name_of(one)) return one;
  return std::nullopt;
}

/// `rate` is that of samples of audio; 0: they are values.
std::vector<Recording> held_recordings(const std::vector<Given>& given, int rate) {
  std::vector<HeldRecording> all;
  for (const auto& [name, array, segments, split, group] : given) {
    HeldRecording& one = all.emplace_back();
    one.name = name;
    if (rate > 0)
      one.content = audio_of(array, rate, name);
    else
      one.content = values_of(array);
    for (const auto& [start, end, label] : segments)
      one.labels.push_back({start, end, label, static_cast<std::int64_t>(one.labels.size())});
    one.split = split_of(split);
    one.group = group;
  }
  return hold(std::move(all));
}

/// With a plan: the configuration follows from the data.
void plan(TrainOptions& options, const nb::dict& plan) {
  FolderOptions how;
  how.preset = nb::cast<std::string>(plan["preset"]);
  how.tier = nb::cast<std::string>(plan["tier"]);
  how.group = nb::cast<std::string>(plan["group"]);
  how.frame_rate = nb::cast<std::optional<double>>(plan["frame_rate"]);
  how.has_arguments = true;
  const nb::gil_scoped_release release;
  plan_training(options, how);
  if (options.context.options().get(options::kQuiet)) options.introduction.clear();
}

/// `kind` is what a directory is called that nobody named.
TrainOptions training_options(const std::filesystem::path& config,
                              const std::vector<std::string>& overrides,
                              const std::filesystem::path& data, const std::filesystem::path& out,
                              const std::vector<Given>& recordings, const nb::dict& how,
                              const std::string& kind) {
  TrainOptions options;
  options.config = config;
  options.overrides = overrides;
  options.data = data.string();
  options.out = out.empty() ? free_output_folder(config, kind) : out;
  options.recordings = held_recordings(recordings, nb::cast<int>(how["sample_rate"]));
  options.resume = nb::cast<bool>(how["resume"]);
  options.overwrite = nb::cast<bool>(how["overwrite"]);
  options.compare = nb::cast<bool>(how["compare"]);
  options.context = context_for(nb::cast<std::string>(how["device"]), nb::cast<bool>(how["quiet"]));
  options.encoder = encoder_source(how["encoder"]);
  if (how.contains("plan")) plan(options, nb::cast<nb::dict>(how["plan"]));
  return options;
}

using TextAndPath = std::pair<std::string, std::filesystem::path>;

/// The text of metrics.json, and the directory.
TextAndPath run_training(const std::filesystem::path& config,
                         const std::vector<std::string>& overrides,
                         const std::filesystem::path& data, const std::filesystem::path& out,
                         const std::vector<Given>& recordings, const nb::dict& how) {
  const TrainOptions options =
      training_options(config, overrides, data, out, recordings, how, "model");
  const nb::gil_scoped_release release;
  return {train(options).json, options.out};
}

/// The text of study.json, and the directory.
TextAndPath run_study(const std::filesystem::path& config,
                      const std::vector<std::string>& overrides, const std::filesystem::path& data,
                      const std::filesystem::path& out, const std::vector<Given>& recordings,
                      const nb::dict& how, const nb::dict& runs) {
  StudyOptions options{training_options(config, overrides, data, out, recordings, how, "study"),
                       nb::cast<std::vector<double>>(runs["shares"]),
                       nb::cast<std::int64_t>(runs["folds"]), nb::cast<std::int64_t>(runs["seeds"]),
                       nb::cast<std::vector<std::string>>(runs["search"])};
  const nb::gil_scoped_release release;
  return {study(options), options.training.out};
}

std::string run_evaluation(const std::filesystem::path& model, const std::filesystem::path& data,
                           const std::string& split, const std::filesystem::path& out,
                           bool overwrite, const std::string& device) {
  EvaluateOptions options;
  options.model = model;
  options.data = data.string();
  options.split = split_of(split);
  options.out = out;
  options.overwrite = overwrite;
  options.context = context_for(device, true);
  const nb::gil_scoped_release release;
  return evaluate(options).json;
}

}  // namespace

void bind_models(nb::module_& m) {
  nb::class_<InferenceOptions>(m, "InferenceOptions")
      .def(
          "__init__",
          [](InferenceOptions* self, bool minimum_risk, bool posteriors, std::int64_t k_best,
             std::int64_t samples, std::uint64_t seed) {
            new (self) InferenceOptions{minimum_risk, posteriors, k_best, samples, seed};
          },
          "minimum_risk"_a, "posteriors"_a, "k_best"_a, "samples"_a, "seed"_a);
  nb::class_<LoadedModel>(m, "Model")
      .def(nb::init<const std::filesystem::path&, std::string, const std::string&>(), "path"_a,
           "device"_a, "channel"_a)
      .def_static("of", &model_of, nb::rv_policy::take_ownership, "trace"_a.none(), "labels"_a,
                  "settings"_a, "channels"_a, "crf"_a, "device"_a)
      .def(
          "save",
          [](const LoadedModel& l, const std::filesystem::path& path, bool overwrite) {
            l.model().save(path, overwrite);
          },
          "path"_a, "overwrite"_a)
      .def_prop_ro("labels", [](const LoadedModel& l) { return l.model().labels().labels(); })
      .def_prop_ro("sample_rate",
                   [](const LoadedModel& l) { return l.model().features().sample_rate; })
      .def_prop_ro("kind", [](const LoadedModel& l) { return name_of(l.model().features().kind); })
      .def_prop_ro("channel", [](const LoadedModel& l) { return l.model().features().channel; })
      .def_prop_ro("hop_seconds", [](const LoadedModel& l) { return l.model().hop_seconds(); })
      .def_prop_ro("head", [](const LoadedModel& l) { return l.model().head(); })
      .def_prop_ro("max_duration", [](const LoadedModel& l) { return l.model().max_duration(); })
      .def_prop_ro("parameter_count",
                   [](const LoadedModel& l) { return l.model().parameter_count(); })
      .def_prop_ro("parameters", &parameters_of)
      .def_prop_ro("constants", &constants_of)
      .def_prop_ro("configuration", [](const LoadedModel& l) { return l.model().configuration(); })
      .def("decode", &decode, "samples"_a, "sample_rate"_a, "source"_a, "options"_a)
      .def("decode_file", &decode_file, "path"_a, "options"_a)
      .def("align", &align, "samples"_a, "sample_rate"_a, "order"_a, "optional"_a)
      .def("align_file", &align_file, "path"_a, "order"_a, "optional"_a);
  nb::class_<Stream>(m, "Stream")
      .def(nb::init<LoadedModel&, std::optional<double>>(), "model"_a, "lookahead"_a.none())
      .def("push", &Stream::push, "samples"_a, "sample_rate"_a)
      .def("finish", &Stream::finish)
      .def_prop_ro("seconds", &Stream::seconds);
  m.def("train", &run_training, "config"_a, "overrides"_a, "data"_a, "out"_a, "recordings"_a,
        "how"_a);
  m.def("study", &run_study, "config"_a, "overrides"_a, "data"_a, "out"_a, "recordings"_a, "how"_a,
        "runs"_a);
  m.def("evaluate", &run_evaluation, "model"_a, "data"_a, "split"_a, "out"_a, "overwrite"_a,
        "device"_a);
}

}  // namespace segfuse::python
