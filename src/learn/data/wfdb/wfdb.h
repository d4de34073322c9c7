#pragma once
// WFDB, the format of PhysioNet: a record is a text file .hea that names signal files, and beside
// it stand files of annotations, one for each annotator: 100.atr, 100.q1c. A pure layer over bytes
// (headers, samples, annotations) and what readers of audio and of labels make of it.

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
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

/// A file that stands beside a header: in memory, or on disk, where it is read as it is needed.
class WfdbBytes {
 public:
  WfdbBytes(std::string content);  // NOLINT(google-explicit-constructor)
  /// FileError where it cannot be opened.
  explicit WfdbBytes(const std::filesystem::path& path);
  std::uint64_t size() const { return size_; }
  /// These are there; DataError where the file has been cut short since it was opened.
  std::string read(std::uint64_t at, std::size_t count);
  std::string all() { return read(0, static_cast<std::size_t>(size_)); }

 private:
  std::string held_;
  std::string name_;
  std::unique_ptr<std::ifstream> file_;
  std::uint64_t size_ = 0;
};
using WfdbFiles = std::function<WfdbBytes(const std::string& file)>;

/// Samples of each signal, as the header says or the files hold. DataError where a file is too
/// short.
std::int64_t wfdb_length(const WfdbHeader& header, std::string_view name, const WfdbFiles& files);

/// A record in physical units, (stored - baseline) / gain, at a whole sample rate, some rows at a
/// time; its full scale is 1. DataError where a file is too short, where first values or checksums
/// are not what the header says (checksums at the end), and where a sample of the channels that are
/// asked for is marked as missing.
class WfdbReader {
 public:
  WfdbReader(std::string_view text, const std::string& name, WfdbFiles files,
             const AudioOptions& options);
  ~WfdbReader();
  WfdbReader(const WfdbReader&) = delete;
  WfdbReader& operator=(const WfdbReader&) = delete;

  const Audio& audio() const;  ///< its samples are those that were read last
  bool next();                 ///< false at the end
  std::int64_t announced() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// All of it.
Audio parse_wfdb(std::string_view text, const std::string& name, const WfdbFiles& files,
                 const AudioOptions& options);
/// From disk.
std::unique_ptr<WfdbReader> open_wfdb(const std::filesystem::path& path, const std::string& name,
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
