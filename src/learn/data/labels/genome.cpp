// Positions on sequences: BED and GFF3. The "recording" is the sequence, and LabelOptions'
// sample_rate says how many positions are a second (features.frame_rate).

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/text.h"
#include "learn/data/labels/fields.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// Fields between tabs, or between blanks where there are none.
std::vector<std::string_view> fields_of(std::string_view line) {
  if (line.find('\t') != std::string_view::npos) return split(line, '\t');
  std::vector<std::string_view> out;
  for (const Field& field : split_fields(line)) out.push_back(field.text);
  return out;
}

bool is_comment(std::string_view line) {
  const std::string_view first = line.substr(0, line.find_first_of(" \t\r"));
  return line.starts_with('#') || first == "track" || first == "browser";
}

LabelSegment segment_of(double rate, std::int64_t start, std::int64_t end, std::string label,
                        std::int64_t line) {
  return {static_cast<double>(start) / rate, static_cast<double>(end) / rate, std::move(label),
          line};
}

/// Where tiers are in the labels.
using Places = std::map<std::string, std::size_t, std::less<>>;

/// The tier of that name, made when it is new.
RawSegments& tier_of(RawLabels& labels, Places& places, const std::string& name,
                     std::string_view file) {
  constexpr std::size_t kMax = 10'000;
  const auto [place, fresh] = places.try_emplace(name, labels.tiers.size());
  if (fresh && labels.tiers.size() >= kMax)
    throw DataError(fmt::format("{}: more than {} types of features", file, kMax));
  if (fresh) labels.tiers.push_back({name, {}});
  return labels.tiers[place->second].raw;
}

/// GFF3 has %XX for control characters and percent signs, in names of sequences also for blanks and
/// for what would begin a line of another kind.
std::string gff3_escaped(std::string_view text, bool sequence) {
  std::string out;
  for (const char c : text) {
    const bool begins = out.empty() && (c == '>' || c == '#');
    const auto byte = static_cast<unsigned char>(c);
    if (byte < ' ' || byte == 0x7F || c == '%' || (sequence && (c == ' ' || begins)))
      out += fmt::format("%{:02X}", byte);
    else
      out += c;
  }
  return out;
}

/// A field with its %XX read.
std::string gff3_text(std::string_view field) {
  std::string out;
  for (std::size_t i = 0; i < field.size(); ++i) {
    const std::string_view digits = field.substr(std::min(i + 1, field.size()), 2);
    unsigned byte = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    const bool escaped = field[i] == '%' && digits.size() == 2 && error == std::errc() &&
                         end == digits.data() + 2 && byte != 0;
    out += escaped ? static_cast<char>(byte) : field[i];
    if (escaped) i += 2;
  }
  return out;
}

std::int64_t position(double seconds, double rate) { return std::llround(seconds * rate); }

}  // namespace

RawLabels read_bed(const LabelText& file) {
  RawLabels out{RawSegments{}};
  const double rate = rate_of(file);
  Recordings recordings(file);
  std::int64_t last = 1;
  for_lines(file.bytes, [&](std::string_view line, std::int64_t number) {
    last = number;
    if (is_comment(line)) return;
    const std::vector<std::string_view> fields = fields_of(line);
    if (fields.size() < 4)
      throw DataError(fmt::format(
          "{}:{}: {} fields; expected \"sequence start end name\", since the names are the labels",
          file.name, number, fields.size()));
    const std::int64_t start = integer_in(fields[1], "the start", file.name, number);
    const std::int64_t end = integer_in(fields[2], "the end", file.name, number);
    std::string label = label_in(fields[3], file.name, number);
    if (!recordings.wants(trim(fields[0]))) return;
    out.tiers[0].raw.segments.push_back(segment_of(rate, start, end, std::move(label), number));
  });
  out.recordings = recordings.finish(last);
  sort_by_start(out.tiers[0].raw);
  return out;
}

RawLabels read_gff3(const LabelText& file) {
  RawLabels out;
  out.tiers_are_one = true;
  const double rate = rate_of(file);
  Recordings recordings(file);
  std::int64_t last = 1;
  bool at_sequences = false;
  Places places;
  for_lines(file.bytes, [&](std::string_view line, std::int64_t number) {
    at_sequences = at_sequences || line.starts_with("##FASTA") || line.starts_with('>');
    if (at_sequences || line.starts_with('#')) return;
    last = number;
    const std::vector<std::string_view> fields = split(line, '\t');
    if (fields.size() != 9)
      throw DataError(fmt::format("{}:{}: {} fields between tabs; a GFF3 line has 9", file.name,
                                  number, fields.size()));
    const std::int64_t start = integer_in(fields[3], "the start", file.name, number);
    const std::int64_t end = integer_in(fields[4], "the end", file.name, number);
    if (start < 1)
      throw DataError(
          fmt::format("{}:{}: the start is {}; positions count from 1", file.name, number, start));
    std::string label = gff3_text(label_in(fields[2], file.name, number));
    if (!recordings.wants(gff3_text(trim(fields[0])))) return;
    RawSegments& tier = tier_of(out, places, label, file.name);
    tier.segments.push_back(segment_of(rate, start - 1, end, std::move(label), number));
  });
  out.recordings = recordings.finish(last);
  for (RawTier& tier : out.tiers) sort_by_start(tier.raw);
  return out;
}

std::string write_bed(const Annotation& annotation, const LabelOutput& output) {
  const double rate = rate_of(output, "BED");
  const std::string name = plain_name(output, "sequence", "\t\r\n");
  if (is_comment(name)) refuse_name(name);
  std::string out;
  for (const LabelSegment& segment : annotation.segments)
    out += fmt::format("{}\t{}\t{}\t{}\n", name, position(segment.start, rate),
                       position(segment.end, rate), plain_label(segment, "\t\r\n"));
  return out;
}

std::string write_gff3(const Annotation& annotation, const LabelOutput& output) {
  const double rate = rate_of(output, "GFF3");
  const std::string name = std::filesystem::path(output.recording).stem().string();
  const std::string sequence = name.empty() ? "sequence" : gff3_escaped(name, true);
  std::string out = "##gff-version 3\n";
  for (const LabelSegment& segment : annotation.segments)
    out += fmt::format("{}\tsegfuse\t{}\t{}\t{}\t.\t.\t.\t.\n", sequence,
                       gff3_escaped(plain_label(segment, "\t\r\n"), false),
                       position(segment.start, rate) + 1, position(segment.end, rate));
  return out;
}

}  // namespace segfuse::data
