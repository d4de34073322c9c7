#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "base/log.h"
#include "base/os/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "learn/train/alternatives.h"
#include "learn/train/experiment.h"
#include "learn/train/report_builder.h"
#include "segfuse/error.h"
#include "segfuse/options.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string today() {
  const std::time_t t = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(t));
}

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw FileError(path, "make the directory", error.value());
}

/// The test recording that shows the model as it is: the one with the median error.
const learn::ReportRecording* typical(const learn::ReportData& report) {
  std::vector<const learn::ReportRecording*> order;
  for (const learn::ReportRecording& r : report.recordings) order.push_back(&r);
  if (order.empty()) return nullptr;
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->label_error_rate < b->label_error_rate;
  });
  return order[order.size() / 2];
}

void write_pictures(const fs::path& out, const learn::ReportData& report) {
  write_file_atomically(out / "report.html", learn::render_report(report));
  const learn::ReportRecording* shown = typical(report);
  if (shown == nullptr) return;
  learn::SequencePicture picture;
  picture.to = std::min(shown->seconds, 3.0);
  write_file_atomically(out / "sequence.svg",
                        learn::render_sequence_svg(*shown, report.labels, picture));
}

// --- decoding ----------------------------------------------------------------------------------

struct OutputFormat {
  std::string extension;
  LabelFormat format;
};

OutputFormat output_format(const std::string& name) {
  static const std::map<std::string, OutputFormat> formats = {
      {"textgrid", {".TextGrid", LabelFormat::kTextGrid}},
      {"csv", {".csv", LabelFormat::kCsv}},
      {"phn", {".phn", LabelFormat::kPhn}},
      {"lab", {".lab", LabelFormat::kFestvox}},
      {"audacity", {".txt", LabelFormat::kAudacity}}};
  const auto found = formats.find(name);
  if (found == formats.end())
    throw UsageError("there is no label format '{}'; use textgrid, csv, phn, lab or audacity",
                     name);
  return found->second;
}

bool looks_like_audio(const fs::path& path) {
  static const std::set<std::string> known = {".wav", ".flac", ".sph", ".nist"};
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return known.contains(extension);
}

/// Files as they are; of directories the audio files in them, sorted by name.
std::vector<fs::path> audio_files(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    if (!fs::exists(input)) throw DataError("{}: no such file or directory", input.string());
    if (!fs::is_directory(input)) {
      files.push_back(input);
      continue;
    }
    std::vector<fs::path> inside;
    for (const auto& entry : fs::directory_iterator(input))
      if (entry.is_regular_file() && looks_like_audio(entry.path())) inside.push_back(entry.path());
    if (inside.empty())
      throw DataError("{}: no audio files (.wav, .flac, .sph, .nist) in this directory",
                      input.string());
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  std::map<std::string, fs::path> names;
  for (const fs::path& file : files) {
    const auto [former, fresh] = names.emplace(file.stem().string(), file);
    if (!fresh)
      throw UsageError("{} and {} would be written to the same label file; decode them apart",
                       former->second.string(), file.string());
  }
  return files;
}

/// The files that were asked for beside a recording's labels.
void write_extras(const DecodeOptions& options, const fs::path& file, const learn::Decoded& decoded,
                  const Alphabet& labels, double hop, double seconds) {
  const std::string stem = (options.out / file.stem()).string();
  if (options.k_best > 0 || options.samples > 0)
    write_file_atomically(stem + ".json", learn::alternatives_json(decoded, labels, hop, seconds));
  if (options.posteriors)
    write_file_atomically(stem + ".frames.csv", learn::posteriors_csv(decoded, labels, hop));
}

/// One portion of files, so that memory stays bounded.
void decode_portion(std::span<const fs::path> files, const learn::TrainedModel& model,
                    learn::Decoder& decoder, const DecodeOptions& options, ThreadPool& pool,
                    std::vector<DecodedFile>& results) {
  const OutputFormat format = output_format(options.format);
  const FeatureExtractor extractor(model.config.features);
  std::vector<learn::Sequence> sequences(files.size());
  std::vector<double> seconds(files.size());
  pool.run(static_cast<std::int64_t>(files.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    const Audio audio = read_audio(files[at]);
    seconds[at] = audio.seconds();
    Tensor features = extractor.extract(audio);
    model.normalisation.apply(features);
    sequences[at] = {files[at].string(), std::move(features), {}};
  });
  learn::Decoder::Options how;
  how.tolerance_frames =
      static_cast<std::int64_t>(model.config.tolerances.front() / extractor.hop_seconds() + 1e-9);
  how.minimum_risk = options.minimum_risk;
  how.k_best = options.k_best;
  how.samples = options.samples;
  how.seed = options.seed;
  how.frame_posteriors = options.posteriors;
  const std::vector<learn::Decoded> decoded = decoder.decode(sequences, how);
  for (std::size_t i = 0; i < files.size(); ++i) {
    LabelOutput output;
    output.format = format.format;
    output.sample_rate = model.config.features.sample_rate;
    SegmentColumn posterior{"posterior", {}};
    SegmentColumn label{"label_posterior", {}};
    SegmentColumn start{"start_confidence", {}};
    for (const learn::DecodedSegment& d : decoded[i].segments) {
      posterior.values.push_back(d.posterior);
      label.values.push_back(d.label_posterior);
      start.values.push_back(d.start_confidence);
    }
    output.columns = {posterior, label, start};
    if (!decoded[i].segments.empty() && std::isnan(start.values.front())) output.columns.pop_back();
    DecodedFile result{files[i], options.out / files[i].stem(), seconds[i],
                       static_cast<std::int64_t>(decoded[i].segments.size()),
                       decoded[i].log_probability};
    result.labels += format.extension;
    write_labels(result.labels,
                 to_annotation(decoded[i], model.labels, extractor.hop_seconds(), seconds[i]),
                 output);
    write_extras(options, files[i], decoded[i], model.labels, extractor.hop_seconds(), seconds[i]);
    results.push_back(result);
  }
}

