// The one table of label formats.

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "learn/data/labels/parsers.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse {
namespace data {
namespace {

using Endings = std::span<const std::string_view>;

constexpr std::string_view kTextGrid[] = {".TextGrid"};
constexpr std::string_view kPhn[] = {".phn", ".wrd"};
constexpr std::string_view kLab[] = {".lab"};
constexpr std::string_view kAudacity[] = {".txt"};
constexpr std::string_view kCsv[] = {".csv", ".tsv"};
constexpr std::string_view kDas[] = {"_annotations.csv", ".csv"};
constexpr std::string_view kRaven[] = {".selections.txt", ".txt"};
constexpr std::string_view kNotMat[] = {".not.mat", ".mat"};
constexpr std::string_view kYarden[] = {".mat"};
constexpr std::string_view kXml[] = {".xml"};
constexpr std::string_view kEaf[] = {".eaf"};
constexpr std::string_view kEmu[] = {"_annot.json"};
constexpr std::string_view kCtm[] = {".ctm"};
constexpr std::string_view kBed[] = {".bed"};
constexpr std::string_view kWfdb[] = {".hea"};
constexpr std::string_view kGff3[] = {".gff3", ".gff"};

std::string_view first_line(std::string_view bytes) {
  return bytes.substr(0, std::min(bytes.find('\n'), bytes.size()));
}

bool has_hash_line(std::string_view bytes) {
  for (const std::string_view line : split_lines(bytes))
    if (trim(line) == "#") return true;
  return false;
}

bool has_raven_header(std::string_view bytes) {
  return lower(first_line(bytes)).find("begin time (s)") != std::string::npos;
}

/// Column names of the first line.
template <const char* const* Names>
bool has_columns(std::string_view bytes) {
  const std::string header = lower(first_line(bytes));
  for (const char* const* name = Names; *name != nullptr; ++name)
    if (header.find(*name) == std::string::npos) return false;
  return true;
}

constexpr const char* kGenericNames[] = {"label", "notated_path", nullptr};
constexpr const char* kSimpleNames[] = {"onset_s", "offset_s", nullptr};
constexpr const char* kDasNames[] = {"start_seconds", "stop_seconds", nullptr};
constexpr const char* kWhisperNames[] = {"onset", "offset", "cluster", nullptr};

/// Compressed variables have no readable name; evsonganaly's files are then known by theirs.
bool is_yarden(std::string_view bytes) {
  try {
    const LabelOptions options;
    return !read_yarden({bytes, "", options, true}).recordings.empty();
  } catch (const Error&) {
    return false;
  }
}

// Of formats with one ending the first whose predicate holds is taken, and the last has none.
const std::array kRows = {
    LabelFormatRow{{LabelFormat::kTextGrid, "textgrid", kTextGrid, "Praat, MFA", "", "seconds",
                    "its tiers", false, true},
                   read_textgrid,
                   write_textgrid},
    LabelFormatRow{{LabelFormat::kPhn, "phn", kPhn, "TIMIT", "", "samples",
                    "its files by their endings; phones first", false, true, true},
                   read_phn,
                   write_phn},
    LabelFormatRow{{LabelFormat::kFestvox, "lab", kLab, "festvox, XWaves", "a line `#`", "seconds",
                    "", false, true},
                   read_festvox,
                   write_festvox,
                   has_hash_line},
    LabelFormatRow{
        {LabelFormat::kHtk, "htk", kLab, "HTK", "no line `#`", "100 ns", "", false, true},
        read_htk,
        write_htk},
    LabelFormatRow{{LabelFormat::kRaven, "raven", kRaven, "Raven selection tables",
                    "the column `Begin Time (s)`", "seconds",
                    "columns with text; `Annotation`, `Label`, `Species` first", true, true},
                   read_raven,
                   write_raven,
                   has_raven_header},
    LabelFormatRow{{LabelFormat::kAudacity, "audacity", kAudacity,
                    "Audacity (crowsetta: aud-seq, aud-bbox)", "", "seconds", "", false, true},
                   read_audacity,
                   write_audacity},
    LabelFormatRow{{LabelFormat::kGenericSeq, "generic-seq", kCsv, "crowsetta, vak",
                    "the column `notated_path`", "seconds or samples", "", true, true},
                   read_csv,
                   write_generic_seq,
                   has_columns<kGenericNames>},
    LabelFormatRow{{LabelFormat::kSimpleSeq, "simple-seq", kCsv, "crowsetta",
                    "the columns `onset_s`, `offset_s`, `label`", "seconds", "", false, true},
                   read_csv,
                   write_simple_seq,
                   has_columns<kSimpleNames>},
    LabelFormatRow{
        {LabelFormat::kDas, "das", kDas, "DAS",
         "the columns `name`, `start_seconds`, `stop_seconds`", "seconds", "", false, true},
        read_csv,
        write_das,
        has_columns<kDasNames>},
    LabelFormatRow{{LabelFormat::kWhisperSeg, "whisperseg", kCsv, "WhisperSeg",
                    "the columns `onset`, `offset`, `cluster`", "seconds", "", false, true},
                   read_csv,
                   write_whisperseg,
                   has_columns<kWhisperNames>},
    LabelFormatRow{
        {LabelFormat::kCsv, "csv", kCsv, "segfuse",
         "the columns `start`, `end`, `label`, or no header", "seconds", "", false, true},
        read_csv,
        write_csv},
    LabelFormatRow{{LabelFormat::kYarden, "yarden", kYarden, "SongAnnotationGUI",
                    "the variables `keys`, `elements`", "seconds", "", true, false},
                   read_yarden,
                   nullptr,
                   is_yarden,
                   true},
    LabelFormatRow{{LabelFormat::kNotMat, "notmat", kNotMat, "evsonganaly", "", "milliseconds", "",
                    false, true},
                   read_notmat,
                   write_notmat,
                   nullptr,
                   true},
    LabelFormatRow{{LabelFormat::kBirdsongRec, "birdsong-rec", kXml,
                    "birdsong-recognition (Annotation.xml)", "", "samples", "", true, true},
                   read_birdsong_rec,
                   write_birdsong_rec},
    LabelFormatRow{
        {LabelFormat::kEaf, "eaf", kEaf, "ELAN", "", "milliseconds", "its tiers", false, true},
        read_eaf,
        write_eaf},
    LabelFormatRow{
        {LabelFormat::kEmu, "emu", kEmu, "EMU-SDMS", "", "samples", "its levels", false, true},
        read_emu,
        write_emu},
    LabelFormatRow{{LabelFormat::kCtm, "ctm", kCtm, "NIST, Kaldi", "", "seconds", "", true, true},
                   read_ctm,
                   write_ctm},
    LabelFormatRow{
        {LabelFormat::kBed, "bed", kBed, "UCSC; names are labels", "", "positions", "", true, true},
        read_bed,
        write_bed},
    LabelFormatRow{{LabelFormat::kGff3, "gff3", kGff3, "Sequence Ontology; types are labels", "",
                    "positions", "types of features; all of them together", true, true},
                   read_gff3,
                   write_gff3},
    LabelFormatRow{
        {LabelFormat::kWfdb, "wfdb", kWfdb, "PhysioNet; the annotation files beside a header", "",
         "samples", "its annotators, `NAME.rhythm` for rhythms", false, false},
        read_wfdb_labels}};

constexpr std::string_view kAudio[] = {".wav",  ".flac", ".mp3",  ".ogg", ".oga",  ".opus",
                                       ".aiff", ".aif",  ".caf",  ".w64", ".rf64", ".au",
                                       ".sph",  ".nist", ".cbin", ".hea"};

constexpr std::string_view kSuffixes[] = {"", "_annotations", "_annotation", "_annot", "_labels"};

/// How long the ending of a name is that is in the list; 0: none of them.
std::size_t ending_length(const std::string& name, Endings endings) {
  std::size_t longest = 0;
  for (const std::string_view ending : endings)
    if (name.size() > ending.size() && name.ends_with(lower(ending)))
      longest = std::max(longest, ending.size());
  return longest;
}

std::string lower_name(std::string_view path) {
  return lower(std::filesystem::path(path).filename().string());
}

}  // namespace

std::span<const LabelFormatRow> format_rows() { return kRows; }

const LabelFormatRow& format_row(LabelFormat format) {
  const auto found = std::ranges::find_if(
      kRows, [&](const LabelFormatRow& row) { return row.info.format == format; });
  if (found == kRows.end())
    throw UsageError("no label format was chosen; name one, as LabelFormat::kTextGrid");
  return *found;
}

const LabelFormatRow& recognise(std::string_view name, std::string_view bytes) {
  const std::string file = lower_name(name);
  const LabelFormatRow* last = nullptr;
  for (const LabelFormatRow& row : kRows) {
    if (ending_length(file, row.info.endings) == 0) continue;
    if (row.is_it != nullptr && row.is_it(bytes)) return row;
    if (row.is_it == nullptr) last = &row;
  }
  if (last != nullptr) return *last;
  std::vector<std::string_view> known;
  for (const LabelFormatRow& row : kRows)
    for (const std::string_view ending : row.info.endings)
      if (std::ranges::find(known, ending) == known.end()) known.push_back(ending);
  throw UsageError(
      fmt::format("{}: the name does not say which label format this is; known are names that end "
                  "in {}",
                  name, fmt::join(known, " ")));
}

}  // namespace data

