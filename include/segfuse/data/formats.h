#pragma once
// The formats of label files and recordings, in one table that readers, writers and lists of
// formats share; the content of a label file, before a choice of how to read it; and recordings
// that a caller has in memory.

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "segfuse/data.h"

namespace segfuse {

struct LabelFormatInfo {
  LabelFormat format;
  std::string_view name;                      ///< of options: "textgrid"
  std::span<const std::string_view> endings;  ///< of file names, any case; the first is written
  std::string_view program;                   ///< program that writes such files
  std::string_view recognised;  ///< distinguishing feature among files of the same endings
  std::string_view times;       ///< their unit
  std::string_view tiers;       ///< what LabelOptions::tier chooses from; empty: there is one tier
  bool shared = false;  ///< one file may have the labels of several recordings, by their names
  bool written = false;
  bool endings_are_tiers = false;  ///< a recording may have a file of each; the finest stands first
};

/// All of them but kAuto, in the order of LabelFormat.
std::span<const LabelFormatInfo> label_formats();
const LabelFormatInfo& label_format(LabelFormat format);
/// By its name; UsageError with those that are written, and the nearest one.
LabelFormat written_label_format(std::string_view name);
/// The names of the formats that are written: "a, b or c".
std::string written_label_formats();

/// By their endings: .wav, .flac, ...
std::span<const std::string_view> audio_endings();
bool is_audio_file(const std::filesystem::path& path);
/// Files of numbers instead of audio: .npy, .npz, .csv, .tsv, .fa, ...
std::span<const std::string_view> value_endings();
bool is_values_file(const std::filesystem::path& path);
/// Which files in a folder and below are recordings. A table may be values as well as labels: it is
/// values where there are no arrays or sequences, and its name does not say that it holds labels.
std::function<bool(const std::filesystem::path&)> recordings_of_folder(
    const std::filesystem::path& folder, bool values);
/// The sequences of a FASTA file, by their names; empty for files that hold one recording.
std::vector<std::string> value_parts(const std::filesystem::path& path);
/// (T, D) f32: an array T x D or T of .npy (f32, f64, i16, either byte order), the only one of an
/// .npz or the one that is named `part`; the columns of a table, with or without a header; a
/// sequence of FASTA as one-hot A, C, G, T, where N and other letters of ambiguity are zeros.
/// DataError for all else, NaN and infinite values included.
Tensor read_values(const std::filesystem::path& path, const std::string& part = {});
Tensor parse_values(std::string_view bytes, std::string_view name, const std::string& part = {});

/// By their endings, which several kinds of files share: it may be something else.
bool is_label_file(const std::filesystem::path& path);
/// What the names of label files may have behind that of the recording: nothing, "_annotations",
/// ...
std::span<const std::string_view> label_suffixes();
/// What a recording and its label files have in common: the name without the ending of a format,
/// without one of these and what Raven appends, and without the ending of the audio file
/// ("x.wav.csv").
std::string label_stem(const std::filesystem::path& path);

/// The file of a recording's labels: "x.TextGrid" of "x.wav"; "x.cbin.not.mat" of "x.cbin".
std::string label_file_name(const std::filesystem::path& recording, LabelFormat format);

struct LabelTier {
  std::string name;           ///< empty: the file names none
  bool intervals = true;      ///< false: points in time, or labels without times
  bool all_looked_at = true;  ///< false: stretches without a label may still contain something
  std::int64_t segments = 0;
  double labelled_seconds = 0;  ///< sum over the segments
  double begin = 0;             ///< of the first segment; or of the tier if the format says so
  double end = 0;
  std::map<std::string, std::int64_t> labels;  ///< segments of each; those with empty text are gaps
};

struct LabelContents {
  LabelFormat format = LabelFormat::kAuto;
  std::vector<LabelTier> tiers;         ///< in the order of the file; the first with intervals is
                                        ///< what read_labels() takes when none is named
  bool tiers_are_one = false;           ///< read_labels() then takes all of them together
  std::vector<std::string> recordings;  ///< whose labels a shared file has; empty: it does not say
};

/// What is in a label file. Gaps and overlaps are allowed here; all else is checked as by
/// read_labels().
LabelContents inspect_labels(const std::filesystem::path& path, const LabelOptions& options = {});
LabelContents inspect_label_text(std::string_view bytes, std::string_view name,
                                 const LabelOptions& options = {});

/// Writes a new file and renames it, so that no reader sees half of it.
void write_labels(const std::filesystem::path& path, const Annotation& annotation,
                  const LabelOutput& output = {});

/// A recording that a caller has in memory instead of files, with its labels.
struct HeldRecording {
  std::string name;  ///< for messages and reports: "recording 3"
  /// Samples of `stacked` channels, which alternate, or values (T, D) f32, one row a frame.
  std::variant<Audio, Tensor> content;
  std::vector<LabelSegment> labels;  ///< in any order; an empty label is a gap
  std::optional<Split> split{};      ///< of all or of none; else as docs/data.md deals them
  std::string group{};               ///< as Recording::group; of all or of none
};

/// Makes them the recordings of a training, in their order. DataError for a recording without
/// samples or rows, for numbers that are not finite, and for times that are not numbers.
std::vector<Recording> hold(std::vector<HeldRecording> recordings);

Audio parse_sphere(std::string_view bytes, std::string_view name, const AudioOptions& options = {});
/// Mono, 16 bit; values are clipped to [-1, 1).
void write_wav(const std::filesystem::path& path, std::span<const float> samples, int sample_rate);

}  // namespace segfuse