fs::path model_path(const fs::path& given) {
  return fs::is_directory(given) ? given / "model.safetensors" : given;
}

}  // namespace

std::string train(const TrainOptions& options) {
  const double begin = now();
  learn::TrainConfig config = learn::read_train_config(options.config, options.overrides);
  if (!options.data.empty()) config.data.path = options.data;
  if (options.out.empty()) throw UsageError("no output directory was given; pass --out DIR");
  make_directory(options.out);
  ThreadPool pool(options.threads);
  learn::Corpus corpus = learn::load_corpus(config, pool, options.quiet);

  std::vector<learn::HeadKind> heads{config.model.head};
  if (options.compare)
    for (const auto head :
         {learn::HeadKind::kSemiMarkov, learn::HeadKind::kLinearChain, learn::HeadKind::kSoftmax})
      if (head != config.model.head) heads.push_back(head);
  std::vector<learn::System> systems;
  for (const learn::HeadKind head : heads) {
    const fs::path out = systems.empty() ? options.out : options.out / name_of(head);
    make_directory(out);
    learn::TrainerOptions trainer;
    trainer.checkpoint = out / "checkpoint.safetensors";
    trainer.resume = options.resume;
    trainer.quiet = options.quiet;
    trainer.execution = engine::default_executor_options();
    trainer.name_offender = default_options().get(options::kCheckNumerics) != "off";
    if (options.reference) trainer.execution.backend = engine::Backend::kReference;
    trainer.name = "training " + name_of(head);
    learn::Corpus copy = corpus;  // heads cut the gold segments differently
    systems.push_back(learn::run_system(config, head, copy, pool, trainer));
    learn::write_model(out / "model.safetensors", systems.back().model);
  }
  const double seconds = now() - begin;
  std::string metrics = learn::metrics_json(config, corpus, systems, seconds, pool.size());
  write_pictures(options.out,
                 learn::build_report(config, corpus, systems, seconds, pool.size(), today()));
  write_file_atomically(options.out / "metrics.json", metrics);
  return metrics;
}

std::string evaluate(const EvaluateOptions& options) {
  if (!std::set<std::string>{"train", "dev", "test", "all"}.contains(options.split))
    throw UsageError("there is no split '{}'; use train, dev, test or all", options.split);
  const learn::TrainedModel model = learn::read_model(model_path(options.model));
  ThreadPool pool(options.threads);
  const std::string data = options.data.empty() ? model.config.data.path : options.data;
  const learn::LabelledSet set =
      learn::load_labelled(model, data, options.split, pool, options.quiet);
  const learn::Evaluation evaluation = learn::evaluate_model(pool, model, set);
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(evaluation.metrics.to_json());
  json["model"] = options.model.string();
  json["data"] = data;
  json["split"] = options.split;
  json["decode_seconds"] = evaluation.decode_seconds;
  const std::string text = json.dump(2) + "\n";
  if (!options.out.empty()) {
    make_directory(options.out);
    write_pictures(options.out, learn::build_report(model, set, evaluation, data, today()));
    write_file_atomically(options.out / "metrics.json", text);
  }
  return text;
}

std::vector<DecodedFile> decode(const DecodeOptions& options) {
  constexpr std::size_t kPortion = 64;
  (void)output_format(options.format);
  if (options.inputs.empty())
    throw UsageError("no recordings were given; name audio files or directories of them");
  if (options.out.empty()) throw UsageError("no output directory was given; pass --out DIR");
  if (options.k_best < 0 || options.samples < 0)
    throw UsageError("--k-best and --samples are numbers from 0 on, not {} and {}", options.k_best,
                     options.samples);
  const learn::TrainedModel model = learn::read_model(model_path(options.model));
  const std::vector<fs::path> files = audio_files(options.inputs);
  make_directory(options.out);
  ThreadPool pool(options.threads);
  learn::Decoder decoder(pool, learn::Segmenter(model.config.model), model.parameters,
                         model.duration_limit, engine::default_executor_options());
  Progress progress("decoding", static_cast<std::int64_t>(files.size()), {.quiet = options.quiet});
  std::vector<DecodedFile> results;
  for (std::size_t i = 0; i < files.size(); i += kPortion) {
    const std::size_t count = std::min(kPortion, files.size() - i);
    decode_portion(std::span(files).subspan(i, count), model, decoder, options, pool, results);
    progress.advance(static_cast<std::int64_t>(count));
  }
  return results;
}

}  // namespace segfuse
