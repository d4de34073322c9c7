// The line-based label formats of speech: fields between blanks or tabs.

#include <fmt/core.h>

#include "base/text.h"
#include "learn/data/labels/fields.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// Lines "start end label" with whole numbers, `unit` of them a second. Fields beyond the third are
/// refused unless `more` allows them.
RawSegments integer_lines(const LabelText& file, double unit, bool more) {
  RawSegments out;
  for_lines(file.bytes, [&](std::string_view line, std::int64_t number) {
    const std::vector<Field> fields = split_fields(line);
    if (fields.size() < 3 || (fields.size() > 3 && !more))
      throw DataError(fmt::format("{}:{}: {} fields; expected \"start end label\"", file.name,
                                  number, fields.size()));
    const std::int64_t start = integer_in(fields[0].text, "the start", file.name, number);
    const std::int64_t end = integer_in(fields[1].text, "the end", file.name, number);
    out.segments.push_back({static_cast<double>(start) / unit, static_cast<double>(end) / unit,
                            std::string(fields[2].text), number});
  });
  return out;
}

}  // namespace

RawLabels read_phn(const LabelText& file) { return integer_lines(file, rate_of(file), false); }

RawLabels read_htk(const LabelText& file) { return integer_lines(file, 1e7, true); }

RawLabels read_festvox(const LabelText& file) {
  RawSegments out;
  bool in_header = true;
  double start = 0;
  for_lines(file.bytes, [&](std::string_view line, std::int64_t number) {
    if (in_header) {
      in_header = trim(line) != "#";
      return;
    }
    const std::vector<Field> fields = split_fields(line);
    if (fields.size() < 3 || (fields.size() > 3 && !fields[3].text.starts_with(';')))
      throw DataError(fmt::format("{}:{}: {} fields; expected \"end number label\"", file.name,
                                  number, fields.size()));
    const double end = number_in(fields[0].text, "the end time", file.name, number);
    number_in(fields[1].text, "the second field", file.name, number);
    std::string_view label = fields[2].text;
    if (label.size() > 1 && label.ends_with(';')) label.remove_suffix(1);
    out.segments.push_back({start, end, std::string(label), number});
    start = end;
  });
  if (in_header)
    throw DataError(fmt::format(
        "{}: no line \"#\" that ends the header; is this a festvox label file?", file.name));
  return out;
}

RawLabels read_audacity(const LabelText& file) {
  RawSegments out;
  for_lines(file.bytes, [&](std::string_view line, std::int64_t number) {
    if (line.starts_with('\\')) return;  // the frequency range of the label above
    const std::vector<std::string_view> fields = split(line, '\t');
    if (fields.size() != 3)
      throw DataError(fmt::format("{}:{}: {} fields between tabs; expected start, end, label",
                                  file.name, number, fields.size()));
    out.segments.push_back({number_in(fields[0], "the start", file.name, number),
                            number_in(fields[1], "the end", file.name, number),
                            label_in(fields[2], file.name, number), number});
  });
  return out;
}

RawLabels read_ctm(const LabelText& file) {
  RawLabels out{RawSegments{}};
  Recordings recordings(file);
  std::int64_t last = 1;
  for_lines(file.bytes, [&](std::string_view line, std::int64_t number) {
    last = number;
    if (line.starts_with(";;")) return;
    const std::vector<Field> fields = split_fields(line);
    if (fields.size() < 5 || fields.size() > 7)
      throw DataError(
          fmt::format("{}:{}: {} fields; expected \"recording channel start duration label\"",
                      file.name, number, fields.size()));
    const double start = number_in(fields[2].text, "the start", file.name, number);
    const double length = number_in(fields[3].text, "the duration", file.name, number);
    if (!recordings.wants(fields[0].text)) return;
    out.tiers[0].raw.segments.push_back(
        {start, start + length, std::string(fields[4].text), number});
  });
  out.recordings = recordings.finish(last);
  sort_by_start(out.tiers[0].raw);
  return out;
}

}  // namespace segfuse::data
