#pragma once
// Recordings and their labels: audio in, label files in and out, features, alphabets, manifests.
// Times are seconds, segments are half-open [start, end). Whatever is wrong inside a file throws
// DataError naming the file and the line or byte offset; an option that cannot work throws
// UsageError.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "segfuse/context.h"
#include "segfuse/tensor.h"

namespace segfuse {

// ------------------------------------------------------------------------------------- labels

struct LabelSegment {
  double start = 0;
  double end = 0;
  std::string label;
  std::int64_t line = 0;  ///< where it stood in its file; 0 when it came from nowhere
};

/// Segments in order without gap or overlap: segments[i].end == segments[i + 1].start exactly.
struct Annotation {
  std::vector<LabelSegment> segments;
  double duration = 0;  ///< end of the last segment
  std::string source;   ///< file name for messages
};

enum class LabelFormat {
  kAuto,      ///< by extension: .phn .wrd | .lab | .textgrid | .csv .tsv | .txt (any case)
  kPhn,       ///< "start end label", integers in samples
  kFestvox,   ///< header up to a line "#", then "end number label", end in seconds
  kHtk,       ///< "start end label [score]", integers in units of 100 ns
  kAudacity,  ///< start TAB end TAB label, in seconds
  kTextGrid,  ///< Praat, long or short text, UTF-8 or UTF-16 with a byte order mark
  kCsv,       ///< columns start, end, label by name (or in this order without a header line)
};

struct LabelOptions {
  LabelFormat format = LabelFormat::kAuto;  ///< a .lab file with a line "#" is festvox, else HTK
  double sample_rate = 0;                   ///< in Hz; needed for kPhn
  std::string tier;                         ///< of a TextGrid; empty: its first interval tier
  /// Label for gaps, a late start and empty TextGrid intervals. Without it they are errors.
  /// Overlaps always are. Gaps and overlaps up to 1 microsecond are rounding and are closed.
  std::optional<std::string> fill_label;
};

Annotation read_labels(const std::filesystem::path& path, const LabelOptions& options = {});
/// The same from memory; `name` stands for the file in messages and gives the extension.
Annotation parse_labels(std::string_view bytes, std::string_view name,
                        const LabelOptions& options = {});

/// Numbers to write next to the segments, one for each (posterior, start_confidence, ...).
struct SegmentColumn {
  std::string name;
  std::vector<double> values;
};

struct LabelOutput {
  LabelFormat format = LabelFormat::kAuto;  ///< by extension; .lab is written as festvox
  double sample_rate = 0;                   ///< in Hz; needed for kPhn
  std::string tier = "segments";            ///< of a TextGrid
  /// CSV: further columns. TextGrid: further interval tiers with the numbers as text. Others: none.
  std::vector<SegmentColumn> columns;
};

std::string format_labels(const Annotation& annotation, const LabelOutput& output);
/// Writes a new file and renames it, so that no reader sees half of it.
void write_labels(const std::filesystem::path& path, const Annotation& annotation,
                  const LabelOutput& output = {});

// -------------------------------------------------------------------------------------- audio

struct Audio {
  int sample_rate = 0;         ///< in Hz
  int channels = 0;            ///< of the file; `samples` holds one
  double full_scale = 1;       ///< the stored value that 1.0 stands for: 32768 for 16 bit
  std::vector<float> samples;  ///< in [-1, 1) unless AudioOptions::stored_scale
  std::string source;          ///< file name for messages
  double seconds() const { return static_cast<double>(samples.size()) / sample_rate; }
};

struct AudioOptions {
  static constexpr int kMean = -1;  ///< the mean of all channels
  static constexpr int kOnly = -2;  ///< the only one; files of several are a DataError
  int channel = kOnly;              ///< from 0 on, or one of these
  bool stored_scale = false;        ///< give the stored values (1 unit of an integer file = 1.0)
};

/// WAV, FLAC and whatever else libsndfile reads; NIST SPHERE by its magic, whatever the extension
/// (16-bit PCM of both byte orders). Truncated files, files without samples, NaN and infinite
/// samples are errors.
Audio read_audio(const std::filesystem::path& path, const AudioOptions& options = {});
Audio parse_sphere(std::string_view bytes, std::string_view name, const AudioOptions& options = {});
/// AudioOptions::channel from "mean" or a number from 0 on; `what` begins the DataError.
int audio_channel(std::string_view text, std::string_view what);
/// Mono, 16 bit; values are clipped to [-1, 1).
void write_wav(const std::filesystem::path& path, std::span<const float> samples, int sample_rate);

// ----------------------------------------------------------------------------------- features

enum class FeatureKind { kLogMel, kMfcc, kRaw };
std::string_view name_of(FeatureKind kind) noexcept;  ///< log_mel, mfcc, raw
FeatureKind feature_kind_from_name(std::string_view name);

/// Frame t covers the time [t hop, (t+1) hop); its window of window_ms is centred on the middle of
/// the frame; a signal is mirrored at its ends. N samples give T = max(1, ceil(N / hop)) frames.
///
/// log_mel: x[n] - preemphasis x[n-1], Hamming window, power spectrum (FFT of the next power of
/// two), n_mels triangles equally spaced on the HTK mel scale 2595 log10(1 + f / 700) between fmin
/// and fmax and linear in mel, log(max(energy, 1e-10)).
/// mfcc: orthonormal DCT-II of that, coefficients 0 .. n_mfcc-1, coefficient n times
/// 1 + lifter/2 sin(pi n / lifter).
/// raw: the window cut into raw_bins equal parts, each averaged (0: every sample of the window for
/// itself). window_ms = hop_ms with raw_bins = 1 is decimation to the frame rate behind a box
/// filter; raw_bins = 0 then stacks the samples of each frame and loses nothing.
/// deltas: then the regression slopes over +-2 frames (HTK), and for 2 the slopes of these.
struct FeatureConfig {
  FeatureKind kind = FeatureKind::kLogMel;
  int sample_rate = 16000;  ///< expected of every recording
  double window_ms = 25;
  double hop_ms = 10;
  int n_mels = 40;
  int n_mfcc = 13;
  double fmin = 20;
  double fmax = 0;  ///< 0: half the sample rate
  double preemphasis = 0.97;
  double lifter = 22;  ///< 0: none
  int raw_bins = 0;
  int deltas = 0;                     ///< 0, 1 or 2
  bool normalise_recording = false;   ///< mean 0 and deviation 1 of each column per recording
  int channel = AudioOptions::kOnly;  ///< of each recording, as AudioOptions has it
  bool operator==(const FeatureConfig&) const = default;
};

/// Computes features. Immutable; may be used from many threads at once.
class FeatureExtractor {
 public:
  explicit FeatureExtractor(const FeatureConfig& config);
  const FeatureConfig& config() const noexcept;
  std::int64_t num_features() const noexcept;
  std::int64_t num_frames(std::int64_t num_samples) const noexcept;
  double hop_seconds() const noexcept { return config().hop_ms / 1000; }
  /// (T, D) f32, the same bits on every run and thread. DataError when the sample rate differs.
  Tensor extract(const Audio& audio) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// x -> (x - mean) / deviation per column; computed on a training set, stored with the model.
struct Normalisation {
  std::vector<double> mean;
  std::vector<double> deviation;  ///< a constant column has 1
  /// In place; `features` is (T, D) f32.
  void apply(Tensor& features) const;
};
/// Over all rows of all tensors (T_i, D) f32: in double, two passes, in the order given.
Normalisation compute_normalisation(std::span<const Tensor> features);

// --------------------------------------------------------------------------- alphabet, folding

/// Labels and their ids 0 .. size-1.
class Alphabet {
 public:
  Alphabet() = default;
  /// In this order; throws UsageError for duplicates and empty names.
  explicit Alphabet(std::vector<std::string> labels);
  /// The distinct labels in byte order.
  static Alphabet of(std::span<const Annotation> annotations);
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(labels_.size()); }
  const std::vector<std::string>& labels() const noexcept { return labels_; }
  const std::string& label(std::int64_t id) const;
  std::optional<std::int32_t> find(std::string_view label) const;

