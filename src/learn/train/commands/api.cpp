#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "base/console/progress.h"
#include "base/context/pool.h"
#include "base/os/file.h"
#include "base/outputs.h"
#include "learn/train/commands/experiment.h"
#include "learn/train/commands/report_builder.h"
#include "learn/train/commands/report_files.h"
#include "learn/train/decode/alternatives.h"
#include "learn/train/files/run_folder.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw FileError(path, "make the directory", error.value());
}

// --- decoding ----------------------------------------------------------------------------------

const char* extension_of(LabelFormat format) {
  switch (format) {
    case LabelFormat::kTextGrid: return ".TextGrid";
    case LabelFormat::kCsv: return ".csv";
    case LabelFormat::kPhn: return ".phn";
    case LabelFormat::kFestvox:
    case LabelFormat::kHtk: return ".lab";
    case LabelFormat::kAudacity: return ".txt";
    case LabelFormat::kAuto: break;
  }
  throw UsageError("no label format was chosen; name one, as LabelFormat::kTextGrid");
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
    if (!path_exists(input))
      throw DataError(fmt::format("{}: no such file or directory", input.string()));
    if (!path_is_directory(input)) {
      files.push_back(input);
      continue;
    }
    std::vector<fs::path> inside;
    std::error_code failure;
    for (const fs::path& path : list_directory(input))
      if (looks_like_audio(path) && fs::is_regular_file(path, failure)) inside.push_back(path);
    if (inside.empty())
      throw DataError(fmt::format("{}: no audio files (.wav, .flac, .sph, .nist) in this directory",
                                  input.string()));
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

/// The files of a recording: its labels, and what was asked for beside them (else empty).
struct DecodedPaths {
  DecodedPaths(const DecodeOptions& options, const fs::path& file) {
    const std::string stem = (options.out / file.stem()).string();
    labels = stem + extension_of(options.format);
    if (options.k_best > 0 || options.samples > 0) alternatives = stem + ".json";
    if (options.posteriors) posteriors = stem + ".frames.csv";
  }
  std::vector<fs::path> wanted() const {
    std::vector<fs::path> paths;
    for (const fs::path& path : {labels, alternatives, posteriors})
      if (!path.empty()) paths.push_back(path);
    return paths;
  }
  fs::path labels, alternatives, posteriors;
};

/// What is to be done, and with `resume` what was done before.
std::vector<DecodedFile> start_files(const DecodeOptions& options,
                                     const std::vector<fs::path>& files) {
  std::vector<DecodedFile> results;
  for (const fs::path& audio : files) {
    const DecodedPaths paths(options, audio);
    DecodedFile& file = results.emplace_back();
    file.audio = audio;
    file.labels = paths.labels;
    std::error_code failure;
    file.skipped = options.resume && std::ranges::all_of(paths.wanted(), [&](const fs::path& path) {
                     return fs::is_regular_file(path, failure);
                   });
  }
  return results;
}

/// Refuses files that would replace each other or something of the user's, before any is written.
/// `all` may have some that are not to be done.
void announce_decoded(Outputs& outputs, const DecodeOptions& options,
                      const std::vector<fs::path>& all, const std::vector<DecodedFile>& todo) {
  Outputs names;
  for (const fs::path& file : all)
    for (const fs::path& path : DecodedPaths(options, file).wanted())
      names.announce(path, file.string());
  for (const DecodedFile& file : todo) {
    if (file.skipped) continue;
    for (const fs::path& path : DecodedPaths(options, file.audio).wanted())
      outputs.announce(path, file.audio.string());
  }
  outputs.check();
}

void write_extras(const DecodedPaths& paths, Outputs& outputs, const learn::Decoded& decoded,
                  const Alphabet& labels, double hop, double seconds) {
  if (!paths.alternatives.empty())
    outputs.write(paths.alternatives, learn::alternatives_json(decoded, labels, hop, seconds));
  if (!paths.posteriors.empty())
    outputs.write(paths.posteriors, learn::posteriors_csv(decoded, labels, hop));
}

/// Recordings on their way from files to files.
class Decoding {
 public:
  Decoding(const DecodeOptions& options, const learn::TrainedModel& model, Outputs& outputs)
      : options_(options),
        outputs_(outputs),
        model_(model),
        extractor_(model.config.features),
        decoder_(learn::Segmenter(model.config.model), model.parameters, model.duration_limit,
                 engine::executor_options(options.context)) {
    how_.tolerance_frames = static_cast<std::int64_t>(
        model.config.tolerances.front() / extractor_.hop_seconds() + 1e-9);
    how_.minimum_risk = options.minimum_risk;
    how_.k_best = options.k_best;
    how_.samples = options.samples;
    how_.seed = options.seed;
    how_.frame_posteriors = options.posteriors;
  }

  /// One portion of files, so that memory stays bounded.
  void decode(std::span<DecodedFile> files);

 private:
  /// A recording between its file and its labels.
  struct Item {
    DecodedFile file;
    learn::Sequence sequence;
    learn::Decoded decoded;
  };

  void read(Item& item) const;
  void find_segments(std::vector<Item>& items);
  void write(Item& item) const;

  const DecodeOptions& options_;
  Outputs& outputs_;
  const learn::TrainedModel& model_;
  FeatureExtractor extractor_;
  learn::Decoder decoder_;
  learn::Decoder::Options how_;
};

/// Runs a step of one recording. What is wrong with that recording is kept; what concerns all of
/// them is thrown on.
template <class Step>
void attempt(DecodedFile& file, const Step& step) {
  if (!file.error.empty()) return;
  try {
    step();
  } catch (const FileError& error) {
    const int all[] = {ENOSPC, EDQUOT, EROFS, EFBIG, EIO};
    if (std::ranges::find(all, error.error_number()) != std::end(all)) throw;
    file.error = error.what();
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kData && error.exit_code() != ExitCode::kUsage) throw;
    file.error = error.what();
  }
}

