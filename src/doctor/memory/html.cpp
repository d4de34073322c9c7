// The report as a page: no script, no network.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <string_view>

#include "base/console/markup.h"
#include "doctor/html.h"
#include "doctor/record.h"
#include "segfuse/doctor/memory.h"

namespace segfuse {

namespace {

using doctor::in_words;

constexpr int kWidth = 960;
constexpr int kPlotHeight = 240;
constexpr int kLeft = 84;
constexpr int kRow = 18;
constexpr std::string_view kCachedColour = "#9ecae1";
constexpr std::string_view kFreeColour = "#e4e4e4";
constexpr std::string_view kPendingColour = "#fdae6b";
constexpr std::string_view kOtherColour = "#7f7f7f";
constexpr std::array<std::string_view, 8> kColours = {"#1f5fa8", "#2a9d5c", "#c0392b", "#8e5bb5",
                                                      "#b8860b", "#d6669a", "#3aa6a6", "#6b4f3a"};

std::string shown_label(const std::string& label) {
  return label.empty() ? "(no label)" : escape_markup(label);
}

using Colours = std::map<std::string, std::string_view>;

Colours colours_of(const MemoryReport& report) {
  Colours colours;
  for (const auto* holders : {&report.holders, &report.peak_holders})
    for (const MemoryHolder& holder : *holders)
      if (colours.size() < kColours.size())
        colours.try_emplace(holder.label, kColours[colours.size()]);
  return colours;
}

std::string_view colour_of(const MemoryRange& range, const Colours& colours) {
  if (range.state == "cached") return kCachedColour;
  if (range.state == "free") return kFreeColour;
  if (range.state == "pending") return kPendingColour;
  const auto found = colours.find(range.label);
  return found == colours.end() ? kOtherColour : found->second;
}

std::string line(const std::vector<MemoryPoint>& points, std::uint64_t MemoryPoint::* level,
                 double end, double most, std::string_view style, bool filled) {
  const auto x = [&](double seconds) { return kLeft + (kWidth - kLeft - 8) * seconds / end; };
  const auto y = [&](std::uint64_t bytes) {
    return 8 + (kPlotHeight - 40) * (1 - static_cast<double>(bytes) / most);
  };
  // Levels hold until the next moment.
  std::string path = fmt::format("M{:.1f} {:.1f}", x(0), y(filled ? 0 : points[0].*level));
  double former = y(points[0].*level);
  for (const MemoryPoint& point : points) {
    path +=
        fmt::format("L{0:.1f} {1:.1f}L{0:.1f} {2:.1f}", x(point.seconds), former, y(point.*level));
    former = y(point.*level);
  }
  if (filled) path += fmt::format("L{:.1f} {:.1f}Z", x(points.back().seconds), y(0));
  return fmt::format("<path d=\"{}\" {}/>\n", path, style);
}

std::string timeline_svg(const MemoryReport& report) {
  double end = 0;
  std::uint64_t highest = 1;
  for (const MemoryPoint& point : report.timeline) {
    end = std::max(end, point.seconds);
    highest = std::max({highest, point.live, point.mapped});
  }
  end = end > 0 ? end : 1;
  const double most = static_cast<double>(highest) * 1.05;
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" font-size=\"11\" "
      "font-family=\"sans-serif\" role=\"img\" aria-label=\"memory over time\">\n",
      kWidth, kPlotHeight);
  for (int i = 0; i <= 4; ++i) {
    const double y = 8 + (kPlotHeight - 40) * (1 - i / 4.0);
    svg += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kWidth - 8, y, kLeft - 6, y + 4, in_words(static_cast<std::uint64_t>(most * i / 4)));
    const double x = kLeft + (kWidth - kLeft - 8) * i / 4.0;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{:.4g} s</text>\n", x,
                       kPlotHeight - 12, i == 4 ? "end" : "middle", end * i / 4);
  }
  svg += line(report.timeline, &MemoryPoint::live, end, most,
              "fill=\"#1f5fa8\" fill-opacity=\"0.35\" stroke=\"#1f5fa8\"", true);
  if (report.peak_mapped > 0)
    svg += line(report.timeline, &MemoryPoint::mapped, end, most,
                "fill=\"none\" stroke=\"#555\" stroke-dasharray=\"5 3\"", false);
  const double x = kLeft + (kWidth - kLeft - 8) * report.peak_seconds / end;
  svg += fmt::format(
      "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"8\" y2=\"{1}\" stroke=\"#c0392b\"/>"
      "<text x=\"{2:.1f}\" y=\"18\" fill=\"#c0392b\" text-anchor=\"{3}\">peak {4}</text>\n</svg>\n",
      x, kPlotHeight - 32, x > kWidth * 0.8 ? x - 5 : x + 5, x > kWidth * 0.8 ? "end" : "start",
      in_words(report.peak_live));
  return svg;
}

