#pragma once
// Label files: readers and writers of many formats. Times are seconds, segments are half-open
// [start, end). Whatever is wrong inside a file throws DataError naming the file and the line or
// byte offset; an option that cannot work throws UsageError.

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

}  // namespace segfuse