std::span<const LabelFormatInfo> label_formats() {
  static const auto& all = *new std::vector<LabelFormatInfo>([] {
    std::vector<LabelFormatInfo> infos;
    for (const data::LabelFormatRow& row : data::kRows) infos.push_back(row.info);
    return infos;
  }());
  return all;
}

const LabelFormatInfo& label_format(LabelFormat format) { return data::format_row(format).info; }

LabelFormat written_label_format(std::string_view name) {
  std::vector<std::string> known;
  for (const LabelFormatInfo& info : label_formats()) {
    if (info.name == name && info.written) return info.format;
    if (info.written) known.emplace_back(info.name);
  }
  throw UsageError(
      fmt::format("there is no label format '{}' to write; {}", name, suggestion(name, known)));
}

std::string written_label_formats() {
  std::vector<std::string_view> known;
  for (const LabelFormatInfo& info : label_formats())
    if (info.written) known.push_back(info.name);
  const std::string_view last = known.back();
  known.pop_back();
  return fmt::format("{} or {}", fmt::join(known, ", "), last);
}

std::span<const std::string_view> audio_endings() { return data::kAudio; }

bool is_audio_file(const std::filesystem::path& path) {
  return data::ending_length(data::lower_name(path.string()), data::kAudio) > 0;
}

