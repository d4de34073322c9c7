#include "learn/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "learn/report/assets.h"
#include "learn/report/report_json.h"
#include "segfuse/error.h"
#include "support/source_dir.h"
#include "unit/report/fake_report.h"

namespace segfuse::learn {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const double kInf = std::numeric_limits<double>::infinity();
const std::filesystem::path kSource(SEGFUSE_SOURCE_DIR);

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// The data element's content, found the way a browser ends it.
Json data_of(const std::string& page) {
  const std::string open = "id=\"data\">";
  const std::size_t begin = page.find(open) + open.size();
  return Json::parse(page.substr(begin, page.find("</script", begin) - begin));
}

/// One of everything, small enough to read.
ReportData tiny_report() {
  ReportData d;
  d.title = "Tiny";
  d.data_set = "two recordings";
  d.date = "2025-01-02";
  d.model = "chain";
  d.parameters = 1234;
  d.seconds = 65;
  d.facts = {{"Device", "CPU"}};
  d.notes = {"synthetic"};
  d.systems = {"A", "B"};
  d.metrics = {{"Error", ReportUnit::kPercent, ReportBetter::kLower, {0.125, 0.25}, true, "n"}};
  d.metrics[0].intervals = {{0.1, 0.16}, {}};
  d.metrics[0].differences = {{}, {0.125, {-0.02, 0.2}}};
  d.reference = "A";
  d.worst = {{"one", 0.4, 2, 1, 0.5}};
  d.doubted = {{"one", 0.2, 0.4, "b", "a", 0.01234}};
  d.epochs = {{1, 2.5, 2.75, 0.5, 0.001}, {2, 1.0 / 3, kNoValue, 0.25, 0.0005}};
  d.selected_epoch = 2;
  d.labels = {"a", "b"};
  d.durations = {{1, 0.01, 0.01, {1, 2}, {0.25, 0.75}, {}}, {0, 0.01, 0.01, {9}, {}, {8}}};
  d.confusions = {{5, 1, 0, 7}, {1, 0}, {0, 2}};
  d.label_rows = {{0, 7, 5, 1.0, 5.0 / 7, 0.05, 0.004, -0.001}};
  d.calibrations = {{"Labels", {{0.5, 0.25, 4}}, 0.25}};
  ReportRecording r;
  r.name = "one";
  r.seconds = 0.4;
  r.sample_rate = 10;
  r.waveform = {0, 1, -1, 0};
  r.feature_step = 0.2;
  r.feature_bins = 2;
  r.features = {0, 1, 2, 3};
  r.gold = {{0, 0.2, 0, kNoValue}, {0.2, 0.4, 1, kNoValue}};
  r.decoded = {{"A", {{0, 0.2, 0, 0.87654}, {0.2, 0.3, 0, 0.5}, {0.3, 0.4, 1, 1}}}};
  r.boundary_step = 0.2;
  r.boundary = {0.5F, 1.0F};
  r.label_error_rate = 0.5;
  d.recordings = {r};
  d.environment = {{"version", "1"}};
  d.config = "[train]\nepochs = 2\n";
  return d;
}

// SEGFUSE_UPDATE_GOLDEN=1 writes the file again.
TEST(Report, GoldenData) {
  const std::filesystem::path path = kSource / "tests/golden/report/data.json";
  const std::string text = report_json(tiny_report(), {}).dump(1) + "\n";
  if (std::getenv("SEGFUSE_UPDATE_GOLDEN") != nullptr) write(path, text);
  EXPECT_EQ(text, read(path));
}

TEST(Report, AssetsAreTheFiles) {
  for (const char* name : {"report.html", "report.css", "util.js", "charts.js", "tables.js",
                           "viewer.js", "report.js"}) {
    const std::string file = read(kSource / "src/learn/report/assets" / name);
    ASSERT_FALSE(file.empty()) << name;
    EXPECT_TRUE(report_asset(name) == file) << name;
    EXPECT_THAT(file, Not(HasSubstr("</script>\n</script>")));
  }
  EXPECT_THROW(report_asset("missing"), InternalError);
}

TEST(Report, HostileTextStaysText) {
  const std::string nasty = "</script><script>alert(1)</script><!--<script>\"'&{{script}}";
  const std::string odd = std::string("\0\x1B", 2) + "\xFF \xE2\x80\xA8 \xD1\x88";
  ReportData d = tiny_report();
  d.title = d.config = d.labels[0] = d.recordings[0].name = d.systems[0] = nasty;
  d.notes = {nasty};
  d.environment = {{nasty, odd}};
  const std::string page = render_report(d);
  EXPECT_EQ(count_of(page, "</script>"), 2U);
  EXPECT_EQ(count_of(page, "alert(1)<"), 0U);
  const Json json = data_of(page);
  EXPECT_EQ(json["title"], nasty);
  EXPECT_EQ(json["labels"][0], nasty);
  EXPECT_EQ(json["environment"][0][1],
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD \xE2\x80\xA8 \xD1\x88");
  EXPECT_GT(count_of(page, "<title>&lt;/script&gt;&lt;script&gt;alert(1)"), 0U);
}

TEST(Report, LoadsNothing) {
  std::string page = render_report(tiny_report());
  EXPECT_EQ(count_of(page, "://"), 1U);  // the SVG name space, which is no address to load
  EXPECT_GT(count_of(page, "http://www.w3.org/2000/svg"), 0U);
  for (const char* loader : {"<link", "src=", "@import", "url(", "fetch(", "XMLHttpRequest"}) {
    EXPECT_EQ(count_of(page, loader), 0U);
  }
}

TEST(Report, EmptyPartsAreAbsent) {
  const Json json = data_of(render_report({}));
  EXPECT_EQ(json.dump(), "{\"title\":\"Training report\"}");
}

TEST(Report, ValuesThatAreNotFinite) {
  ReportData d = tiny_report();
  d.metrics[0].values = {kNoValue, kInf};
  d.epochs[0] = {1, kInf, -kInf, kNoValue, kNoValue};
  d.selected_epoch = kNoValue;
  d.durations[0].gold = {kNoValue, kInf};
  d.label_rows[0].precision = kNoValue;
  d.calibrations[0] = {"Labels", {{kNoValue, kInf, 1}}, kNoValue};
  d.recordings[0].waveform = {static_cast<float>(kNoValue)};
  d.recordings[0].boundary = {static_cast<float>(kInf)};
  d.recordings[0].seconds = kNoValue;
  d.parameters = d.seconds = kInf;
  const Json json = data_of(render_report(d));
  EXPECT_EQ(json["metrics"][0]["text"].dump(), "[\"\xE2\x80\x93\",\"\xE2\x80\x93\"]");
  EXPECT_EQ(json["metrics"][0]["mark"].dump(), "[\"\",\"\"]");
  EXPECT_TRUE(json["epochs"]["train_loss"][0].is_null());
  EXPECT_TRUE(json["epochs"]["selected"].is_null());
  EXPECT_TRUE(json["label_rows"][0][3].is_null());
  EXPECT_TRUE(json["label_rows"][0][5].is_null());
  EXPECT_FALSE(json.contains("parameters"));
  EXPECT_EQ(json["recordings"][0]["seconds"], 0.4);
}

std::vector<std::string> marks(ReportBetter better, std::vector<double> values,
                               std::vector<bool> level = {}) {
  ReportMetric metric{"", ReportUnit::kRatio, better, std::move(values)};
  metric.level = std::move(level);
  return comparison_marks(metric);
}

TEST(Report, ComparisonMarks) {
  const auto high = ReportBetter::kHigher;
  const auto low = ReportBetter::kLower;
  EXPECT_THAT(marks(high, {0.9, 0.8, 0.85}), ElementsAre("best", "", ""));
  EXPECT_THAT(marks(low, {0.9, 0.8, 0.85}), ElementsAre("", "best", ""));
  EXPECT_THAT(marks(high, {0.9001, 0.9, 0.8}), ElementsAre("tie", "tie", ""));  // same digits
  EXPECT_THAT(marks(low, {0.5, 0.45, 0.44}, {false, true, true}), ElementsAre("", "tie", "tie"));
  EXPECT_THAT(marks(high, {kNoValue, 0.2, 0.1}), ElementsAre("", "best", ""));
  EXPECT_THAT(marks(high, {kNoValue, 0.2, kInf}), ElementsAre("", "", ""));
  EXPECT_THAT(marks(high, {0.9}), ElementsAre(""));
  EXPECT_THAT(marks(ReportBetter::kNeither, {1, 2}), ElementsAre("", ""));
}

TEST(Report, SameStructSameBytes) {
  EXPECT_EQ(render_report(fake_report()), render_report(fake_report()));
}

TEST(Report, SizeIsBoundedByTheLimits) {
  FakeReport big;
  big.recordings = 3;
  big.seconds = 60;
  big.epochs = 20000;
  ReportLimits limits;
  limits.recordings = 2;
  limits.segments = 100;
  limits.epochs = 50;
  limits.labels = 10;
  const ReportData data = fake_report(big);
  const Json json = data_of(render_report(data, limits));
  ASSERT_EQ(json["recordings"].size(), 2U);
  EXPECT_EQ(json["recordings_given"], 3);
  for (const Json& r : json["recordings"]) {
    EXPECT_EQ(r["seconds"], 60);
    EXPECT_LT(r["kept"], 30);
    for (const Json& lane : r["decoded"]) EXPECT_LE(lane["segments"].size(), 100U);
    EXPECT_LE(r["gold"].size(), 100U);
    EXPECT_LE(r["wave"]["bytes"].get<std::string>().size(), 4 * 4000 * 2 / 3 + 4U);
    EXPECT_NEAR(r["wave"]["seconds"].get<double>(), r["kept"].get<double>(), 3e-5);
    for (const char* part : {"features", "boundary"})
      EXPECT_NEAR(r[part]["seconds"].get<double>(), r["kept"].get<double>(), 0.011) << part;
  }
  EXPECT_LE(json["epochs"]["epoch"].size(), 53U);
  EXPECT_EQ(json["epochs"]["epoch"].back(), 20000);
  EXPECT_THAT(json["epochs"]["epoch"], ::testing::Contains(json["epochs"]["selected"]));
  EXPECT_EQ(json["durations"].size(), 10U);
  EXPECT_EQ(json["confusions"]["order"].size(), 10U);
  EXPECT_EQ(json["confusions"]["hidden"], 32);
  EXPECT_LT(render_report(data).size(), 1'000'000U);
}

TEST(Report, LongDurationHistogramsKeepTheirMean) {
  ReportData d;
  d.labels = {"a"};
  ReportDurations h{0, 0.01, 0.01, std::vector<double>(1000, 0), {}, {}};
  h.gold[499] = 1;  // 5 s
  d.durations = {h};
  const Json json = report_json(d, {})["durations"][0];
  const auto gold = json["gold"].get<std::vector<double>>();
  ASSERT_LE(gold.size(), 120U);
  const auto at = std::max_element(gold.begin(), gold.end()) - gold.begin();
  const double step = json["step"];
  EXPECT_NEAR(json["first"].get<double>() + static_cast<double>(at) * step, 5.0, step / 2 + 1e-9);
}

TEST(Report, BarsOfJoinedDurationBinsStandInTheirMiddle) {
  ReportData d;
  d.labels = {"a"};
  d.durations = {{0, 0.01, 0.01, {1, 2, 3, 4, 5}, {0.5, 0.5}, {}}};
  ReportLimits limits;
  limits.duration_bins = 2;
  const Json json = report_json(d, limits)["durations"][0];
  EXPECT_DOUBLE_EQ(json["first"], 0.02);
  EXPECT_DOUBLE_EQ(json["step"], 0.03);
  EXPECT_EQ(json["gold"].dump(), "[6,9]");
  EXPECT_EQ(json["model"].dump(), "[1]");
}

TEST(Report, ConfusionsAreSortedAndComplete) {
  const Json c = report_json(tiny_report(), {})["confusions"];
  EXPECT_EQ(c["order"].dump(), "[1,0]");  // as many gold ones, but more decoded
  EXPECT_EQ(c["gold"].dump(), "[7,7]");
  EXPECT_EQ(c["deleted"].dump(), "[0,1]");
  EXPECT_EQ(c["inserted"].dump(), "[2,0]");
  EXPECT_EQ(c["cells"].dump(), "[[1,1,7],[0,1,1],[0,0,5]]");
  ReportData d = tiny_report();
  d.confusions.deletions = {};
  d.confusions.pairs = {9, 0, 2, 6};
  EXPECT_EQ(report_json(d, {})["confusions"]["order"].dump(), "[0,1]");
}

template <class Change>
void expect_refused(Change change, const std::string& part) {
  ReportData d = tiny_report();
  change(d);
  try {
    render_report(d);
    FAIL() << "nothing thrown, expected: " << part;
  } catch (const InternalError& e) {
    EXPECT_THAT(e.what(), HasSubstr(part));
  }
}

TEST(Report, RefusesWhatBreaksTheContract) {
  expect_refused([](auto& d) { d.recordings[0].gold[0].label = 2; }, "names label 2 of 2");
  expect_refused([](auto& d) { d.recordings[0].decoded[0].segments[0].label = -2; }, "label -2");
  expect_refused([](auto& d) { d.recordings[0].gold[0].end = -1; }, "segment from 0 to -1 s");
  expect_refused([](auto& d) { d.recordings[0].gold[0].end = kNoValue; }, "recording one");
  expect_refused([](auto& d) { d.metrics[0].values.pop_back(); }, "has 1 values, expected 2");
  expect_refused([](auto& d) { d.confusions.pairs.pop_back(); }, "pairs has 3 entries, expected 4");
  expect_refused([](auto& d) { d.confusions.insertions.push_back(0); }, "confusions.insertions");
  expect_refused([](auto& d) { d.recordings[0].features.pop_back(); }, "multiple of 2 bins");
  expect_refused([](auto& d) { d.recordings[0].sample_rate = 0; }, "no sample rate");
  expect_refused([](auto& d) { d.recordings[0].boundary_step = 0; }, "no boundary_step");
  expect_refused([](auto& d) { d.durations[0].step = 0; }, "have step 0");
  expect_refused([](auto& d) { d.label_rows[0].label = 9; }, "label_rows names label 9 of 2");
}

// With --gtest_also_run_disabled_tests and SEGFUSE_REPORT_SAMPLES=DIR: writes pages to look at.
TEST(Report, DISABLED_SamplesToLookAt) {
  const char* dir = std::getenv("SEGFUSE_REPORT_SAMPLES");
  ASSERT_NE(dir, nullptr) << "SEGFUSE_REPORT_SAMPLES names no directory to write to";
  const std::filesystem::path base(dir);
  const ReportData data = fake_report();
  write(base / "report.html", render_report(data));
  FakeReport few;
  few.labels = 4;
  few.recordings = 1;
  ReportData small = fake_report(few);
  small.systems.clear();
  for (ReportMetric& m : small.metrics) {
    m.values.resize(1);
    m.intervals.clear();
    m.differences.clear();
  }
  write(base / "small.html", render_report(small));
  write(base / "tiny.html", render_report(tiny_report()));
  write(base / "empty.html", render_report({}));
  write(base / "sequence.svg",
        render_sequence_svg(data.recordings[0], data.labels, {0, 2.2, 900, ""}));
}

}  // namespace
}  // namespace segfuse::learn
