#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "base/check.h"
#include "base/console/markup.h"
#include "learn/report/align.h"
#include "learn/report/media.h"
#include "learn/report/report.h"
#include "learn/report/report_json.h"

namespace segfuse::learn {
namespace {

constexpr double kLeft = 92;
constexpr double kRight = 14;
constexpr double kGap = 6;
constexpr double kLaneHeight = 30;
constexpr double kLetter = 7.4;  // width of an average letter at 12 px, on the safe side
constexpr std::int64_t kMaxSegments = 150;
constexpr std::int64_t kMaxColumns = 800;
constexpr std::size_t kMaxLanes = 4;
constexpr std::size_t kMaxImageBytes = 60'000;
constexpr std::int64_t kImageBins = 40;
constexpr std::int64_t kImageCells = 12'000;

constexpr std::string_view kStyle =
    "text{font:12px system-ui,'Segoe UI',Roboto,Arial,sans-serif;fill:#566273}"
    ".h{font-size:15px;font-weight:600;fill:#18212c}.l{text-anchor:middle}.l text{fill:#18212c}"
    ".g{fill:#f6e3ae}.gl{text-anchor:middle}.gl text{fill:#6b4e00}.r{fill:#3f86c9}.w{fill:#cf4a14}"
    ".m{fill:none;stroke:#cf4a14;stroke-width:2;stroke-dasharray:4 2}.e{text-anchor:end}"
    ".c{text-anchor:middle}.b{fill:none;stroke:#00805f;stroke-width:1.6;stroke-linejoin:round}"
    ".ba{fill:#00805f;opacity:.16}.s{fill:#eef1f5}.a{fill:none;stroke:#b9c2ce}"
    ".o{fill:none;stroke:#e3b23c;opacity:.75}.v{fill:#5c6f86}";

/// A coordinate: one decimal, none when it is not needed.
std::string num(double v) {
  std::string out = fmt::format("{:.1f}", v);
  if (out.ends_with(".0")) out.resize(out.size() - 2);
  return out == "-0" ? "0" : out;
}

template <class... Args>
void put(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

/// The part of a series of steps that lies in [from, to]; `group` values a step.
std::span<const float> window(const std::vector<float>& values, double step, double from, double to,
                              std::int64_t group = 1) {
  const auto count = static_cast<std::int64_t>(values.size()) / group;
  const auto at = [&](double t) {
    const double index = std::clamp(std::round(t / step), 0.0, static_cast<double>(count));
    return static_cast<std::int64_t>(index);
  };
  const std::int64_t begin = at(from);
  const std::int64_t length = std::max<std::int64_t>(0, at(to) - begin);
  return std::span<const float>(values).subspan(static_cast<std::size_t>(begin * group),
                                                static_cast<std::size_t>(length * group));
}

class SequencePainter {
 public:
  SequencePainter(ReportRecording recording, const std::vector<std::string>& labels,
                  const SequencePicture& picture)
      : recording_(std::move(recording)), labels_(labels), picture_(picture) {
    cut_to_window();
  }

  std::string paint() {
    const std::string& name = picture_.title.empty() ? recording_.name : picture_.title;
    if (!name.empty()) put(body_, "<text x=\"14\" y=\"26\" class=\"h\">{}</text>", shown(name, 90));
    y_ = name.empty() ? 14 : 40;
    paint_wave();
    paint_features();
    paint_gold();
    for (std::size_t i = 0; i < recording_.decoded.size(); ++i) paint_decoded(i);
    paint_boundary();
    paint_axis();
    paint_legend();
    return document(name);
  }

 private:
  std::int64_t columns() const { return std::min<std::int64_t>(kMaxColumns, std::llround(plot())); }
  double plot() const { return picture_.width - kLeft - kRight; }
  double x(double t) const { return kLeft + (t - from_) / (to_ - from_) * plot(); }
  double clipped(double t) const { return std::clamp(x(t), kLeft, kLeft + plot()); }

  std::string shown(const std::string& text, std::size_t letters) const {
    const std::string clean = printable_utf8(text);
    std::string out;
    std::size_t count = 0;
    for (const char c : clean) {
      const bool starts = (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
      if (starts && ++count > letters) return escape_markup(out) + "\xE2\x80\xA6";
      out += c;
    }
    return escape_markup(out);
  }

  std::string label(const ReportSegment& s) const {
    return s.label < 0 ? "?" : labels_[static_cast<std::size_t>(s.label)];
  }

  void cut_to_window() {
    const double end = recording_seconds(recording_);
    from_ = std::clamp(picture_.from, 0.0, end);
    to_ = picture_.to > from_ ? std::min(picture_.to, end) : end;
    if (recording_.decoded.size() > kMaxLanes) recording_.decoded.resize(kMaxLanes);
    const auto keep = [&](std::vector<ReportSegment>& segments) {
      std::erase_if(segments, [&](const auto& s) { return s.end <= from_ || s.start >= to_; });
    };
    keep(recording_.gold);
    for (ReportLane& lane : recording_.decoded) keep(lane.segments);
    to_ = std::min(to_, cut_recording(recording_, kMaxSegments));
    if (!(to_ > from_)) to_ = from_ + 1;
  }

  void name_lane(const std::string& name, double height) {
    put(body_, "<text x=\"{}\" y=\"{}\" class=\"e\">{}</text>", num(kLeft - 9),
        num(y_ + height / 2 + 4), shown(name, 12));
  }

  void back(double height) {
    put(body_, "<path class=\"s\" d=\"M{} {}h{}v{}h-{}z\"/>", num(kLeft), num(y_), num(plot()),
        num(height), num(plot()));
  }

  void paint_wave() {
    if (recording_.waveform.empty()) return;
    const auto samples = window(recording_.waveform, 1 / recording_.sample_rate, from_, to_);
    const Envelope e = make_envelope(samples, columns());
    const double height = 58;
    name_lane("waveform", height);
    back(height);
    const double step = static_cast<double>(samples.size()) / recording_.sample_rate /
                        (to_ - from_) * plot() /
                        static_cast<double>(std::max<std::int64_t>(1, e.columns));
    std::string path;
    const auto point = [&](std::int64_t c, std::size_t which) {
      const double v = (e.bytes[static_cast<std::size_t>(2 * c) + which] - 128.0) / 127.0;
      put(path, "{}{} {}", path.empty() ? "M" : "L",
          num(kLeft + (static_cast<double>(c) + .5) * step),
          num(y_ + height / 2 - v * height / 2 + (which == 0 ? 0.4 : -0.4)));
    };
    for (std::int64_t c = 0; c < e.columns; ++c) point(c, 1);
    for (std::int64_t c = e.columns; c-- > 0;) point(c, 0);
    put(body_, "<path class=\"v\" d=\"{}z\"/>", path);
    guides(height);
    y_ += height + kGap;
  }

  /// One path a brightness level; a level covers what the next one covers too, so no seams show.
  static std::string levels(const FeatureImage& image) {
    static constexpr const char* kColors[] = {"#e3ebf4", "#c6d6e8", "#a6bfdb", "#84a7cd",
                                              "#628bb8", "#436d9f", "#2b5083", "#193663"};
    std::string out;
    for (int level = 0; level < 8; ++level) {
      std::string path;
      std::int64_t at_x = 0;
      std::int64_t at_y = 0;
      for (std::int64_t b = 0; b < image.bins; ++b) {
        for (std::int64_t t = 0; t < image.frames;) {
          const auto on = [&](std::int64_t k) {
            return image.bytes[static_cast<std::size_t>(k * image.bins + b)] >= 28 * (level + 1);
          };
          std::int64_t end = t;
          while (end < image.frames && on(end)) ++end;
          const std::int64_t row = image.bins - 1 - b;
          if (end > t) {
            put(path, "m{} {}h{}", t - at_x, row - at_y, end - t);
            at_x = end;
            at_y = row;
          }
          t = std::max(end, t + 1);
        }
      }
      if (!path.empty()) {
        put(out, "<path stroke=\"{}\" d=\"M0 0{}\"/>", kColors[level], path);
      }
    }
    return out;
  }

  void paint_features() {
    if (recording_.features.empty()) return;
    const std::int64_t bins = recording_.feature_bins;
    const auto cells = window(recording_.features, recording_.feature_step, from_, to_, bins);
    if (cells.empty()) return;
    const double height = 112;
    name_lane("features", height);
    const double width = static_cast<double>(cells.size()) / static_cast<double>(bins) *
                         recording_.feature_step / (to_ - from_) * plot();
    std::string image;
    for (std::int64_t most = kImageCells;; most = most * 3 / 4) {
      const FeatureImage f = make_feature_image(cells, bins, kImageBins, most);
      image = fmt::format(
          "<g fill=\"none\" stroke-width=\"1.04\" transform=\"translate({} {}) scale({:.4f} "
          "{:.4f}) "
          "translate(0 .5)\" shape-rendering=\"crispEdges\">{}</g>",
          num(kLeft), num(y_), std::min(width, plot()) / static_cast<double>(f.frames),
          height / static_cast<double>(f.bins), levels(f));
      if (image.size() <= kMaxImageBytes || most < 100) break;
    }
    body_ += image;
    guides(height);
    put(body_, "<path class=\"a\" d=\"M{} {}h{}v{}h-{}z\"/>", num(kLeft), num(y_), num(plot()),
        num(height), num(plot()));
    y_ += height + kGap;
  }

  /// Gold boundaries through the lane at y_.
  void guides(double height) {
    std::string path;
    for (const ReportSegment& s : recording_.gold) {
      if (s.start > from_) put(path, "M{} {}v{}", num(x(s.start)), num(y_), num(height));
    }
    if (!path.empty()) put(body_, "<path class=\"o\" d=\"{}\"/>", path);
  }

  std::string box(const ReportSegment& s, double inset = 0) const {
    const double l = clipped(s.start) + inset;
    const double w = std::max(1.0, clipped(s.end) - 1 - inset - l);
    const std::string width = num(w);
    return fmt::format("M{} {}h{}v{}h-{}z", num(l), num(y_ + inset), width,
                       num(kLaneHeight - 2 * inset), width);
  }

  /// The mark at the foot of a wrong segment.
  std::string bar(const ReportSegment& s) const {
    const std::string width = num(std::max(1.0, clipped(s.end) - 1 - clipped(s.start)));
    return fmt::format("M{} {}h{}v4h-{}z", num(clipped(s.start)), num(y_ + kLaneHeight - 4), width,
                       width);
  }

  void open_labels(const char* style) {
    put(body_, "<g class=\"{}\" transform=\"translate(0 {})\">", style,
        num(y_ + kLaneHeight / 2 + 4));
  }

  void write_label(const ReportSegment& s, const std::string& text) {
    const double l = clipped(s.start);
    const double r = clipped(s.end);
    const auto letters = static_cast<double>(std::count_if(text.begin(), text.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    }));
    if (letters * kLetter + 1 > r - l) return;
    put(body_, "<text x=\"{}\">{}</text>", num((l + r - 1) / 2), escape_markup(text));
  }

  void paint_gold() {
    if (recording_.gold.empty()) return;
    name_lane("gold", kLaneHeight);
    std::string boxes;
    for (const ReportSegment& s : recording_.gold) boxes += box(s);
    put(body_, "<path class=\"g\" d=\"{}\"/>", boxes);
    if (!recording_.decoded.empty()) {
      const Alignment a = align_segments(recording_.gold, recording_.decoded[0].segments);
      std::string missed;
      for (std::size_t i = 0; i < a.gold.size(); ++i) {
        if (a.gold[i] == '-') missed += box(recording_.gold[i], 1);
      }
      if (!missed.empty()) put(body_, "<path class=\"m\" d=\"{}\"/>", missed);
    }
    open_labels("gl");
    for (const ReportSegment& s : recording_.gold) write_label(s, label(s));
    body_ += "</g>";
    y_ += kLaneHeight + kGap;
  }

  void paint_decoded(std::size_t index) {
    const ReportLane& lane = recording_.decoded[index];
    name_lane(lane.name.empty() ? "decoded" : lane.name, kLaneHeight);
    const bool judged = !recording_.gold.empty();
    const Alignment a = align_segments(recording_.gold, lane.segments);
    std::map<std::pair<char, int>, std::string> boxes;  // by class and opacity in 1/20
    std::string bars;
    for (std::size_t i = 0; i < lane.segments.size(); ++i) {
      const ReportSegment& s = lane.segments[i];
      const bool right = !judged || a.decoded[i] == '=';
      const double p = std::isfinite(s.posterior) ? std::clamp(s.posterior, 0.0, 1.0) : 0.7;
      boxes[{right ? 'r' : 'w', static_cast<int>(std::lround(20 * (0.14 + 0.56 * p)))}] += box(s);
      if (!right) bars += bar(s);
    }
    for (const auto& [key, path] : boxes) {
      put(body_, "<path class=\"{}\" opacity=\"{:.2f}\" d=\"{}\"/>", key.first, key.second / 20.0,
          path);
    }
    if (!bars.empty()) put(body_, "<path class=\"w\" d=\"{}\"/>", bars);
    open_labels("l");
    for (std::size_t i = 0; i < lane.segments.size(); ++i) {
      const bool inserted = judged && a.decoded[i] == '+';
      write_label(lane.segments[i], (inserted ? "+" : "") + label(lane.segments[i]));
    }
    body_ += "</g>";
    y_ += kLaneHeight + kGap;
  }

  void paint_boundary() {
    if (recording_.boundary.empty()) return;
    const double height = 54;
    name_lane("boundary", height);
    back(height);
    const auto values = window(recording_.boundary, recording_.boundary_step, from_, to_);
    const ProbabilityCurve curve = make_probability_curve(values, columns());
    const double width =
        static_cast<double>(values.size()) * recording_.boundary_step / (to_ - from_) * plot();
    const double step = width / static_cast<double>(std::max<std::int64_t>(1, curve.columns));
    std::string path;
    for (std::int64_t c = 0; c < curve.columns; ++c) {
      const double v = curve.bytes[static_cast<std::size_t>(c)] / 255.0;
      put(path, "{}{} {}", c == 0 ? "M" : "L", num(kLeft + (static_cast<double>(c) + .5) * step),
          num(y_ + height - 1 - v * (height - 4)));
    }
    const std::string floor = num(y_ + height - 1);
    put(body_, "<path class=\"ba\" d=\"{}L{} {}L{} {}z\"/><path class=\"b\" d=\"{}\"/>", path,
        num(kLeft + width - step / 2), floor, num(kLeft + step / 2), floor, path);
    guides(height);
    y_ += height + kGap;
  }

  void paint_axis() {
    const double raw = (to_ - from_) / std::max(2.0, plot() / 90);
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    double step = 10 * power;
    for (const double m : {5.0, 2.0, 1.0}) {
      if (m * power >= raw) step = m * power;
    }
    const int places = std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 6);
    std::string path = fmt::format("M{} {}h{}", num(kLeft), num(y_), num(plot()));
    const auto first = static_cast<std::int64_t>(std::ceil(from_ / step - 1e-9));
    for (std::int64_t i = first; static_cast<double>(i) * step <= to_ + 1e-9; ++i) {
      const double t = static_cast<double>(i) * step;
      put(path, "M{} {}v5", num(x(t)), num(y_));
      put(body_, "<text x=\"{}\" y=\"{}\" class=\"c\">{:.{}f}</text>", num(x(t)), num(y_ + 18), t,
          places);
    }
    put(body_, "<path class=\"a\" d=\"{}\"/>", path);
    put(body_, "<text x=\"{}\" y=\"{}\" class=\"c\">time (s)</text>", num(kLeft + plot() / 2),
        num(y_ + 34));
    y_ += 46;
  }

  void paint_legend() {
    double at = kLeft;
    const auto item = [&](const std::string& sign, const char* text) {
      const double width = 36 + 7.2 * static_cast<double>(std::char_traits<char>::length(text));
      if (at > kLeft && at + width > picture_.width) {
        at = kLeft;
        y_ += 20;
      }
      put(body_, "<g transform=\"translate({} {})\">{}<text x=\"28\" y=\"11\">{}</text></g>",
          num(at), num(y_), sign, text);
      at += width;
    };
    const bool decoded = !recording_.decoded.empty();
    const bool judged = decoded && !recording_.gold.empty();
    if (!recording_.gold.empty()) item("<path class=\"g\" d=\"M0 0h22v13h-22z\"/>", "gold");
    if (decoded) {
      item("<path class=\"r\" opacity=\".7\" d=\"M0 0h22v13h-22z\"/>",
           judged ? "decoded, right" : "decoded");
    }
    if (judged) {
      item(
          "<path class=\"w\" opacity=\".5\" d=\"M0 0h22v13h-22z\"/>"
          "<path class=\"w\" d=\"M0 10h22v3h-22z\"/>",
          "wrong or inserted (+)");
      item("<path class=\"m\" d=\"M1 1h20v11h-20z\"/>", "missed");
    }
    if (!recording_.boundary.empty())
      item("<path class=\"b\" d=\"M0 6h22\"/>", "boundary posterior");
    y_ += 26;
  }

  std::string document(const std::string& name) const {
    const std::string w = num(picture_.width);
    const std::string h = num(y_);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" "
        "height=\"{}\" "
        "role=\"img\"><title>{}</title><desc>{} gold segments over {:.2f} seconds with the decoded "
        "segments below them; errors are marked.</desc><style>{}</style>"
        "<rect width=\"{}\" height=\"{}\" rx=\"8\" fill=\"#fff\"/>{}</svg>\n",
        w, h, w, h, escape_markup(name), recording_.gold.size(), to_ - from_, kStyle, w, h, body_);
  }

  ReportRecording recording_;
  const std::vector<std::string>& labels_;
  SequencePicture picture_;
  double from_ = 0;
  double to_ = 0;
  double y_ = 0;
  std::string body_;
};

}  // namespace

std::string render_sequence_svg(const ReportRecording& recording,
                                const std::vector<std::string>& labels,
                                const SequencePicture& picture) {
  check_recording(recording, labels.size());
  SEGFUSE_CHECK(picture.width >= 300 && picture.width <= 1600,
                "picture: width {}, expected 300 to 1600", picture.width);
  return SequencePainter(recording, labels, picture).paint();
}

}  // namespace segfuse::learn