void Decoding::read(Item& item) const {
  AudioOptions how;
  how.channel = extractor_.config().channel;
  const Audio audio = read_audio(item.file.audio, how);
  item.file.seconds = audio.seconds();
  item.sequence = {item.file.audio.string(), extractor_.extract(audio), {}};
  model_.normalisation.apply(item.sequence.features);
}

/// All at once; where that is refused, one by one, to find whose fault it is. A recording's result
/// does not depend on its company.
void Decoding::find_segments(std::vector<Item>& items) {
  std::vector<Item*> whole;
  std::vector<learn::Sequence> sequences;
  for (Item& item : items) {
    if (!item.file.error.empty()) continue;
    whole.push_back(&item);
    sequences.push_back(item.sequence);
  }
  if (whole.empty()) return;
  try {
    std::vector<learn::Decoded> decoded = decoder_.decode(sequences, how_);
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i]->decoded = std::move(decoded[i]);
    return;
  } catch (const DataError&) {
  }
  for (Item* item : whole)
    attempt(item->file, [&] {
      try {
        item->decoded = std::move(decoder_.decode({item->sequence}, how_).front());
      } catch (const DataError& error) {
        throw DataError(fmt::format("{}: the model finds no segmentation: {}",
                                    item->file.audio.string(), error.what()));
      }
    });
}

void Decoding::write(Item& item) const {
  LabelOutput output;
  output.format = options_.format;
  output.sample_rate = model_.config.features.sample_rate;
  SegmentColumn posterior{"posterior", {}};
  SegmentColumn label{"label_posterior", {}};
  SegmentColumn start{"start_confidence", {}};
  for (const learn::DecodedSegment& d : item.decoded.segments) {
    posterior.values.push_back(d.posterior);
    label.values.push_back(d.label_posterior);
    start.values.push_back(d.start_confidence);
  }
  output.columns = {posterior, label, start};
  if (!item.decoded.segments.empty() && std::isnan(start.values.front())) output.columns.pop_back();
  DecodedFile& file = item.file;
  file.segments = static_cast<std::int64_t>(item.decoded.segments.size());
  file.log_probability = item.decoded.log_probability;
  const double hop = extractor_.hop_seconds();
  outputs_.write(
      file.labels,
      format_labels(to_annotation(item.decoded, model_.labels, hop, file.seconds), output));
  write_extras(DecodedPaths(options_, file.audio), outputs_, item.decoded, model_.labels, hop,
               file.seconds);
}

