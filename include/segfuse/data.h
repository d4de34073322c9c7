#pragma once
// Recordings and their labels: audio in, label files in and out, features, alphabets, manifests.
// docs/data.md has the formats and rules in full; data/formats.h the table of label formats.
// Times are seconds, segments half-open [start, end). An error in a file is a DataError that names
// the file and the line or byte offset; an option that cannot work is a UsageError.

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
#include "segfuse/data/labels.h"
#include "segfuse/error.h"
#include "segfuse/tensor.h"

namespace segfuse {

// -------------------------------------------------------------------------------------- audio

struct Audio {
  int sample_rate = 0;         ///< in Hz
  int channels = 0;            ///< of the file; `samples` holds one
  double full_scale = 1;       ///< the stored value that 1.0 stands for: 32768 for 16 bit
  std::vector<float> samples;  ///< in [-1, 1) unless AudioOptions::stored_scale
  std::string source;          ///< file name for messages
  int stacked = 1;  ///< number of interleaved channels in `samples`; 1 except with kStack
  std::int64_t frames() const { return static_cast<std::int64_t>(samples.size()) / stacked; }
  double seconds() const { return static_cast<double>(frames()) / sample_rate; }
};

struct AudioOptions {
  static constexpr int kMean = -1;   ///< the mean of all channels
  static constexpr int kOnly = -2;   ///< the only one; files of several are a DataError
  static constexpr int kStack = -3;  ///< all of them, side by side
  int channel = kOnly;               ///< from 0 on, or one of these
  bool stored_scale = false;         ///< give the stored values (1 unit of an integer file = 1.0)
};

/// WAV, FLAC and whatever else libsndfile reads; NIST SPHERE by its magic, whatever the extension
/// (16-bit PCM of both byte orders). Truncated files, files without samples, NaN and infinite
/// samples are errors.
Audio read_audio(const std::filesystem::path& path, const AudioOptions& options = {});
/// AudioOptions::channel from "mean", "stack" or a number from 0 on; `what` begins the DataError.
int audio_channel(std::string_view text, std::string_view what);
/// At another sample rate: N samples become N times the ratio of the rates, rounded, at least one.
/// No delay; the same bits on every run. DataError where the rates are too far apart.
Audio resample(Audio audio, int sample_rate);
inline constexpr int kMaxResampling = 256;

// ----------------------------------------------------------------------------------- features

enum class FeatureKind { kLogMel, kMfcc, kRaw, kValues, kKaldiFbank, kWhisper };
/// log_mel, mfcc, raw, values, kaldi_fbank, whisper.
std::string_view name_of(FeatureKind kind) noexcept;
FeatureKind feature_kind_from_name(std::string_view name);

/// Frame t covers the time [t hop, (t+1) hop); its window of window_ms is centred on the middle of
/// the frame; a signal is mirrored at its ends. N samples give T = max(1, ceil(N / hop)) frames.
/// kaldi_fbank and whisper have their windows elsewhere, see below.
///
/// log_mel: pre-emphasis, Hamming window, power spectrum (FFT of the next power of two), n_mels
/// triangles on the HTK mel scale between fmin and fmax, log(max(energy, 1e-10)).
/// mfcc: orthonormal DCT-II of that, coefficients 0 .. n_mfcc-1, liftered.
/// raw: the window cut into raw_bins equal parts, each averaged (0: every sample for itself).
/// deltas: then the regression slopes over +-2 frames (HTK), and for 2 the slopes of these.
/// values: the rows of a file of numbers, frame_rate of them a second; no audio.
/// kaldi_fbank: Kaldi's compute-fbank-feats without dither, of samples as 16-bit numbers. A hop is
/// a whole number of samples S, a window of W samples is rounded down. With snip_edges windows
/// begin with their frames, and Kaldi has the first 1 + floor((N - W) / S) rows; without it they
/// lie in the middle of their frames, and Kaldi has the first floor(N / S + 1/2). whisper:
/// Whisper's log-mel spectrogram of the whole recording, which has the first floor(N / 160) rows.
/// docs/features.md has the formulas of both, and what their windows see beyond the ends. Stacked
/// channels: the columns of each, side by side, then the slopes of all.
struct FeatureConfig {
  FeatureKind kind = FeatureKind::kLogMel;
  int sample_rate = 16000;  ///< to which recordings of other rates are resampled
  double window_ms = 25;
  double hop_ms = 10;     ///< for values, 1000 / frame_rate is used instead
  double frame_rate = 0;  ///< of values: rows a second
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
  bool snip_edges = true;             ///< of kaldi_fbank
  bool operator==(const FeatureConfig&) const = default;
};
/// FeatureConfig(), and for kaldi_fbank and whisper 80 bands and what else they are known by.
FeatureConfig default_features(FeatureKind kind);
/// Whether the features of a frame depend on the whole recording.
bool needs_whole_recording(const FeatureConfig& config) noexcept;

/// Computes features. Immutable; may be used from many threads at once.
class FeatureExtractor {
 public:
  explicit FeatureExtractor(const FeatureConfig& config);
  const FeatureConfig& config() const;
  /// Number of columns, for each stacked channel; 0 when it depends on the recordings.
  std::int64_t num_features() const;
  std::int64_t num_frames(std::int64_t num_samples) const;
  double hop_seconds() const { return config().hop_ms / 1000; }
  /// (T, D) f32, the same bits on every run and thread. DataError when the sample rate differs.
  Tensor extract(const Audio& audio) const;
  /// The same of values (T, D) f32; UsageError for other kinds.
  Tensor extract_values(const Tensor& values, std::string_view source) const;

