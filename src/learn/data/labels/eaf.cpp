// ELAN's .eaf: tiers of annotations between time slots. A tier may divide the annotations of
// another one: its own then share their time evenly where they have none of their own.

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <optional>

#include "base/text.h"
#include "learn/data/labels/fields.h"
#include "learn/data/labels/xml.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

struct Span {
  double start = 0;
  double end = 0;
};

class EafReader {
 public:
  explicit EafReader(const LabelText& file)
      : file_(file), xml_(file.bytes, file.name, "ANNOTATION_DOCUMENT") {
    const pugi::xml_node header = xml_.root().child("HEADER");
    const std::string_view unit = header.attribute("TIME_UNITS").as_string("milliseconds");
    if (unit != "milliseconds")
      fail(xml_.line_of(header),
           fmt::format("TIME_UNITS is {}; expected \"milliseconds\"", shown(unit)));
    read_slots();
    for (const pugi::xml_node& tier : xml_.root().children("TIER")) index(tier);
  }

  RawLabels read() {
    RawLabels out;
    for (const pugi::xml_node& tier : xml_.root().children("TIER")) {
      RawTier found{std::string(xml_.attribute(tier, "TIER_ID")), {}};
      for (const pugi::xml_node& wrapper : tier.children("ANNOTATION")) {
        const pugi::xml_node node = wrapper.first_child();
        const std::int64_t line = xml_.line_of(node ? node : wrapper);
        const Span span = span_of(std::string(xml_.attribute(node, "ANNOTATION_ID")), line);
        found.raw.segments.push_back({span.start, span.end,
                                      std::string(trim(xml_.child_text(node, "ANNOTATION_VALUE"))),
                                      line});
      }
      sort_by_start(found.raw);
      out.tiers.push_back(std::move(found));
    }
    return out;
  }

 private:
  struct Entry {
    pugi::xml_node node;
    std::optional<Span> span;
    std::string parent;  // whose time it shares; empty: it has its own
    bool at_work = false;
  };

  [[noreturn]] void fail(std::int64_t line, const std::string& what) const {
    throw DataError(fmt::format("{}:{}: {}", file_.name, line, what));
  }

  void read_slots() {
    for (const pugi::xml_node& slot : xml_.root().child("TIME_ORDER").children("TIME_SLOT")) {
      const std::string id(xml_.attribute(slot, "TIME_SLOT_ID"));
      std::optional<double> time;
      if (slot.attribute("TIME_VALUE")) {
        const std::string_view value = slot.attribute("TIME_VALUE").value();
        const std::int64_t line = xml_.line_of(slot);
        time = static_cast<double>(integer_in(value, "TIME_VALUE", file_.name, line)) / 1000;
      }
      if (!slots_.emplace(id, time).second)
        fail(xml_.line_of(slot), fmt::format("a second time slot {}", shown(id)));
    }
  }

  /// What the annotations of a tier say about their times.
  void index(const pugi::xml_node& tier) {
    std::vector<std::string> open;  // annotations since the last slot with a time
    for (const pugi::xml_node& wrapper : tier.children("ANNOTATION")) {
      const pugi::xml_node node = wrapper.first_child();
      const std::string_view kind = node.name();
      const std::string id(xml_.attribute(node, "ANNOTATION_ID"));
      Entry entry{node, std::nullopt, ""};
      if (kind == "REF_ANNOTATION") {
        entry.parent = xml_.attribute(node, "ANNOTATION_REF");
        children_[{tier.hash_value(), entry.parent}].push_back(id);
        tiers_[id] = tier.hash_value();
      } else if (kind != "ALIGNABLE_ANNOTATION") {
        fail(xml_.line_of(node),
             fmt::format("the element {} in an ANNOTATION; expected ALIGNABLE_ANNOTATION or "
                         "REF_ANNOTATION",
                         shown(kind)));
      }
      if (!entries_.emplace(id, entry).second)
        fail(xml_.line_of(node), fmt::format("a second annotation {}", shown(id)));
      if (kind == "ALIGNABLE_ANNOTATION") align(id, open);
    }
    if (!open.empty())
      fail(xml_.line_of(tier),
           fmt::format("the annotation {} ends at no time", shown(open.back())));
  }

  std::optional<double> slot(const pugi::xml_node& node, const char* key) const {
    const auto found = slots_.find(xml_.attribute(node, key));
    if (found == slots_.end())
      fail(xml_.line_of(node), fmt::format("no time slot {}", shown(xml_.attribute(node, key))));
    return found->second;
  }

