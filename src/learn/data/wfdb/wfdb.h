#pragma once
// WFDB, the format of PhysioNet: a record is a text file .hea that names signal files, and beside
// it stand files of annotations, one for each annotator: 100.atr, 100.q1c. A pure layer over bytes
// (headers, samples, annotations) and what readers of audio and of labels make of it.

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "learn/data/labels/parsers.h"
#include "segfuse/data.h"

namespace segfuse::data {

struct WfdbSignal {
  std::string file;
  int format = 0;
  std::int64_t offset = 0;               ///< bytes before the first sample
  double gain = 200;                     ///< stored units in a physical unit
  double baseline = 0;                   ///< the stored value of 0 physical units
  std::int64_t zero = 0;                 ///< of the converter
  std::optional<std::int64_t> first;     ///< stored value of the first sample
  std::optional<std::int64_t> checksum;  ///< the sum of all stored values, of which 16 bits count
  std::string description;               ///< "MLII"; else "signal 0"
  std::int64_t line = 0;
};

/// A part of a record that has a header of its own.
struct WfdbPart {
  std::string name;
  std::int64_t samples = 0;
  std::int64_t line = 0;
};

struct WfdbHeader {
  std::string name;
  double rate = 250;                    ///< in Hz
  std::optional<std::int64_t> samples;  ///< of each signal
  std::vector<WfdbSignal> signals;
  std::vector<WfdbPart> parts;  ///< instead of signals
};

/// DataError with the line for what is wrong, and for what is not read: several samples of a signal
/// in a frame, skew, records whose parts have other signals than the first.
WfdbHeader parse_wfdb_header(std::string_view text, std::string_view name);

/// Gives the content of a file that stands beside the header.
using WfdbFiles = std::function<std::string(const std::string& file)>;

/// Stored values of all signals, T x signals, which alternate. What is missing is kWfdbMissing.
/// DataError where a file is too short, and where first values or checksums are not what the header
/// says.
std::vector<std::int32_t> wfdb_samples(const WfdbHeader& header, std::string_view name,
                                       const WfdbFiles& files);
inline constexpr std::int32_t kWfdbMissing = INT32_MIN;

/// The record in physical units, (stored - baseline) / gain, at a whole sample rate; its full scale
/// is 1. DataError where a sample of the channels that are asked for is marked as missing.
Audio parse_wfdb(std::string_view text, const std::string& name, const WfdbFiles& files,
                 const AudioOptions& options);
/// The same from disk.
Audio read_wfdb(const std::filesystem::path& path, const std::string& name,
                const AudioOptions& options);

/// The files beside the header that belong to the record: its signals, and headers of its parts.
std::vector<std::filesystem::path> wfdb_parts(const std::filesystem::path& header);

struct WfdbAnnotation {
  std::int64_t time = 0;  ///< in ticks
  int code = 0;
  std::string text;      ///< AUX, without what follows a NUL
  std::size_t byte = 0;  ///< where it stands in its file
};

struct WfdbAnnotations {
  std::vector<WfdbAnnotation> all;
  std::optional<double> rate;          ///< ticks a second; nothing: the record's
  std::map<int, std::string> symbols;  ///< that the file defines itself
};

/// The MIT format. DataError with the byte.
WfdbAnnotations parse_wfdb_annotations(std::string_view bytes, std::string_view name);

/// What WFDB's tools print for a code: "N", "V", "+"; "[41]" for one that has no symbol.
std::string wfdb_symbol(int code, const std::map<int, std::string>& own = {});

/// The tiers of an annotator, as docs/data.md has them, in this order: waves, or else beats; and
/// rhythms. `seconds` is the length of the record.
std::vector<RawTier> wfdb_tiers(const WfdbAnnotations& annotations, const std::string& annotator,
                                double rate, double seconds, std::string_view name);

/// The signal whose name the tier has, in any case: LUDB has an annotator for each lead.
std::optional<int> wfdb_lead(const std::filesystem::path& header, std::string_view tier);

/// The annotators beside a header, by the endings of their files, without the dot.
std::vector<std::string> wfdb_annotators(const std::filesystem::path& header);
/// By the ending.
bool is_wfdb(const std::filesystem::path& path);
bool has_wfdb_annotations(const std::filesystem::path& recording);

}  // namespace segfuse::data
