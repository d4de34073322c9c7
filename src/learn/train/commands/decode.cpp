#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <span>

#include "base/console/log.h"
#include "base/console/progress.h"
#include "base/context/pool.h"
#include "base/os/file.h"
#include "base/outputs.h"
#include "learn/data/feature_reader.h"
#include "learn/data/text.h"
#include "learn/train/decode/alternatives.h"
#include "learn/train/decode/loaded_model.h"
#include "learn/train/decode/orders.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

// --- decoding ----------------------------------------------------------------------------------

/// The files of a recording in a folder: its labels, and what was requested beside them (else
/// empty).
struct DecodedPaths {
  DecodedPaths(const DecodeOptions& options, const fs::path& file, const fs::path& folder) {
    const std::string stem = (folder / file.stem()).string();
    labels = learn::labels_path(folder, file, options.format);
    if (options.k_best > 0 || options.samples > 0) alternatives = stem + ".json";
    if (options.posteriors) posteriors = stem + ".frames.csv";
  }
  DecodedPaths(const DecodeOptions& options, const DecodedFile& file)
      : DecodedPaths(options, file.audio, file.labels.parent_path()) {}
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
                                     const std::vector<learn::FoundRecording>& found) {
  std::vector<DecodedFile> results;
  for (const auto& [audio, folder] : found) {
    const DecodedPaths paths(options, audio, folder.empty() ? options.out : options.out / folder);
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

/// One path for all that lead there, where the system knows it; pipes have none.
fs::path place_of(const fs::path& path) {
  std::error_code failure;
  fs::path place = fs::weakly_canonical(path, failure);
  return failure ? path : place;
}

/// What is read: the recordings, and where orders of labels are looked for.
std::set<fs::path> read_paths(const std::vector<DecodedFile>& recordings, const fs::path* orders) {
  std::set<fs::path> paths;
  for (const DecodedFile& recording : recordings) {
    paths.insert(place_of(recording.audio));
    if (orders == nullptr) continue;
    for (const fs::path& order : learn::order_places(recording.audio, *orders))
      paths.insert(place_of(order));
  }
  return paths;
}

/// What is read is never written, whatever may be overwritten.
void keep_inputs(const DecodeOptions& options, const std::vector<DecodedFile>& recordings,
                 const fs::path* orders) {
  const std::set<fs::path> inputs = read_paths(recordings, orders);
  for (const DecodedFile& recording : recordings)
    for (const fs::path& path : DecodedPaths(options, recording).wanted())
      if (inputs.contains(place_of(path)))
        throw UsageError(fmt::format(
            "{}: the labels of {} would be written here, where a recording{} is read; choose "
            "another directory with --out, or another --format",
            path.string(), recording.audio.string(),
            orders == nullptr ? "" : " or an order of labels"));
  for (const DecodedFile& recording : recordings)
    for (const fs::path& path : DecodedPaths(options, recording).wanted())
      for (const fs::path& folder : {options.boundaries, options.known})
        if (!folder.empty() && place_of(path.parent_path()) == place_of(folder))
          throw UsageError(
              fmt::format("{}: the labels of {} would be written where label files are read; "
                          "choose another directory with --out",
                          path.string(), recording.audio.string()));
}

/// Refuses files that would replace each other or something of the user's, before any is written.
void announce_decoded(Outputs& outputs, const DecodeOptions& options,
                      const std::vector<DecodedFile>& files) {
  Outputs names;
  for (const DecodedFile& file : files)
    for (const fs::path& path : DecodedPaths(options, file).wanted())
      names.announce(path, file.audio.string());
  for (const DecodedFile& file : files) {
    if (file.skipped) continue;
    for (const fs::path& path : DecodedPaths(options, file).wanted())
      outputs.announce(path, file.audio.string());
  }
  outputs.check();
}

void write_extras(const DecodedPaths& paths, Outputs& outputs, const learn::Decoded& decoded,
                  const Alphabet& labels, double hop, double seconds) {
  if (!paths.alternatives.empty())
    outputs.write(paths.alternatives, learn::alternatives_json(decoded, labels, hop, seconds));
  if (!paths.posteriors.empty())
    outputs.write(paths.posteriors, [&](const Outputs::Put& put) {
      learn::posteriors_csv(decoded, labels, hop, put);
    });
}

/// The orders of labels that recordings are aligned with.
struct OrderFiles {
  fs::path folder;  ///< empty: beside the recordings
  std::optional<std::int32_t> optional;

  semicrf::LabelOrders read(const fs::path& recording, const Alphabet& labels) const {
    const fs::path path = learn::order_file(recording, folder);
    return learn::parse_orders(read_file(path), path.string(), labels, optional);
  }
};

/// Recordings on their way from files to files.
class Decoding {
 public:
  /// With `orders` they are aligned.
  Decoding(const DecodeOptions& options, const OrderFiles* orders, learn::LoadedModel& loaded,
           Outputs& outputs)
      : options_(options),
        orders_(orders),
        outputs_(outputs),
        loaded_(loaded),
        model_(loaded.model()),
        known_{options.boundaries, options.known},
        how_(loaded.how({.minimum_risk = options.minimum_risk,
                         .posteriors = options.posteriors,
                         .k_best = options.k_best,
                         .samples = options.samples,
                         .seed = options.seed})) {}

  /// All files, in their order and in portions, so that memory stays bounded.
  void decode(std::span<DecodedFile> files, Progress& progress);
  /// A sentence where folders of what is known have nothing of any recording.
  std::string nothing_known() const {
    if (known_.empty() || of_some_ > 0 || of_none_ == 0) return {};
    const std::filesystem::path& folder = known_.labels.empty() ? known_.boundaries : known_.labels;
    return fmt::format(
        "{}: no label file of any of the {} recordings; the label file of NAME.wav is NAME with "
        "the extension of a label format, as NAME.TextGrid",
        folder.string(), of_none_.load());
  }
  /// What was resampled; empty when nothing was.
  std::string resampled() const {
    if (model_.config.features.kind == FeatureKind::kValues) return {};
    return data::resampled_text(rates_, model_.config.features.sample_rate);
  }

 private:
  /// A recording between its file and its labels.
  struct Item {
    DecodedFile file;
    double sample_rate = 0;  ///< of the file
    learn::Sequence sequence;
    semicrf::LabelOrders orders;  ///< to align it with
    learn::Decoded decoded;
  };

  std::int64_t announced_frames(const DecodedFile& file) const;
  /// Whether it is sound from a pipe, which can be read once, and whose length is not known.
  bool is_piped(const DecodedFile& file) const {
    std::error_code failure;
    return !file.skipped && model_.config.features.kind != FeatureKind::kValues &&
           fs::is_fifo(file.audio, failure);
  }
  /// Whether it is not decoded in pieces: an alignment holds its recording, and so does what is
  /// known of it.
  bool is_held(const DecodedFile& file, std::int64_t frames) const {
    return orders_ != nullptr || !known_.empty() ||
           (!is_piped(file) && !loaded_.is_long(frames, how_));
  }
  RecordingFeatures features_of(const DecodedFile& file) const;
  void decode_portion(std::span<DecodedFile> files);
  void decode_long(DecodedFile& file);
  void read(Item& item) const;
  std::vector<learn::Decoded> segments_of(const std::vector<const Item*>& items);
  void find_segments(std::vector<Item>& items);
  void write(Item& item) const;

  const DecodeOptions& options_;
  const OrderFiles* orders_;
  Outputs& outputs_;
  learn::LoadedModel& loaded_;
  const learn::TrainedModel& model_;
  const learn::KnownFolders known_;
  const learn::Decoder::Options how_;
  std::map<double, std::int64_t> rates_;          // of the recordings that were decoded
  mutable std::atomic<std::int64_t> of_some_{0};  // recordings of which something is known
  mutable std::atomic<std::int64_t> of_none_{0};
};

/// Runs a step of one recording. What is wrong with that recording is kept; what concerns all of
/// them is thrown on.
template <class Step>
void attempt(DecodedFile& file, const Step& step) {
  if (!file.error.empty()) return;
  try {
    step();
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kData && error.exit_code() != ExitCode::kUsage) throw;
    file.error = error.what();
  } catch (const std::bad_alloc&) {
    file.out_of_memory = true;
    file.error = fmt::format(
        "{}: there is not enough memory for this recording; cut it into shorter ones, use fewer "
        "threads (--threads), or end other programs",
        file.audio.string());
  }
}

RecordingFeatures Decoding::features_of(const DecodedFile& file) const {
  if (!is_piped(file)) {
    Recording recording;
    recording.audio = file.audio;
    return read_features(recording, loaded_.extractor());
  }
  const auto reader = data::FeatureReader::open(file.audio, loaded_.extractor(), options_.out);
  std::vector<float> rows;
  std::int64_t width = 0;
  for (Tensor piece = reader->next(); piece.shape()[0] > 0; piece = reader->next()) {
    width = piece.shape()[1];
    rows.insert(rows.end(), piece.span<float>().begin(), piece.span<float>().end());
  }
  const std::int64_t frames = width == 0 ? 0 : std::ssize(rows) / width;
  return {Tensor::from(rows, {frames, width}), reader->seconds(), reader->sample_rate()};
}

void Decoding::read(Item& item) const {
  RecordingFeatures read = features_of(item.file);
  item.file.seconds = read.seconds;
  item.sample_rate = read.sample_rate;
  item.sequence = loaded_.sequence_of(item.file.audio.string(), std::move(read.features));
  const double hop = loaded_.extractor().hop_seconds();
  item.sequence.known =
      learn::known_of(known_, item.file.audio, model_.labels,
                      {read.seconds, read.sample_rate, item.sequence.frames(), hop});
  const bool none = item.sequence.known.starts.empty() && item.sequence.known.label.empty();
  ++(none ? of_none_ : of_some_);
  if (orders_ == nullptr) return;
  item.orders = orders_->read(item.file.audio, model_.labels);
  learn::check_frames(item.orders, loaded_.rules(), item.sequence.frames(), hop,
                      item.file.audio.string());
}

std::vector<learn::Decoded> Decoding::segments_of(const std::vector<const Item*>& items) {
  std::vector<learn::Sequence> sequences;
  std::vector<semicrf::LabelOrders> orders;
  for (const Item* item : items) {
    sequences.push_back(item->sequence);
    orders.push_back(item->orders);
  }
  return orders_ == nullptr ? loaded_.decode(sequences, how_) : loaded_.align(sequences, orders);
}

/// All at once; where that is refused, one by one, to find whose fault it is. A recording's result
/// does not depend on its company.
void Decoding::find_segments(std::vector<Item>& items) {
  std::vector<const Item*> whole;
  for (const Item& item : items)
    if (item.file.error.empty()) whole.push_back(&item);
  if (whole.empty()) return;
  try {
    std::vector<learn::Decoded> decoded = segments_of(whole);
    auto next = decoded.begin();
    for (Item& item : items)
      if (item.file.error.empty()) item.decoded = std::move(*next++);
    return;
  } catch (const DataError&) {
  } catch (const std::bad_alloc&) {
  }
  for (Item& item : items)
    attempt(item.file, [&] {
      try {
        item.decoded = std::move(segments_of({&item}).front());
      } catch (const DataError& error) {
        const std::string name = item.file.audio.string();
        if (std::string_view(error.what()).starts_with(name + ": ")) throw;
        throw DataError(fmt::format(
            "{}: {}: {}", name,
            orders_ == nullptr ? "the model finds no segmentation" : "it cannot be aligned",
            error.what()));
      }
    });
}

void Decoding::write(Item& item) const {
  LabelOutput output;
  output.format = options_.format;
  output.sample_rate = item.sample_rate;
  output.recording = item.file.audio.filename().string();
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
  const double hop = loaded_.extractor().hop_seconds();
  outputs_.write(
      file.labels,
      format_labels(to_annotation(item.decoded, model_.labels, hop, file.seconds), output));
  write_extras(DecodedPaths(options_, file), outputs_, item.decoded, model_.labels, hop,
               file.seconds);
}

void Decoding::decode_portion(std::span<DecodedFile> files) {
  std::vector<Item> items;
  for (DecodedFile& file : files)
    if (!file.skipped) items.push_back({file, 0, {}, {}, {}});
  pool_of(options_.context).run(std::ssize(items), [&](std::int64_t i) {
    Item& item = items[static_cast<std::size_t>(i)];
    attempt(item.file, [&] { read(item); });
  });
  find_segments(items);
  auto item = items.begin();
  for (DecodedFile& file : files) {
    if (!file.skipped) {
      if (item->file.error.empty()) ++rates_[item->sample_rate];
      attempt(item->file, [&] { write(*item); });
      file = item->file;
      ++item;
    }
    if (options_.each) options_.each(file);
  }
}

/// What the header says; 0 where it says nothing, or the file is not read piece by piece. What is
/// wrong with it is said when it is read.
std::int64_t Decoding::announced_frames(const DecodedFile& file) const {
  if (file.skipped || is_piped(file)) return 0;
  try {
    const auto reader = data::FeatureReader::open(file.audio, loaded_.extractor(), options_.out);
    return reader ? reader->announced().value_or(0) : 0;
  } catch (const Error&) {
    return 0;
  }
}

/// A recording that is not held: its segments are all that is kept of it.
void Decoding::decode_long(DecodedFile& file) {
  Item item{file, 0, {}, {}, {}};
  attempt(item.file, [&] {
    const auto reader = data::FeatureReader::open(file.audio, loaded_.extractor(), options_.out);
    if (!reader)
      throw DataError(fmt::format("{}: the file changed while it was read", file.audio.string()));
    item.decoded =
        loaded_.decode(file.audio.string(), [&] { return reader->next(); }, how_, options_.out);
    item.file.seconds = reader->seconds();
    item.sample_rate = reader->sample_rate();
    ++rates_[item.sample_rate];
    write(item);
  });
  file = item.file;
  if (options_.each) options_.each(file);
}

void Decoding::decode(std::span<DecodedFile> files, Progress& progress) {
  constexpr std::size_t kMaxFiles = 64;
  constexpr std::int64_t kMaxFrames = 4 * learn::Decoder::kBatchFrames;
  for (std::size_t i = 0; i < files.size();) {
    std::size_t count = 0;
    std::int64_t frames = announced_frames(files[i]);
    if (!is_held(files[i], frames)) {
      decode_long(files[i]);
      count = 1;
    } else {
      do {
        ++count;
        if (i + count == files.size()) break;
        const std::int64_t more = announced_frames(files[i + count]);
        if (!is_held(files[i + count], more)) break;
        frames += more;
      } while (count < kMaxFiles && frames <= kMaxFrames);
      decode_portion(files.subspan(i, count));
    }
    i += count;
    progress.advance(static_cast<std::int64_t>(count));
  }
}

OrderFiles order_files(const OrderOptions& given, const Alphabet& labels) {
  OrderFiles files{given.folder, {}};
  if (!given.folder.empty() && !path_is_directory(given.folder))
    throw UsageError(fmt::format("{}: no such directory of orders", given.folder.string()));
  if (!given.optional.empty()) files.optional = learn::optional_label(given.optional, labels);
  return files;
}

/// decode(), or with orders align(); `doing` is what the progress is called.
std::vector<DecodedFile> find_labels(const DecodeOptions& options, const OrderOptions* given,
                                     const std::string& doing) {
  (void)learn::labels_path(options.out, "x", options.format);  // refuses kAuto
  if (options.inputs.empty())
    throw UsageError("no recordings were given; name audio files or directories of them");
  if (options.out.empty()) throw UsageError("no output directory was given; pass --out DIR");
  learn::LoadedModel model(learn::open_model(options.model, options.channel), options.context);
  const bool values = model.model().config.features.kind == FeatureKind::kValues;
  learn::check_folders({options.boundaries, options.known});
  if (!options.boundaries.empty() &&
      model.model().config.model.head != learn::HeadKind::kSemiMarkov)
    throw UsageError(
        fmt::format("--boundaries needs a semi-Markov model; this one has the head {}, whose "
                    "segments are runs of frames with one label",
                    learn::name_of(model.model().config.model.head)));
  std::optional<OrderFiles> orders;
  if (given != nullptr) orders = order_files(*given, model.model().labels);
  std::vector<DecodedFile> results =
      start_files(options, learn::recording_files(options.inputs, values, options.out));
  Outputs outputs(options.overwrite);
  keep_inputs(options, results, given == nullptr ? nullptr : &given->folder);
  announce_decoded(outputs, options, results);
  make_directories(options.out);
  for (const DecodedFile& file : results) make_directories(file.labels.parent_path());
  Decoding decoding(options, orders ? &*orders : nullptr, model, outputs);
  Progress progress(doing, std::ssize(results),
                    {.quiet = options.context.options().get(options::kQuiet)});
  decoding.decode(results, progress);
  progress.finish();
  if (const std::string text = decoding.nothing_known(); !text.empty())
    log(LogLevel::kWarning, "{}", text);
  if (const std::string text = decoding.resampled(); !text.empty())
    log(LogLevel::kInfo, "{}", text);
  return results;
}

}  // namespace

std::vector<DecodedFile> decode(const DecodeOptions& options) {
  return find_labels(options, nullptr, "decoding");
}

std::vector<DecodedFile> align(const DecodeOptions& options, const OrderOptions& orders) {
  if (options.minimum_risk || options.k_best != 0 || options.samples != 0 || options.posteriors ||
      !options.boundaries.empty() || !options.known.empty())
    throw UsageError(
        "an alignment is one segmentation with a given order of labels; least risk, k-best, "
        "samples, posteriors and known labels or boundaries are options of decoding only");
  return find_labels(options, &orders, "aligning");
}

void write_outputs(const std::vector<std::pair<std::filesystem::path, std::string>>& files,
                   bool overwrite) {
  Outputs outputs(overwrite);
  for (const auto& [path, content] : files) outputs.announce(path, "the output");
  outputs.check();
  for (const auto& [path, content] : files) outputs.write(path, content);
}

}  // namespace segfuse