  /// Annotations between two slots with times share what lies between these.
  void align(const std::string& id, std::vector<std::string>& open) {
    const pugi::xml_node node = entries_.at(id).node;
    const std::optional<double> start = slot(node, "TIME_SLOT_REF1");
    const std::optional<double> end = slot(node, "TIME_SLOT_REF2");
    if (!start && open.empty())
      fail(xml_.line_of(node), fmt::format("the annotation {} starts at no time", shown(id)));
    if (start && !open.empty())
      fail(xml_.line_of(node),
           fmt::format("the annotation {} ends at no time", shown(open.back())));
    if (start) begin_ = *start;
    open.push_back(id);
    if (!end) return;
    const double step = (*end - begin_) / static_cast<double>(open.size());
    for (std::size_t i = 0; i < open.size(); ++i) {
      const double from = begin_ + static_cast<double>(i) * step;
      entries_.at(open[i]).span = Span{from, i + 1 == open.size() ? *end : from + step};
    }
    open.clear();
  }

  /// Follows references to annotations with times. A chain is as long as tiers lie in each other.
  Span span_of(const std::string& id, std::int64_t line) {
    std::vector<std::string> chain = {id};
    while (!entry(chain.back(), line).span) {
      Entry& last = entry(chain.back(), line);
      if (last.at_work) fail(line, fmt::format("the annotation {} refers to itself", shown(id)));
      last.at_work = true;
      chain.push_back(last.parent);
    }
    while (chain.size() > 1) {
      const Span whole = *entry(chain.back(), line).span;
      chain.pop_back();
      const std::string parent = entry(chain.back(), line).parent;
      const std::vector<std::string>& parts = children_.at({tiers_.at(chain.back()), parent});
      const double step = (whole.end - whole.start) / static_cast<double>(parts.size());
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const double from = whole.start + static_cast<double>(i) * step;
        entry(parts[i], line).span = Span{from, i + 1 == parts.size() ? whole.end : from + step};
      }
    }
    return *entry(id, line).span;
  }

  Entry& entry(const std::string& id, std::int64_t line) {
    const auto found = entries_.find(id);
    if (found == entries_.end()) fail(line, fmt::format("no annotation {}", shown(id)));
    return found->second;
  }

  const LabelText& file_;
  XmlFile xml_;
  std::map<std::string, std::optional<double>, std::less<>> slots_;
  std::map<std::string, Entry> entries_;
  std::map<std::pair<std::size_t, std::string>, std::vector<std::string>> children_;  // by tier
  std::map<std::string, std::size_t> tiers_;
  double begin_ = 0;  // of those that are open
};

}  // namespace

RawLabels read_eaf(const LabelText& file) { return EafReader(file).read(); }

std::string write_eaf(const Annotation& annotation, const LabelOutput& output) {
  std::string slots, annotations;
  std::size_t slot = 0;
  const auto add_slot = [&](double seconds) {
    slots += fmt::format("    <TIME_SLOT TIME_SLOT_ID=\"ts{}\" TIME_VALUE=\"{}\"/>\n", ++slot,
                         std::llround(seconds * 1000));
  };
  for (std::size_t i = 0; i < annotation.segments.size(); ++i) {
    const LabelSegment& segment = annotation.segments[i];
    add_slot(segment.start);
    add_slot(segment.end);
    annotations += fmt::format(
        "    <ANNOTATION>\n      <ALIGNABLE_ANNOTATION ANNOTATION_ID=\"a{}\" "
        "TIME_SLOT_REF1=\"ts{}\" TIME_SLOT_REF2=\"ts{}\">\n"
        "        <ANNOTATION_VALUE>{}</ANNOTATION_VALUE>\n"
        "      </ALIGNABLE_ANNOTATION>\n    </ANNOTATION>\n",
        i + 1, slot - 1, slot, xml_escaped(segment.label));
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<ANNOTATION_DOCUMENT AUTHOR=\"segfuse\" DATE=\"1970-01-01T00:00:00+00:00\" FORMAT=\"3.0\" "
      "VERSION=\"3.0\">\n"
      "  <HEADER MEDIA_FILE=\"\" TIME_UNITS=\"milliseconds\">\n"
      "    <MEDIA_DESCRIPTOR MEDIA_URL=\"{0}\" MIME_TYPE=\"audio/x-wav\" "
      "RELATIVE_MEDIA_URL=\"{0}\"/>\n"
      "  </HEADER>\n  <TIME_ORDER>\n{1}  </TIME_ORDER>\n"
      "  <TIER LINGUISTIC_TYPE_REF=\"default-lt\" TIER_ID=\"{2}\">\n{3}  </TIER>\n"
      "  <LINGUISTIC_TYPE GRAPHIC_REFERENCES=\"false\" LINGUISTIC_TYPE_ID=\"default-lt\" "
      "TIME_ALIGNABLE=\"true\"/>\n</ANNOTATION_DOCUMENT>\n",
      xml_escaped(output.recording), slots, xml_escaped(output.tier), annotations);
}

}  // namespace segfuse::data
