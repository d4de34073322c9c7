#pragma once
// The table of label formats, a reader and a writer for each. A reader gives the segments of every
// tier in the order of the file, with line numbers; contiguity is checked afterwards, in one place.

#include <string_view>
#include <vector>

#include "segfuse/data/formats.h"

namespace segfuse::data {

/// What a parser found: segments, and where the recording begins and ends if the format says so.
struct RawSegments {
  std::vector<LabelSegment> segments;
  double begin = 0;
  std::optional<double> end;
};

/// Labels that describe the same time.
struct RawTier {
  std::string name;
  RawSegments raw;
  bool intervals = true;
  bool all_looked_at = true;  ///< as LabelTier has it
};

struct RawLabels {
  RawLabels() = default;
  /// One tier without a name.
  RawLabels(RawSegments raw) { tiers.push_back({"", std::move(raw)}); }

  std::vector<RawTier> tiers;
  bool tiers_are_one = false;           ///< without a choice
  std::vector<std::string> recordings;  ///< named in the file, in its order
};

/// A label file in memory.
struct LabelText {
  std::string_view bytes;  ///< UTF-8 without byte order mark, or a binary file as it is
  std::string_view name;   ///< for messages
  const LabelOptions& options;
  bool inspect = false;  ///< the caller wants the names of tiers and recordings, not their times
};

using LabelReader = RawLabels (*)(const LabelText& file);
using LabelWriter = std::string (*)(const Annotation& annotation, const LabelOutput& output);

struct LabelFormatRow {
  LabelFormatInfo info;
  LabelReader read;
  LabelWriter write = nullptr;
  bool (*is_it)(std::string_view bytes) = nullptr;  ///< among formats of one ending; else the last
  bool binary = false;
};

std::span<const LabelFormatRow> format_rows();
const LabelFormatRow& format_row(LabelFormat format);
/// Of a file: by its name and, where several formats share that, its content. UsageError when no
/// format has such names.
const LabelFormatRow& recognise(std::string_view name, std::string_view bytes);

RawLabels read_textgrid(const LabelText& file);
RawLabels read_phn(const LabelText& file);
RawLabels read_festvox(const LabelText& file);
RawLabels read_htk(const LabelText& file);
RawLabels read_audacity(const LabelText& file);
RawLabels read_csv(const LabelText& file);  ///< of every program
RawLabels read_raven(const LabelText& file);
RawLabels read_notmat(const LabelText& file);
RawLabels read_yarden(const LabelText& file);
RawLabels read_birdsong_rec(const LabelText& file);
RawLabels read_eaf(const LabelText& file);
RawLabels read_emu(const LabelText& file);
RawLabels read_ctm(const LabelText& file);
RawLabels read_bed(const LabelText& file);
RawLabels read_gff3(const LabelText& file);
/// The annotators that stand beside the header file.name on disk.
RawLabels read_wfdb_labels(const LabelText& file);

std::string write_textgrid(const Annotation& annotation, const LabelOutput& output);
std::string write_phn(const Annotation& annotation, const LabelOutput& output);
std::string write_festvox(const Annotation& annotation, const LabelOutput& output);
std::string write_htk(const Annotation& annotation, const LabelOutput& output);
std::string write_audacity(const Annotation& annotation, const LabelOutput& output);
std::string write_csv(const Annotation& annotation, const LabelOutput& output);
std::string write_simple_seq(const Annotation& annotation, const LabelOutput& output);
std::string write_generic_seq(const Annotation& annotation, const LabelOutput& output);
std::string write_das(const Annotation& annotation, const LabelOutput& output);
std::string write_whisperseg(const Annotation& annotation, const LabelOutput& output);
std::string write_raven(const Annotation& annotation, const LabelOutput& output);
std::string write_notmat(const Annotation& annotation, const LabelOutput& output);
std::string write_birdsong_rec(const Annotation& annotation, const LabelOutput& output);
std::string write_eaf(const Annotation& annotation, const LabelOutput& output);
std::string write_emu(const Annotation& annotation, const LabelOutput& output);
std::string write_ctm(const Annotation& annotation, const LabelOutput& output);
std::string write_bed(const Annotation& annotation, const LabelOutput& output);
std::string write_gff3(const Annotation& annotation, const LabelOutput& output);

/// Checks order, closes rounding gaps, fills or refuses the others.
Annotation make_contiguous(RawSegments raw, std::string_view name,
                           const std::optional<std::string>& fill_label);

}  // namespace segfuse::data
