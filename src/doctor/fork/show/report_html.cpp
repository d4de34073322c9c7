// The findings as a page: a map of the address space, and each finding in words.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/console/markup.h"
#include "doctor/html.h"
#include "doctor/record.h"
#include "segfuse/doctor/fork.h"

namespace segfuse {

namespace {

using doctor::in_words;

constexpr int kWidth = 960;
constexpr int kRow = 26;
constexpr int kMaxBoxes = 1500;

struct Colour {
  std::string_view kind;
  std::string_view colour;
};
constexpr std::array<Colour, 7> kColours = {{{"heap", "#1f5fa8"},
                                             {"stack", "#2a9d5c"},
                                             {"anonymous", "#9ecae1"},
                                             {"file", "#d9d2c3"},
                                             {"shared", "#8e5bb5"},
                                             {"driver", "#b8860b"},
                                             {"guard", "#eeeeee"}}};

std::string_view colour_of(std::string_view kind) {
  for (const Colour& entry : kColours)
    if (entry.kind == kind) return entry.colour;
  return "#7f7f7f";
}

std::string_view colour_of(ForkRisk risk) {
  switch (risk) {
    case ForkRisk::kBenign: return "#5a9e6f";
    case ForkRisk::kCopyCost: return "#e0a030";
    default: return "#c0392b";
  }
}

struct Box {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string_view kind;
  std::string title;
  double width = 0;
};

/// Boxes by address, as wide as the logarithm of their size: an address space has too much of
/// everything for a linear scale. Beyond a number of boxes, neighbours of one kind are one.
std::vector<Box> boxes_of(const ForkReport& report) {
  std::vector<Box> boxes;
  const bool join = report.map.size() > kMaxBoxes;
  for (const ForkMapping& mapping : report.map) {
    if (join && !boxes.empty() && boxes.back().kind == mapping.kind) {
      boxes.back().end = mapping.end;
      continue;
    }
    if (boxes.size() == kMaxBoxes) break;
    boxes.push_back({mapping.begin, mapping.end, mapping.kind, escape_markup(mapping.name)});
  }
  for (Box& box : boxes)
    box.width = std::max(3.0, 3 * std::log2(static_cast<double>(box.end - box.begin) / 2048));
  return boxes;
}

/// The worst finding in a box comes first in the report.
const ForkRegion* finding_in(const ForkReport& report, const Box& box) {
  for (const ForkRegion& region : report.regions)
    if (region.begin < box.end && region.end > box.begin) return &region;
  return nullptr;
}

std::string map_svg(const ForkReport& report) {
  std::string shapes;
  double x = 0;
  int row = 0;
  for (const Box& box : boxes_of(report)) {
    if (x + box.width > kWidth) {
      x = 0;
      ++row;
    }
    const ForkRegion* finding = finding_in(report, box);
    shapes += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{:#x}-{:#x} "
        "{} {} {}</title></rect>\n",
        x, row * kRow, box.width - 1, kRow - 9, colour_of(box.kind), box.begin, box.end, box.kind,
        box.title, in_words(box.end - box.begin));
    if (finding != nullptr)
      shapes += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"5\" fill=\"{}\"><title>{}: {}"
          "</title></rect>\n",
          x, row * kRow + kRow - 8, box.width - 1, colour_of(finding->risk),
          fork_risk_name(finding->risk), escape_markup(finding->kind));
    x += box.width;
  }
  return fmt::format(
             "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" role=\"img\" "
             "aria-label=\"map of the address space\">\n",
             kWidth, (row + 1) * kRow) +
         shapes + "</svg>\n";
}

std::string key() {
  std::string html = "<p class=\"key\">";
  for (const Colour& entry : kColours)
    html += fmt::format("<span><i style=\"background:{}\"></i>{}</span>", entry.colour, entry.kind);
  return html +
         "<span>underlined: a finding (red: risk, orange: cost, green: harmless)</span></p>\n";
}

std::string finding_html(const ForkRegion& region) {
  std::string html = fmt::format(
      "<h3 style=\"border-left:6px solid {}\">&nbsp;{:#x}&ndash;{:#x}: {}</h3>\n<table>\n",
      colour_of(region.risk), region.begin, region.end, fork_risk_name(region.risk));
  const auto row = [&](std::string_view name, const std::string& value) {
    if (!value.empty())
      html += fmt::format("<tr><td>{}</td><td class=\"words\">{}</td></tr>\n", name,
                          escape_markup(value));
  };
  row("mechanism", fmt::format("{}, {}", region.mechanism, in_words(region.end - region.begin)));
  row("owner", fmt::format("{}: {}", region.kind, region.owner));
  if (region.live_neighbours) row("other live blocks", std::to_string(*region.live_neighbours));
  row("why", region.why);
  row("remedy", region.remedy);
  return html + "</table>\n";
}

std::string pairs_html(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string html;
  for (const auto& [name, value] : pairs)
    html += fmt::format("<tr><td>{}</td><td class=\"words\">{}</td></tr>\n", escape_markup(name),
                        escape_markup(value));
  return html;
}

}  // namespace

std::string fork_report_html(const ForkReport& report) {
  constexpr std::size_t kMaxFindings = 500;
  std::string html = fmt::format(
      "<h1>What a fork of process {} ({}) would do</h1>\n<p><b>{}</b></p>\n", report.pid,
      escape_markup(report.command), escape_markup(report.forecast.sentence));
  for (const std::string& warning : report.warnings)
    html += fmt::format("<p>Risk: {}</p>\n", escape_markup(warning));
  html +=
      "<h2>Address space</h2>\n<p>By address from low to high, each mapping as wide as the "
      "logarithm of its size; gaps between mappings are left out.</p>\n" +
      key() + map_svg(report) + "<h2>Findings</h2>\n";
  if (report.regions.empty())
    html += "<p>No memory is kept from children, wiped in them, or known to be pinned.</p>\n";
  for (std::size_t i = 0; i < std::min(report.regions.size(), kMaxFindings); ++i)
    html += finding_html(report.regions[i]);
  if (report.regions.size() > kMaxFindings)
    html += fmt::format("<p>And {} more; the JSON has all.</p>\n",
                        report.regions.size() - kMaxFindings);
  html += "<h2>Versions and environment</h2>\n<table>\n" + pairs_html(report.versions) +
          pairs_html(report.environment) + "</table>\n";
  for (const std::string& note : report.notes)
    html += fmt::format("<p>{}</p>\n", escape_markup(note));
  return doctor::html_page(fmt::format("Fork of process {}", report.pid), html);
}

}  // namespace segfuse
