// What segments the annotations of a WFDB record are.

#include <fmt/format.h>

#include <algorithm>

#include "learn/data/text.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

constexpr int kPWave = 24;
constexpr int kTWave = 27;
constexpr int kRhythm = 28;
constexpr int kUWave = 29;
constexpr int kBegin = 39;
constexpr int kEnd = 40;
constexpr double kLongestPause = 2;  // seconds between waves that somebody looked at

bool is_beat(int code) {
  constexpr int kOthers[] = {25, 30, 31, 34, 35, 38, 41};
  return (code >= 1 && code <= 13) || std::ranges::find(kOthers, code) != std::end(kOthers);
}
bool is_wave(int code) {
  return is_beat(code) || code == kPWave || code == kTWave || code == kUWave;
}
bool is_bracket(int code) { return code == kBegin || code == kEnd; }

/// Collects segments in order; what has no length is left out.
class SegmentList {
 public:
  explicit SegmentList(double rate) : rate_(rate) {}
  void add(std::int64_t begin, std::int64_t end, std::string label) {
    const auto number = static_cast<std::int64_t>(raw.segments.size()) + 1;
    if (end > begin)
      raw.segments.push_back({seconds(begin), seconds(end), std::move(label), number});
  }
  double seconds(std::int64_t ticks) const { return static_cast<double>(ticks) / rate_; }

  RawSegments raw;

 private:
  double rate_;
};

/// "(" PEAK ")": onset, peak and end of a wave. Where one of the brackets is missing, the wave
/// begins or ends at its peak; a peak without either is no segment.
class Waves {
 public:
  Waves(SegmentList& out, const std::map<int, std::string>& symbols)
      : out_(out), symbols_(symbols) {}

  void add(const WfdbAnnotation& a) {
    if (a.code == kBegin) {
      finish(last_peak_);
      begin_ = a.time;
    } else if (a.code == kEnd) {
      finish(a.time);
    } else if (is_wave(a.code)) {
      const std::string label = wfdb_symbol(a.code, symbols_);
      // A wave with two peaks has one name; another name is another wave.
      if (!label_.empty() && label != label_) finish(last_peak_);
      if (!begin_) begin_ = a.time;
      label_ = label;
      last_peak_ = a.time;
    }
  }
  void finish() { finish(last_peak_); }

 private:
  void finish(std::int64_t end) {
    if (begin_ && !label_.empty()) out_.add(*begin_, end, label_);
    begin_.reset();
    label_.clear();
  }

  SegmentList& out_;
  const std::map<int, std::string>& symbols_;
  std::optional<std::int64_t> begin_;
  std::int64_t last_peak_ = 0;
  std::string label_;
};

/// What lies between waves is a segment of its own, unless nobody has looked at it.
void fill_pauses(RawSegments& raw) {
  std::vector<LabelSegment> out;
  for (LabelSegment& segment : raw.segments) {
    if (!out.empty() && segment.start > out.back().end &&
        segment.start - out.back().end <= kLongestPause)
      out.push_back({out.back().end, segment.start, "-", segment.line});
    out.push_back(std::move(segment));
  }
  raw.segments = std::move(out);
}

/// Each of these lasts until the next one, the last until the end of the record.
RawSegments until_the_next(const std::vector<std::pair<std::int64_t, std::string>>& points,
                           double rate, double seconds) {
  SegmentList out(rate);
  const auto end = static_cast<std::int64_t>(seconds * rate + 0.5);
  for (std::size_t i = 0; i < points.size(); ++i)
    out.add(points[i].first, i + 1 < points.size() ? points[i + 1].first : end, points[i].second);
  return std::move(out.raw);
}

void check_inside(const WfdbAnnotations& annotations, double rate, double seconds,
                  std::string_view name) {
  constexpr double kSlack = 0.1;
  for (const WfdbAnnotation& a : annotations.all)
    if (static_cast<double>(a.time) / rate > seconds + kSlack)
      throw DataError(fmt::format(
          "{}: byte {}: an annotation at {} s; the record ends at {} s: the annotations belong to "
          "another record, or count time otherwise",
          name, a.byte, format_seconds(static_cast<double>(a.time) / rate),
          format_seconds(seconds)));
}

}  // namespace

std::vector<RawTier> wfdb_tiers(const WfdbAnnotations& annotations, const std::string& annotator,
                                double rate, double seconds, std::string_view name) {
  const double ticks = annotations.rate.value_or(rate);
  check_inside(annotations, ticks, seconds, name);
  SegmentList waves(ticks);
  Waves reader(waves, annotations.symbols);
  std::vector<std::pair<std::int64_t, std::string>> beats, rhythms;
  bool has_waves = false;
  for (const WfdbAnnotation& a : annotations.all) {
    reader.add(a);
    has_waves = has_waves || is_bracket(a.code);
    if (is_beat(a.code)) beats.emplace_back(a.time, wfdb_symbol(a.code, annotations.symbols));
    if (a.code == kRhythm && a.text.size() > 1 && a.text[0] == '(')
      rhythms.emplace_back(a.time, a.text.substr(1));
  }
  reader.finish();
  fill_pauses(waves.raw);
  std::vector<RawTier> out;
  if (has_waves) out.push_back({annotator, std::move(waves.raw)});
  if (!has_waves && !beats.empty())
    out.push_back({annotator, until_the_next(beats, ticks, seconds)});
  if (!rhythms.empty())
    out.push_back({annotator + ".rhythm", until_the_next(rhythms, ticks, seconds)});
  for (RawTier& tier : out) tier.all_looked_at = false;
  if (out.empty()) out.push_back({annotator, {}, false});
  return out;
}

}  // namespace segfuse::data
