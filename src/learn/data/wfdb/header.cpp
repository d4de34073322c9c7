// Headers of WFDB records: a line for the record, one for each signal or part, and comments.

#include <fmt/core.h>

#include <cmath>

#include "base/text.h"
#include "learn/data/text.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

constexpr std::int64_t kMaxSignals = 1024;
constexpr std::int64_t kMaxParts = 1'000'000;
constexpr std::int64_t kMaxSamples = std::int64_t{1} << 40;
constexpr std::int64_t kMaxOffset = std::int64_t{1} << 40;

/// The words of one line, with the sentences of what is wrong.
class HeaderLine {
 public:
  HeaderLine(std::string_view name, std::int64_t line, std::string_view text)
      : name_(name), line_(line), fields_(split_fields(text)) {}

  bool has(std::size_t i) const { return i < fields_.size(); }
  std::string_view word(std::size_t i) const { return has(i) ? fields_[i].text : ""; }
  /// The words from the i-th on, as they stand there.
  std::string_view rest(std::size_t i) const {
    if (!has(i)) return "";
    const char* const begin = fields_[i].text.data();
    const std::string_view last = fields_.back().text;
    return {begin, static_cast<std::size_t>(last.data() + last.size() - begin)};
  }
  std::int64_t line() const { return line_; }

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}:{}: {}", name_, line_, what));
  }
  std::int64_t integer(std::string_view text, std::string_view what, std::int64_t least,
                       std::int64_t most) const {
    const std::optional<std::int64_t> value = parse_int(text);
    if (!value || *value < least || *value > most)
      refuse(fmt::format("{} is {}; expected a whole number from {} to {}", what, shown(text),
                         least, most));
    return *value;
  }
  double number(std::string_view text, std::string_view what) const {
    const std::optional<double> value = parse_double(text);
    if (!value) refuse(fmt::format("{} is {}; expected a number", what, shown(text)));
    return *value;
  }

 private:
  std::string_view name_;
  std::int64_t line_;
  std::vector<Field> fields_;
};

/// Cuts `text` at the first `mark`; what stands behind it, if it is there.
std::optional<std::string_view> cut(std::string_view& text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view behind = text.substr(at + 1);
  text = text.substr(0, at);
  return behind;
}

/// NAME[/PARTS] SIGNALS [RATE[/COUNTER[(BASE)]] [SAMPLES [TIME [DATE]]]]; returns how many lines of
/// signals or parts follow.
std::int64_t read_record_line(const HeaderLine& line, WfdbHeader& out) {
  std::string_view name = line.word(0);
  const std::optional<std::string_view> parts = cut(name, '/');
  out.name = name;
  if (!line.has(1))
    line.refuse("the record line ends after the name; expected the number of signals");
  const std::int64_t signals = line.integer(line.word(1), "the number of signals", 0, kMaxSignals);
  if (line.has(2)) {
    std::string_view rate = line.word(2);
    cut(rate, '/');
    out.rate = line.number(rate, "the sampling frequency");
    if (!(out.rate > 0 && out.rate <= 1e8))
      line.refuse(
          fmt::format("the sampling frequency is {} Hz; expected more than 0, at most 1e8", rate));
  }
  if (line.has(3)) {
    const std::int64_t samples =
        line.integer(line.word(3), "the number of samples", 0, kMaxSamples);
    if (samples > 0) out.samples = samples;
  }
  if (parts) return line.integer(*parts, "the number of segments", 1, kMaxParts);
  if (signals == 0) line.refuse("the record has no signals; expected at least one");
  return signals;
}

/// FORMAT[xSAMPLES][:SKEW][+OFFSET]
void read_format(const HeaderLine& line, WfdbSignal& out) {
  std::string_view text = line.word(1);
  if (const auto offset = cut(text, '+'))
    out.offset = line.integer(*offset, "the byte offset", 0, kMaxOffset);
  if (const auto skew = cut(text, ':'))
    if (const std::int64_t by = line.integer(*skew, "the skew", -kMaxOffset, kMaxOffset); by != 0)
      line.refuse(fmt::format(
          "the signal is skewed by {} samples, which is not read; rewrite the record without skew, "
          "as with WFDB's xform",
          by));
  if (const auto count = cut(text, 'x'))
    if (const std::int64_t times =
            line.integer(*count, "samples of the signal in a frame", 1, 1000);
        times != 1)
      line.refuse(fmt::format(
          "the signal has {} samples in a frame, which is not read; give all signals one rate, as "
          "with WFDB's xform",
          times));
  constexpr int kFormats[] = {8, 16, 24, 32, 61, 80, 160, 212, 310, 311};
  const std::optional<std::int64_t> format = parse_int(text);
  for (const int known : kFormats)
    if (format == known) out.format = known;
  if (out.format == 0)
    line.refuse(fmt::format(
        "the signal file has the format {}; expected 8, 16, 24, 32, 61, 80, 160, 212, 310 or 311",
        shown(text)));
}

