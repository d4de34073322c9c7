// EMU's _annot.json: levels of items that begin at a sample and last so many, both counted.

#include <fmt/format.h>

#include <cmath>

#include "base/json/json.h"
#include "base/text.h"
#include "learn/data/labels/fields.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

constexpr std::int64_t kMaxSamples = std::int64_t{1} << 40;

/// The first label; EMU puts the one of the level itself there.
std::string first_label(const JsonPlace& item) {
  std::optional<std::string> label;
  const JsonPlace labels = item.at("labels");
  labels.for_each([&](const JsonPlace& entry) {
    if (!label) label = entry.at("value").text();
  });
  return std::string(trim(label.value_or("")));
}

RawTier level_of(const JsonPlace& level, double rate) {
  RawTier tier;
  tier.name = level.at("name").text();
  const std::string type = level.at("type").text();
  tier.intervals = type == "SEGMENT";
  const JsonPlace items = level.at("items");
  items.for_each([&](const JsonPlace& item) {
    LabelSegment segment;
    segment.label = first_label(item);
    segment.line = 1;
    if (tier.intervals) {
      const std::int64_t start = item.at("sampleStart").integer(0, kMaxSamples);
      const std::int64_t length = item.at("sampleDur").integer(0, kMaxSamples);
      segment.start = static_cast<double>(start) / rate;
      segment.end = static_cast<double>(start + length + 1) / rate;  // the last sample is in it
    } else if (type == "EVENT") {
      segment.start = segment.end =
          static_cast<double>(item.at("samplePoint").integer(0, kMaxSamples)) / rate;
    }
    tier.raw.segments.push_back(std::move(segment));
  });
  if (tier.intervals) sort_by_start(tier.raw);
  return tier;
}

}  // namespace

RawLabels read_emu(const LabelText& file) {
  const std::string name(file.name);
  const Json json = parse_json(file.bytes, name);
  const JsonPlace top(json, name);
  const double rate = top.at("sampleRate").number();
  if (!(rate > 0)) top.at("sampleRate").refuse("a rate above 0");
  RawLabels out;
  const JsonPlace levels = top.at("levels");
  levels.for_each([&](const JsonPlace& level) { out.tiers.push_back(level_of(level, rate)); });
  return out;
}

std::string write_emu(const Annotation& annotation, const LabelOutput& output) {
  const double rate = rate_of(output, "EMU");
  Json items = Json::array();
  std::int64_t id = 0;
  for (const LabelSegment& segment : annotation.segments) {
    const std::int64_t start = std::llround(segment.start * rate);
    const std::int64_t end = std::llround(segment.end * rate);
    items.push_back({{"id", ++id},
                     {"sampleStart", start},
                     {"sampleDur", std::max<std::int64_t>(end - start - 1, 0)},
                     {"labels", {{{"name", output.tier}, {"value", segment.label}}}}});
  }
  const std::string recording = std::filesystem::path(output.recording).filename().string();
  const Json json = {{"name", std::filesystem::path(recording).stem().string()},
                     {"annotates", recording},
                     {"sampleRate", rate},
                     {"levels", {{{"name", output.tier}, {"type", "SEGMENT"}, {"items", items}}}},
                     {"links", Json::array()}};
  return json_text(json, 2) + "\n";
}

}  // namespace segfuse::data
