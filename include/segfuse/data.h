#pragma once
// Recordings and their labels: features, alphabets, manifests; with audio.h and labels.h.
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
#include "segfuse/data/audio.h"
#include "segfuse/data/labels.h"
#include "segfuse/tensor.h"

namespace segfuse {

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
/// Stacked channels: the columns of each, side by side, then the slopes of all.
struct FeatureConfig {
  FeatureKind kind = FeatureKind::kLogMel;
  int sample_rate = 16000;  ///< to which recordings of other rates are resampled
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
  /// 0 where the recordings say how many: those of each channel that is stacked.
  std::int64_t num_features() const noexcept;
  std::int64_t num_frames(std::int64_t num_samples) const noexcept;
  double hop_seconds() const noexcept { return config().hop_ms / 1000; }
  /// (T, D) f32, the same bits on every run and thread. DataError when the sample rate differs.
  Tensor extract(const Audio& audio) const;

 private:
  struct State;
  struct Rows;
  void extract_channel(const Audio& audio, int channel, const Rows& rows) const;
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

struct ManifestOptions {
  /// A manifest with commands runs them with the rights of this process, so it is refused
  /// (UsageError) unless whoever passes its path says that its author is trusted.
  bool allow_commands = false;
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

/// What a recording is to a model.
struct RecordingFeatures {
  Tensor features;      ///< (T, D) f32
  double seconds = 0;   ///< of the recording
  int sample_rate = 0;  ///< of its file, whatever that of the features is
};
/// read_recording(), resample() and extract().
RecordingFeatures read_features(const Recording& recording, const FeatureExtractor& extractor);
/// "resampled to 16000 Hz: 3 recordings of 44100 Hz"; empty when none was. `recordings` counts
/// them by their sample rate.
std::string resampled_text(const std::map<int, std::int64_t>& recordings, int sample_rate);

struct Example {
  std::string id;
  Tensor features;      ///< (T, D) f32, not normalised over the corpus
  Annotation gold;      ///< of the whole recording (covering()), then folded; empty without labels
  double seconds = 0;   ///< of the audio
  int sample_rate = 0;  ///< of its file
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
