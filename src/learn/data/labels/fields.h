#pragma once
// Fields of label files: numbers, labels, rates, and the recordings that a file names.

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "learn/data/labels/parsers.h"
#include "learn/data/text.h"

namespace segfuse::data {

/// What separates the fields of the table: a tab in .tsv and a comma in others, or ';', a tab or a
/// comma with which `understood` takes the first line where it does not take that of the ending.
char find_separator(std::string_view text, std::string_view name,
                    const std::function<bool(const TableRow&)>& understood);

/// Calls visit(line, number) for each line that is not blank; numbers count from 1.
void for_lines(std::string_view text, const std::function<void(std::string_view, std::int64_t)>&);

/// A field as a number; DataError "FILE:LINE: WHAT is "..."; expected a number".
double number_in(std::string_view field, std::string_view what, std::string_view name,
                 std::int64_t line);
/// Whether it is one with a decimal point or comma.
bool is_number(std::string_view field);
std::int64_t integer_in(std::string_view field, std::string_view what, std::string_view name,
                        std::int64_t line);
/// The label without blanks at its ends; one that is empty is refused.
std::string label_in(std::string_view field, std::string_view name, std::int64_t line);

/// LabelOptions::sample_rate; UsageError where it is missing. Who only wants names gets 1.
double rate_of(const LabelText& file);
double rate_of(const LabelOutput& output, std::string_view format);

/// The same of formats whose rows may stand in any order.
void sort_by_start(RawSegments& raw);

/// Rows of several recordings in one file.
class Recordings {
 public:
  explicit Recordings(const LabelText& file) : file_(file) {}
  /// Whether a row that names this recording is of the one that is wanted.
  bool wants(std::string_view recording);
  /// The names that came. DataError when LabelOptions::recording is not among them, or is empty
  /// where there are several.
  std::vector<std::string> finish(std::int64_t line) const;

 private:
  const LabelText& file_;
  std::vector<std::string> names_;
  std::set<std::string, std::less<>> known_;
  std::string found_;  ///< the name that the recording has
  bool is_found_ = false;
};

/// Whether a name in a label file means the recording: the same file name, or the same without the
/// ending, in whatever folder.
bool same_recording(std::string_view entry, std::string_view recording);

/// Of names that same_recording() takes for the recording, the place of the one whose folders and
/// ending are most like its; DataError where two are equally so, and nothing where there is none.
std::optional<std::size_t> find_recording(const std::vector<std::string>& names,
                                          const LabelText& file);

/// The name that label files have for the recording.
std::string name_in_labels(const Recording& recording);

/// Formats whose fields end at one of `separators` cannot hold it inside a label: UsageError.
const std::string& plain_label(const LabelSegment& segment, std::string_view separators);
/// The same of what stands for the recording: its name without the folder and the ending, `unnamed`
/// where it has none.
std::string plain_name(const LabelOutput& output, const char* unnamed, std::string_view separators);
[[noreturn]] void refuse_name(std::string_view name);

}  // namespace segfuse::data