 private:
  friend class BaseFrames;
  struct State;
  void finish(std::span<float> values, std::int64_t frames, std::int64_t width) const;
  StatePointer<std::shared_ptr<const State>, "FeatureExtractor"> state_;
};

/// x -> (x - mean) / deviation per column; computed on a training set, stored with the model.
struct Normalisation {
  std::vector<double> mean;
  std::vector<double> deviation;       ///< a constant column has 1
  void apply(Tensor& features) const;  ///< in place; `features` is (T, D) f32
};
/// Over all rows of all tensors (T_i, D) f32: in double, two passes, in the order given.
Normalisation compute_normalisation(std::span<const Tensor> features);

/// Random changes of the features in training batches; docs/features.md has the formulas.
struct Augmentation {
  std::int64_t time_masks = 0;
  double time_mask_ms = 0;  ///< the longest
  std::int64_t frequency_masks = 0;
  std::int64_t frequency_mask_bands = 0;  ///< of the widest
  double gain_db = 0;                     ///< at most, either way
  std::vector<double> noise_snr_db{};     ///< from and to; empty: none
  std::int64_t transpose_bands = 0;       ///< at most, either way
  bool any() const {
    return time_masks > 0 || gain_db > 0 || !noise_snr_db.empty() || needs_bands();
  }
  /// Whether the columns have to be bands.
  bool needs_bands() const { return frequency_masks > 0 || transpose_bands > 0; }
};

// --------------------------------------------------------------------------- alphabet, folding

/// Labels and their ids 0 .. size-1.
class Alphabet {
 public:
  Alphabet() = default;
  /// Labels in this order; throws UsageError for duplicates and empty names.
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
/// Number of segments that were joined to the one before them, by label.
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
  /// The labels may end up to this many seconds plus a frame before or after the end of the
  /// recording (after it, less than a frame where that is longer); the last segment is then
  /// stretched or cut. If they end earlier, fill_label is required; if later, that is an error.
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
  std::filesystem::path audio;   ///< or values; empty: see command
  std::filesystem::path labels;  ///< empty: none
  Split split = Split::kTrain;
  std::optional<AudioCommand> command{};  ///< what to run instead of reading a file
  std::optional<int> channel{};           ///< as AudioOptions; wins over the configuration's
  std::string part{};                     ///< of a file that holds several: the sequence's name
  std::shared_ptr<const struct HeldRecording> held{};  ///< instead of files: see formats.h
  std::vector<std::filesystem::path> other_labels{};   ///< files that were not taken for its labels
  std::string group{};  ///< recordings of one group are dealt together; empty: of none
};

/// read_audio() of its file, or of what its command writes, or what its caller holds. A command
/// that fails, takes longer than ten minutes or writes more than 2 GiB is a DataError. What it
/// leaves running in its process group is killed when it has ended.
Audio read_recording(const Recording& recording, const AudioOptions& options = {});

struct Unpaired {
  std::vector<std::filesystem::path> recordings;  ///< without labels
  std::vector<std::filesystem::path> labels;      ///< without a recording
  std::vector<std::filesystem::path> texts{};     ///< of recordings without labels: no times
  bool empty() const { return recordings.empty() && labels.empty(); }
};

struct ManifestOptions {
  bool allow_commands = false;      ///< they run with this process's rights; else a UsageError
  bool values = false;              ///< the recordings are files of numbers, not audio
  bool* are_values = nullptr;       ///< where wanted: values also where there is no audio; says so
  Unpaired* unpaired = nullptr;     ///< notes what has no partner and is left out; else an error
  bool* split_was_given = nullptr;  ///< where wanted: whether files or folders say the split
  std::string tier{};  ///< of several label files: the ending of that which is read, as "wrd"
  /// What recordings of one group have in common: "folder", a column of the manifest, or a regular
  /// expression with one pair of parentheses, found in the id. Empty: there are no groups.
  std::string group{};
};

/// Reads what a corpus consists of, sorted by id (bytes). `path` is a manifest or a directory;
/// docs/data.md says how recordings and labels are found and split.
std::vector<Recording> load_manifest(const std::filesystem::path& path,
                                     const ManifestOptions& options = {});
std::vector<Recording> recordings_of(std::span<const Recording> recordings, Split split);

struct RecordingFeatures {
  Tensor features;         ///< (T, D) f32
  double seconds = 0;      ///< of the recording
  double sample_rate = 0;  ///< of its file, whatever that of the features is
};
/// read_recording(), resample() and extract(), or read_values() and extract_values().
RecordingFeatures read_features(const Recording& recording, const FeatureExtractor& extractor);

struct Example {
  std::string id, part_of{};  ///< part_of: the id of the whole recording, where this is a part
  Tensor features;            ///< (T, D) f32, not normalised over the corpus
  Annotation gold;     ///< of the whole recording (covering()), then folded; empty without labels
  double seconds = 0;  ///< of the audio
  double sample_rate = 0;  ///< of its file
  JoinedCounts joined{};   ///< by folding
};
/// Audio, labels and features of all recordings, in their order; files are spread over the
/// context's threads.
std::vector<Example> load_examples(std::span<const Recording> recordings,
                                   const FeatureExtractor& extractor, const LabelOptions& labels,
                                   const FoldingMap& folding, const Context& context = {});

// ----------------------------------------------------------------------------- synthetic corpus

/// A semi-Markov model and how to render it. Label c lasts 1 + NB(shape, mean - 1) frames
/// (negative binomial), or is drawn from durations[c] (weight of 1, 2, ... frames) when given.
struct SynthConfig {
  std::vector<std::string> labels;
  std::vector<double> initial;                  ///< weights (C)
  std::vector<std::vector<double>> transition;  ///< weights (C, C), zero diagonal
  std::vector<double> mean_frames;              ///< (C), at least 1
  std::vector<double> shape;                    ///< (C), positive; large: Poisson, 1: geometric
  std::vector<std::vector<double>> durations;   ///< explicit tables, or empty
  std::vector<std::int64_t> sounds{};  ///< (C): the label whose sound it has; empty: its own
  int sample_rate = 16000;
  double hop_ms = 10;
  std::int64_t min_frames = 200;  ///< of a recording, uniform; its last segment is cut
  std::int64_t max_frames = 400;
  double snr_db = 10;
  double coarticulation_ms = 20;  ///< over which one sound glides into the next
  std::int64_t train = 80;        ///< recordings
  std::int64_t test = 20;
  std::uint64_t seed = 1;
};
/// A model with random transitions and durations over `labels` labels. With `alike` they come in
/// pairs of one sound, of which the second lasts three times as long on average.
SynthConfig random_synth_config(std::int64_t labels, std::uint64_t seed, bool alike = false);
/// Segments of recording `index`, tiling its frames; a pure function of its arguments.
std::vector<FrameSegment> sample_segmentation(const SynthConfig& config, std::int64_t index);
/// Writes train/ and test/ with WAV and .phn, and truth.json with all true parameters. A label
/// sounds as three sines and noise of its own, which glide into the next; white noise is added. The
/// same configuration gives the same files. Existing files that segfuse did not write are a
/// UsageError, or are replaced with `overwrite`.
void write_synthetic_corpus(const SynthConfig& config, const std::filesystem::path& directory,
                            bool overwrite = false);

}  // namespace segfuse
