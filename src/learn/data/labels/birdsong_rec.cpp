// Annotation.xml of the birdsong-recognition data: sequences of notes, whose positions count
// samples; one file for all recordings of a bird.

#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "learn/data/labels/fields.h"
#include "learn/data/labels/xml.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// A number of samples; those of a file are less than a day at a high rate.
std::int64_t samples_in(const XmlFile& xml, const pugi::xml_node& node, const char* key,
                        std::string_view name) {
  constexpr std::int64_t kMax = std::int64_t{1} << 40;
  const std::int64_t value =
      integer_in(trim(xml.child_text(node, key)), key, name, xml.line_of(node));
  if (value < 0 || value > kMax)
    throw DataError(fmt::format("{}:{}: {} is {}; expected 0 to {}", name, xml.line_of(node), key,
                                value, kMax));
  return value;
}

}  // namespace

RawLabels read_birdsong_rec(const LabelText& file) {
  const XmlFile xml(file.bytes, file.name, "Sequences");
  const double rate = rate_of(file);
  RawLabels out{RawSegments{}};
  Recordings recordings(file);
  for (const pugi::xml_node& sequence : xml.root().children("Sequence")) {
    if (!recordings.wants(trim(xml.child_text(sequence, "WaveFileName")))) continue;
    const std::int64_t begin = samples_in(xml, sequence, "Position", file.name);
    for (const pugi::xml_node& note : sequence.children("Note")) {
      const std::int64_t start = begin + samples_in(xml, note, "Position", file.name);
      const std::int64_t end = start + samples_in(xml, note, "Length", file.name);
      const std::int64_t line = xml.line_of(note);
      out.tiers[0].raw.segments.push_back(
          {static_cast<double>(start) / rate, static_cast<double>(end) / rate,
           label_in(xml.child_text(note, "Label"), file.name, line), line});
    }
  }
  out.recordings = recordings.finish(1);
  sort_by_start(out.tiers[0].raw);
  return out;
}

std::string write_birdsong_rec(const Annotation& annotation, const LabelOutput& output) {
  const double rate = rate_of(output, "birdsong-recognition");
  std::string notes;
  for (const LabelSegment& segment : annotation.segments) {
    const std::int64_t start = std::llround(segment.start * rate);
    notes += fmt::format(
        "    <Note>\n      <Position>{}</Position>\n      <Length>{}</Length>\n"
        "      <Label>{}</Label>\n    </Note>\n",
        start, std::llround(segment.end * rate) - start, xml_escaped(segment.label));
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Sequences>\n  <NumSequence>1</NumSequence>\n"
      "  <Sequence>\n    <NumNote>{}</NumNote>\n    <WaveFileName>{}</WaveFileName>\n"
      "    <Position>0</Position>\n    <Length>{}</Length>\n{}  </Sequence>\n</Sequences>\n",
      annotation.segments.size(), xml_escaped(output.recording),
      std::llround(annotation.duration * rate), notes);
}

}  // namespace segfuse::data