bool is_label_file(const std::filesystem::path& path) {
  const std::string name = data::lower_name(path.string());
  return std::ranges::any_of(data::kRows, [&](const data::LabelFormatRow& row) {
    return data::ending_length(name, row.info.endings) > 0;
  });
}

std::span<const std::string_view> label_suffixes() { return data::kSuffixes; }

std::string label_file_name(const std::filesystem::path& recording, LabelFormat format) {
  const std::filesystem::path name =
      format == LabelFormat::kNotMat ? recording.filename() : recording.stem();
  return name.string() + std::string(label_format(format).endings.front());
}

std::string label_stem(const std::filesystem::path& path) {
  std::string name = path.filename().string();
  const auto cut = [&](std::span<const std::string_view> endings) {
    const std::size_t length = data::ending_length(data::lower(name), endings);
    name.resize(name.size() - length);
    return length > 0;
  };
  std::size_t longest = 0;
  for (const data::LabelFormatRow& row : data::kRows)
    longest = std::max(longest, data::ending_length(data::lower(name), row.info.endings));
  name.resize(name.size() - longest);
  // "x.Table.1.selections", whose ending is cut.
  if (const std::size_t table = name.rfind(".Table."); table != std::string::npos && table > 0)
    name.resize(table);
  cut(data::kSuffixes);
  cut(data::kAudio);
  return name;
}

}  // namespace segfuse
