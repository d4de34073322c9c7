#pragma once
// Label files: what they hold, how they are read and written. docs/data.md has the formats and
// rules in full, data/formats.h their table. Times are seconds, segments half-open [start, end).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace segfuse {

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

/// The formats of label files: label_formats() in data/formats.h says what each is.
enum class LabelFormat {
  kAuto,  ///< by the file's name, and by its content where several formats share an ending
  kTextGrid,
  kPhn,
  kFestvox,
  kHtk,
  kAudacity,
  kCsv,
  kSimpleSeq,
  kGenericSeq,
  kDas,
  kWhisperSeg,
  kRaven,
  kNotMat,
  kYarden,
  kBirdsongRec,
  kEaf,
  kEmu,
  kCtm,
  kBed,
  kGff3,
  kWfdb,
};

struct LabelOptions {
  LabelFormat format = LabelFormat::kAuto;
  double sample_rate = 0;  ///< of the recording, in Hz; where times count its samples or frames
  std::string tier;        ///< where there are several; empty: the first that has intervals
  std::string recording;   ///< the name of its file, where labels of several stand in one
  /// Label for gaps, a late start and intervals without text. Without it they are errors.
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
  LabelFormat format = LabelFormat::kAuto;
  double sample_rate = 0;         ///< as in LabelOptions
  std::string tier = "segments";  ///< of formats with tiers
  std::string recording;          ///< the name of its file, for formats that have it
  /// CSV: further columns. TextGrid: further interval tiers with the numbers as text. Others: none.
  std::vector<SegmentColumn> columns;
};

std::string format_labels(const Annotation& annotation, const LabelOutput& output);

}  // namespace segfuse