/// One arena's memory in rows of pixels, what is unmapped between left out. A pixel shows what lies
/// at its middle.
std::string arena_svg(std::span<const MemoryRange> ranges, const Colours& colours) {
  std::uint64_t total = 0;
  for (const MemoryRange& range : ranges) total += range.bytes;
  const int rows = static_cast<int>(std::clamp<std::uint64_t>(total >> 20, 1, 12));
  const double pixel = static_cast<double>(total) / (static_cast<double>(rows) * kWidth);
  std::string svg = fmt::format(
      "<p>{} mapped in {} range{}, {} a pixel</p>\n"
      "<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" aria-label=\"map of addresses\">\n",
      in_words(total), ranges.size(), ranges.size() == 1 ? "" : "s",
      in_words(static_cast<std::uint64_t>(pixel)), kWidth, rows * kRow, kWidth);
  std::size_t at = 0;
  std::uint64_t begin = 0;  // of ranges[at], among what is mapped
  for (int row = 0; row < rows; ++row) {
    for (int x = 0; x < kWidth;) {
      const auto covers = [&](int column) {
        const double middle = (static_cast<double>(row) * kWidth + column + 0.5) * pixel;
        return middle < static_cast<double>(begin + ranges[at].bytes);
      };
      while (at + 1 < ranges.size() && !covers(x)) begin += ranges[at++].bytes;
      int end = x + 1;
      while (end < kWidth && covers(end)) ++end;
      if (at + 1 == ranges.size()) end = kWidth;
      const MemoryRange& range = ranges[at];
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\" "
          "stroke-width=\"{}\"><title>{}{} at {}: {}</title></rect>\n",
          x, row * kRow, end - x, kRow - 3, colour_of(range, colours), end - x > 3 ? 0.5 : 0,
          escape_markup(range.state), range.state == "live" ? " " + shown_label(range.label) : "",
          range.offset, in_words(range.bytes));
      x = end;
    }
  }
  return svg + "</svg>\n";
}

std::string map_section(const MemoryReport& report, const Colours& colours) {
  std::string html = "<h2>Map of addresses</h2>\n<p class=\"key\">";
  const auto key = [&](std::string_view colour, const std::string& name) {
    html += fmt::format("<span><i style=\"background:{}\"></i>{}</span>", colour, name);
  };
  for (const MemoryHolder& holder : report.holders)
    if (const auto found = colours.find(holder.label); found != colours.end())
      key(found->second, shown_label(holder.label));
  if (report.holders.size() > kColours.size()) key(kOtherColour, "other labels");
  key(kCachedColour, "cached for a stream");
  key(kFreeColour, "free");
  key(kPendingColour, "free, but work may still use it");
  html += "</p>\n";
  const std::span<const MemoryRange> all = report.ranges;
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin;
    while (end < all.size() && all[end].arena == all[begin].arena) ++end;
    if (report.source == "segfuse")
      html += fmt::format("<h3>{} blocks</h3>\n", all[begin].arena == 0 ? "Small" : "Large");
    html += arena_svg(all.subspan(begin, end - begin), colours);
    begin = end;
  }
  return html;
}

std::string holders_table(const std::vector<MemoryHolder>& holders, const Colours& colours) {
  std::string html =
      "<table><tr><th>label</th><th>held</th><th>requested</th><th>buffers</th></tr>\n";
  for (const MemoryHolder& holder : holders) {
    const auto found = colours.find(holder.label);
    html += fmt::format(
        "<tr><td class=\"key\"><i style=\"background:{}\"></i>{}</td><td>{}</td><td>{}</td>"
        "<td>{}</td></tr>\n",
        found == colours.end() ? kOtherColour : found->second, shown_label(holder.label),
        in_words(holder.bytes), in_words(holder.requested), holder.buffers);
  }
  return html + "</table>\n";
}

std::string figures_table(const MemoryReport& report) {
  std::string html = "<table>\n";
  const auto row = [&](std::string_view name, const std::string& value) {
    html += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", name, value);
  };
  if (report.has_snapshot) {
    row("held", in_words(report.mapped));
    if (report.hard_limit > 0) row("limit", in_words(report.hard_limit));
  }
  row("live", in_words(report.live));
  if (report.has_snapshot) {
    row("cached for streams", in_words(report.cached));
    row("free", in_words(report.free));
    row("largest free run", in_words(report.largest_run));
    row("hard fragmentation: free, outside the largest run", in_words(report.hard_fragmentation));
    row("stream fragmentation: free, but work may still use it",
        in_words(report.stream_fragmentation));
  }
  row("soft fragmentation: lost to rounding", in_words(report.soft_fragmentation));
  row("peak live", in_words(report.peak_live));
  if (report.peak_mapped > 0) row("peak held", in_words(report.peak_mapped));
  if (report.events > 0) row("allocations", std::to_string(report.allocations));
  if (report.out_of_memory > 0) row("out of memory", std::to_string(report.out_of_memory));
  if (report.replay) {
    row("on segfuse's heap: peak held", in_words(report.replay->peak_mapped));
    row("on segfuse's heap: waits between streams", std::to_string(report.replay->waits));
  }
  return html + "</table>\n";
}

}  // namespace

std::string memory_report_html(const MemoryReport& report) {
  const Colours colours = colours_of(report);
  const std::string title = "Memory: " + report.file;
  std::string html = fmt::format(
      "<h1>{}</h1>\n<p>{}{}, {} events.</p>\n", escape_markup(title), escape_markup(report.source),
      report.device.empty() ? "" : ", " + escape_markup(report.device), report.events);
  html += figures_table(report);
  if (!report.timeline.empty())
    html += "<h2>Over time</h2>\n<p>Filled: live. Dashed: held.</p>\n" + timeline_svg(report);
  if (!report.ranges.empty()) html += map_section(report, colours);
  if (!report.holders.empty())
    html += "<h2>Who holds it</h2>\n" + holders_table(report.holders, colours);
  if (report.events > 0 && !report.peak_holders.empty())
    html += "<h2>Who held it at the peak</h2>\n" + holders_table(report.peak_holders, colours);
  return doctor::html_page(title, html);
}

}  // namespace segfuse