/// GAIN[(BASELINE)][/UNITS]; returns whether a baseline is given.
bool read_gain(const HeaderLine& line, WfdbSignal& out) {
  std::string_view text = line.word(2);
  cut(text, '/');
  const std::optional<std::string_view> behind = cut(text, '(');
  const double gain = line.number(text, "the gain");
  if (gain != 0) out.gain = gain;
  if (!behind) return false;
  std::string_view baseline = *behind;
  if (!cut(baseline, ')'))
    line.refuse(fmt::format("the gain is {}; expected GAIN(BASELINE)/UNITS", shown(line.word(2))));
  out.baseline = line.number(baseline, "the baseline");
  return true;
}

/// FILE FORMAT [GAIN [BITS [ZERO [FIRST [CHECKSUM [BLOCK [DESCRIPTION]]]]]]]
WfdbSignal read_signal_line(const HeaderLine& line, std::size_t number) {
  constexpr std::int64_t kMax = std::int64_t{1} << 32;
  WfdbSignal out;
  out.line = line.line();
  out.file = line.word(0);
  if (!line.has(1)) line.refuse("the line of a signal has no format");
  if (out.file == "-" || out.file == "~" || out.file.find('/') != std::string::npos)
    line.refuse(
        fmt::format("the signal file is {}; expected a file beside the header", shown(out.file)));
  read_format(line, out);
  const bool has_baseline = line.has(2) && read_gain(line, out);
  if (line.has(3)) line.integer(line.word(3), "the resolution in bits", 0, 64);
  if (line.has(4)) out.zero = line.integer(line.word(4), "the zero of the converter", -kMax, kMax);
  if (!has_baseline) out.baseline = static_cast<double>(out.zero);
  if (line.has(5)) out.first = line.integer(line.word(5), "the first value", -kMax, kMax);
  if (line.has(6)) out.checksum = line.integer(line.word(6), "the checksum", -kMax, kMax);
  out.description = line.has(8) ? std::string(line.rest(8)) : fmt::format("signal {}", number);
  return out;
}

WfdbPart read_part_line(const HeaderLine& line) {
  WfdbPart out{std::string(line.word(0)), 0, line.line()};
  if (!line.has(1)) line.refuse("the line of a segment has no number of samples");
  out.samples = line.integer(line.word(1), "the number of samples", 0, kMaxSamples);
  if (out.samples == 0)
    line.refuse(
        "the record has a layout segment, and its segments other signals; such records are not "
        "read; read the segments as records of their own");
  if (out.name == "~")
    line.refuse(
        fmt::format("{} samples of the record are missing here; such records are not read; "
                    "read the segments as records of their own",
                    out.samples));
  if (out.name.find('/') != std::string::npos)
    line.refuse(
        fmt::format("the segment is {}; expected a record beside this one", shown(out.name)));
  return out;
}

}  // namespace

WfdbHeader parse_wfdb_header(std::string_view text, std::string_view name) {
  WfdbHeader out;
  const std::string utf8 = to_utf8(text, name);
  std::int64_t number = 0;
  std::int64_t wanted = -1;
  bool parts = false;
  for (const std::string_view raw : split_lines(utf8)) {
    ++number;
    if (trim(raw).empty() || trim(raw).starts_with('#')) continue;
    const HeaderLine line(name, number, raw);
    const std::size_t have = out.signals.size() + out.parts.size();
    if (wanted < 0) {
      wanted = read_record_line(line, out);
      parts = line.word(0).find('/') != std::string_view::npos;
    } else if (static_cast<std::int64_t>(have) == wanted) {
      line.refuse(fmt::format("a line after those of {} {}; expected only comments", wanted,
                              parts ? "segments" : "signals"));
    } else if (parts) {
      out.parts.push_back(read_part_line(line));
    } else {
      out.signals.push_back(read_signal_line(line, have));
    }
  }
  const auto have = static_cast<std::int64_t>(out.signals.size() + out.parts.size());
  if (wanted < 0)
    throw DataError(
        fmt::format("{}: the header has no record line; expected NAME SIGNALS RATE "
                    "SAMPLES",
                    name));
  if (have < wanted)
    throw DataError(fmt::format("{}:{}: the header ends after {} of {} {}", name, number, have,
                                wanted, parts ? "segments" : "signals"));
  return out;
}

}  // namespace segfuse::data