void Decoding::decode(std::span<DecodedFile> files) {
  std::vector<Item> items;
  for (DecodedFile& file : files)
    if (!file.skipped) items.push_back({file, {}, {}});
  pool_of(options_.context).run(std::ssize(items), [&](std::int64_t i) {
    Item& item = items[static_cast<std::size_t>(i)];
    attempt(item.file, [&] { read(item); });
  });
  find_segments(items);
  auto item = items.begin();
  for (DecodedFile& file : files) {
    if (!file.skipped) {
      attempt(item->file, [&] { write(*item); });
      file = item->file;
      ++item;
    }
    if (options_.each) options_.each(file);
  }
}

/// --channel wins over what the model was trained with.
void choose_channel(const std::string& channel, learn::TrainedModel& model) {
  if (channel.empty()) return;
  try {
    model.config.features.channel = audio_channel(channel, "--channel");
  } catch (const DataError& error) {
    throw UsageError(error.what());
  }
}

fs::path model_path(const fs::path& given) {
  return path_is_directory(given) ? given / "model.safetensors" : given;
}

}  // namespace

EvaluateResult evaluate(const EvaluateOptions& options) {
  if (options.allow_commands && options.data.empty())
    throw UsageError(
        "--allow-commands: without --data the manifest is one that the model file names, whose "
        "commands are never run; pass --data PATH");
  learn::TrainedModel model = learn::read_model(model_path(options.model));
  model.config.data.allow_commands = options.allow_commands;
  learn::check_parameters(model, model_path(options.model));
  choose_channel(options.channel, model);
  Outputs outputs(options.overwrite);
  if (!options.out.empty()) {
    if (!options.overwrite && learn::holds_run(options.out))
      throw UsageError(fmt::format(
          "{}: there is a training in this directory, whose metrics and report would be replaced; "
          "name another, or pass --overwrite",
          options.out.string()));
    learn::announce_report(outputs, options.out);
  }
  const std::string data = options.data.empty() ? model.config.data.path : options.data;
  const learn::LabelledSet set = learn::load_labelled(model, data, options.split, options.context);
  const learn::Evaluation evaluation = learn::evaluate_model(model, set, options.context);
  Json json = parse_json(evaluation.metrics.to_json(), "metrics");
  json["model"] = options.model.string();
  json["data"] = data;
  json["split"] = options.split ? name_of(*options.split) : "all";
  json["decode_seconds"] = evaluation.decode_seconds;
  EvaluateResult result{evaluation.metrics, evaluation.decode_seconds, json_text(json, 2) + "\n"};
  if (!options.out.empty()) {
    make_directory(options.out);
    learn::write_report(outputs, options.out,
                        learn::build_report(model, set, evaluation, data, learn::today()),
                        result.json);
  }
  return result;
}

std::vector<DecodedFile> decode(const DecodeOptions& options) {
  constexpr std::size_t kPortion = 64;
  (void)extension_of(options.format);
  if (options.inputs.empty())
    throw UsageError("no recordings were given; name audio files or directories of them");
  if (options.out.empty()) throw UsageError("no output directory was given; pass --out DIR");
  if (options.k_best < 0 || options.samples < 0)
    throw UsageError(fmt::format("--k-best and --samples are numbers from 0 on, not {} and {}",
                                 options.k_best, options.samples));
  learn::TrainedModel model = learn::read_model(model_path(options.model));
  learn::check_parameters(model, model_path(options.model));
  choose_channel(options.channel, model);
  const std::vector<fs::path> files = audio_files(options.inputs);
  Outputs outputs(options.overwrite);
  std::vector<DecodedFile> results = start_files(options, files);
  announce_decoded(outputs, options, files, results);
  make_directory(options.out);
  Decoding decoding(options, model, outputs);
  Progress progress("decoding", static_cast<std::int64_t>(files.size()),
                    {.quiet = options.context.options().get(options::kQuiet)});
  for (std::size_t i = 0; i < results.size(); i += kPortion) {
    const std::size_t count = std::min(kPortion, results.size() - i);
    decoding.decode(std::span(results).subspan(i, count));
    progress.advance(static_cast<std::int64_t>(count));
  }
  return results;
}

void write_outputs(const std::vector<std::pair<std::filesystem::path, std::string>>& files,
                   bool overwrite) {
  Outputs outputs(overwrite);
  for (const auto& [path, content] : files) outputs.announce(path, "the output");
  outputs.check();
  for (const auto& [path, content] : files) outputs.write(path, content);
}

}  // namespace segfuse