 private:
  std::vector<std::string> labels_;
  std::unordered_map<std::string, std::int32_t> ids_;
};

/// Replaces labels; those it does not name stay. An absent value deletes the label.
class FoldingMap {
 public:
  FoldingMap() = default;
  bool empty() const noexcept { return to_.empty(); }
  void set(std::string from, std::optional<std::string> to) {
    to_[std::move(from)] = std::move(to);
  }
  /// The folded label; nullopt when it is deleted.
  std::optional<std::string> fold(const std::string& label) const;

 private:
  std::unordered_map<std::string, std::optional<std::string>> to_;
};
/// TSV: "from TAB to" a line, an empty or missing `to` deletes, "#" starts a comment line.
/// .toml: a table [fold] of from = "to", "" deletes.
FoldingMap read_folding_map(const std::filesystem::path& path);
/// How many segments were joined to the one before them, by label.
using JoinedCounts = std::map<std::string, std::int64_t>;
/// Folds every label. The time of a deleted segment goes to the segment before it (after it at the
/// start). Neighbours whose different labels become one become one segment, and are added to
/// `joined`; neighbours that had one label before stay two.
Annotation fold(const Annotation& annotation, const FoldingMap& map,
                JoinedCounts* joined = nullptr);

// ----------------------------------------------------------------------------- segments, frames

struct FrameSegment {
  std::int64_t start = 0;  ///< in frames
  std::int64_t duration = 0;
  std::int32_t label = 0;
  bool operator==(const FrameSegment&) const = default;
};

struct FrameOptions {
  /// The labels may end this much before or behind the recording; the last segment is then
  /// stretched or cut. More before needs fill_label, more behind is an error.
  double slack_seconds = 0.1;
  std::optional<std::string> fill_label;
  bool allow_unknown = false;  ///< a label that the alphabet lacks becomes kUnknownLabel
};
inline constexpr std::int32_t kUnknownLabel = -1;

/// The annotation from 0 to `seconds`, a recording's end in the last of its frames: what
/// FrameOptions say about its ends, in seconds. to_frames() of it gives the frames of the
/// annotation itself.
Annotation covering(const Annotation& annotation, double hop_seconds, std::int64_t num_frames,
                    double seconds, const FrameOptions& options = {});

struct FrameLabels {
  std::vector<FrameSegment> segments;  ///< tile [0, T)
  std::int64_t dropped = 0;            ///< segments that found no frame
};

/// Rounds each boundary to the nearest frame edge (halves go up). A segment that vanishes takes the
/// frame behind its start and pushes later boundaries, then earlier ones at the end of the
/// recording, so that each segment has at least one frame. When there are more segments than
/// frames, the shortest (the earliest of equals) are dropped first and their time goes to the one
/// before (to the one behind at the start). An unknown label that is not allowed is a DataError
/// naming file and line.
FrameLabels to_frames(const Annotation& annotation, const Alphabet& alphabet, double hop_seconds,
                      std::int64_t num_frames, const FrameOptions& options = {});
/// The inverse; the last segment ends at `duration` when that lies inside it.
Annotation to_annotation(std::span<const FrameSegment> segments, const Alphabet& alphabet,
                         double hop_seconds, double duration);

// ----------------------------------------------------------------------------------- manifests

enum class Split { kTrain, kDev, kTest };
std::string_view name_of(Split split) noexcept;

/// A line for the shell that writes an audio file to its standard output.
struct AudioCommand {
  std::string line;
  std::filesystem::path directory;  ///< where it runs
  std::string source;               ///< where it was written, for messages
};

struct Recording {
  std::string id;
  std::filesystem::path audio;   ///< empty: see command
  std::filesystem::path labels;  ///< empty: none
  Split split = Split::kTrain;
  std::optional<AudioCommand> command{};  ///< what to run instead of reading a file
  std::optional<int> channel{};           ///< as AudioOptions; wins over the configuration's
};

/// read_audio() of the recording's file, or of what its command writes. A command that fails is a
/// DataError with its exit status and the last line of its messages; so is one that takes longer
/// than ten minutes or writes more than 2 GiB. What a command leaves running in its process group
/// is killed when it has ended.
Audio read_recording(const Recording& recording, const AudioOptions& options = {});

/// What a folder has that cannot be trained on.
struct Unpaired {
  std::vector<std::filesystem::path> recordings;  ///< without labels
  std::vector<std::filesystem::path> labels;      ///< without a recording
  bool empty() const { return recordings.empty() && labels.empty(); }
};

struct ManifestOptions {
  /// A manifest with commands runs them with the rights of this process, so it is refused
  /// (UsageError) unless whoever passes its path says that its author is trusted.
  bool allow_commands = false;
  /// Where given, what has no partner is left out and noted there; else it is an error.
  Unpaired* unpaired = nullptr;
  bool* split_was_given = nullptr;  ///< where wanted: whether files or folders say the split
};

/// Reads what a corpus consists of, sorted by id (bytes). `path` is a TSV/CSV file or a directory:
/// 1. a manifest has a header line with the columns id, audio, labels, split, channel (any order,
///    others are ignored; id or audio must be there). Paths are relative to the manifest. Without
///    an audio column the files are sought as [SPLIT/]ID.{wav,flac,sph,nist} and the labels next to
///    them. An audio entry that ends in "|" is a command ("flac -dc a.flac |"), run by the shell in
///    the manifest's directory each time the recording is read; it needs an id;
/// 2. a directory with manifest.tsv or manifest.csv: that;
/// 3. train/ and test/ (and dev/; any case, searched recursively): audio and label files are
///    paired by name;
/// 4. wav/ and lab/ side by side, or pairs in the directory itself.
/// Split rule where the split is not given: recording i of the sorted list is test for i % 10 == 0,
/// dev for i % 10 == 5, else train. Where train and test are given but no dev: recording i of the
/// sorted training list is dev for i % 10 == 5. Audio without labels and labels without audio are
/// errors.
std::vector<Recording> load_manifest(const std::filesystem::path& path,
                                     const ManifestOptions& options = {});
std::vector<Recording> recordings_of(std::span<const Recording> recordings, Split split);

struct Example {
  std::string id;
  Tensor features;     ///< (T, D) f32, not normalised over the corpus
  Annotation gold;     ///< of the whole recording (covering()), then folded; empty without labels
  double seconds = 0;  ///< of the audio
  JoinedCounts joined{};  ///< by folding
};
/// Audio, labels and features of all recordings, in their order; files are spread over its threads.
std::vector<Example> load_examples(std::span<const Recording> recordings,
                                   const FeatureExtractor& extractor, const LabelOptions& labels,
                                   const FoldingMap& folding, const Context& context = {});

// ------------------------------------------------------------------------------------- batches

struct BucketConfig {
  std::int64_t batch_size = 16;  ///< at most so many sequences
  std::int64_t max_frames = 0;   ///< at most so many frames with padding (count x longest); 0: any
  std::uint64_t seed = 0;
  double jitter = 0.1;  ///< lengths are sorted after a factor of 1 +- jitter
};
/// Batches of indices into `lengths`, of similar length, in random order: a pure function of its
/// arguments. Each index appears once; a sequence longer than max_frames is a batch of its own.
std::vector<std::vector<std::int64_t>> make_buckets(std::span<const std::int64_t> lengths,
                                                    const BucketConfig& config, std::int64_t epoch);
/// Steps of `shards` batches each, of similar length, in random order; the step of the longest
/// sequences may have fewer. With one shard the batches of make_buckets().
std::vector<std::vector<std::vector<std::int64_t>>> make_steps(
    std::span<const std::int64_t> lengths, const BucketConfig& config, std::int64_t shards,
    std::int64_t epoch);

}  // namespace segfuse
