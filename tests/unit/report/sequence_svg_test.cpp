#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "learn/report/report.h"
#include "segfuse/error.h"
#include "unit/report/fake_report.h"

namespace segfuse::learn {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Tags open and close in order, attributes are quoted, no bare & or < in texts.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ("/" + open.back(), tag);
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SequenceSvg, ShowsEveryLane) {
  const ReportData d = fake_report();
  const std::string svg = render_sequence_svg(d.recordings[0], d.labels, {0, 2.5, 900, "A & B"});
  expect_well_formed(svg);
  EXPECT_LT(svg.size(), 150'000U);
  for (const char* text : {"A &amp; B", ">waveform<", ">features<", ">gold<", ">semi-Markov<",
                           ">linear chain<", ">boundary<", ">time (s)<", ">2.0<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
}

TEST(SequenceSvg, HostileNamesAndLabels) {
  ReportData d = fake_report();
  for (std::string& l : d.labels) l = "<&\">";
  d.recordings[0].name = "</svg>\x01\xFF";
  d.recordings[0].decoded[0].name = "<script>";
  const std::string svg = render_sequence_svg(d.recordings[0], d.labels);
  expect_well_formed(svg);
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
}

TEST(SequenceSvg, PartsMayBeMissing) {
  ReportRecording r;
  expect_well_formed(render_sequence_svg(r, {}));
  r.seconds = 2;
  r.gold = {{0, 1, 0, kNoValue}, {1, 2, 0, kNoValue}};
  const std::string svg = render_sequence_svg(r, {"a"});
  expect_well_formed(svg);
  EXPECT_THAT(svg, Not(HasSubstr("waveform")));
  EXPECT_THAT(svg, Not(HasSubstr("missed")));
  expect_well_formed(render_sequence_svg(r, {"a"}, {5, 9, 900, ""}));  // past the end
}

TEST(SequenceSvg, MissedAreGoldSegmentsWithoutADecodedOne) {
  // The legend has one of them in any case.
  const auto missed = [](const std::vector<ReportSegment>& decoded) {
    ReportRecording r;
    r.gold = {{0, 1, 0, kNoValue}, {1, 2, 1, kNoValue}};
    r.decoded = {{"lane", decoded}};
    const std::string svg = render_sequence_svg(r, {"a", "b", "c"});
    return svg.find("class=\"m\"") != svg.rfind("class=\"m\"");
  };
  EXPECT_FALSE(missed({{0, 1, 0, 1}, {1, 2, 1, 1}}));
  EXPECT_FALSE(missed({{0, 1, 0, 1}, {1, 2, 2, 1}})) << "another label";
  EXPECT_TRUE(missed({{0, 2, 0, 1}}));
}

TEST(SequenceSvg, WorstCaseStaysSmall) {
  std::mt19937 random(1);
  ReportRecording r;
  r.name = std::string(500, 'x');
  r.seconds = 60;
  r.sample_rate = 16000;
  r.feature_step = 0.01;
  r.feature_bins = 40;
  r.boundary_step = 0.01;
  const auto noise = [&] { return static_cast<float>(random() % 1000) / 1000.0F; };
  for (int i = 0; i < 960000; ++i) r.waveform.push_back(noise() - 0.5F);
  for (int i = 0; i < 6000 * 40; ++i) r.features.push_back(noise());
  for (int i = 0; i < 6000; ++i) r.boundary.push_back(noise());
  for (int i = 0; i < 600; ++i) r.gold.push_back({i * 0.1, i * 0.1 + 0.1, i % 2, kNoValue});
  for (int k = 0; k < 6; ++k) r.decoded.push_back({"lane", r.gold});
  for (ReportLane& lane : r.decoded) {
    for (ReportSegment& s : lane.segments) s.label = static_cast<int>(random() % 2);
  }
  for (const double width : {300.0, 900.0, 1600.0}) {
    const std::string svg = render_sequence_svg(r, {"a", "b"}, {0, 0, width, ""});
    expect_well_formed(svg);
    EXPECT_LT(svg.size(), 150'000U) << width;
  }
}

TEST(SequenceSvg, RefusesBadInput) {
  ReportRecording r;
  r.gold = {{0, 1, 3, kNoValue}};
  EXPECT_THROW(render_sequence_svg(r, {"a"}), InternalError);
  EXPECT_THROW(render_sequence_svg({}, {}, {0, 0, 10, ""}), InternalError);
}

}  // namespace
}  // namespace segfuse::learn
