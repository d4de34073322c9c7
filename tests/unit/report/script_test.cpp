// The page's script: syntax by node, behaviour by a headless browser. Both are optional tools.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "learn/report/report.h"
#include "segfuse/spawn.h"
#include "support/files.h"
#include "unit/report/fake_report.h"

namespace segfuse::learn {
namespace {

/// Keeps the messages of failures short: the pages are long.
bool has(const std::string& page, const std::string& text) {
  return page.find(text) != std::string::npos;
}

class Script : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    return dir_.write(name, text);
  }

  bool on_path(const std::string& program) const {
    return spawn::run(spawn::shell("command -v " + program)).ok();
  }

  std::string output_of(const std::string& command) const {
    return spawn::run(spawn::shell(command)).out;
  }

  /// The document after its script and, when it is ready, `driver` have run. A frame that stays
  /// open delays the event that the browser waits for, however slow the machine is.
  std::string run_page(std::string page, const std::string& driver) const {
    const std::string tail = R"html(<script>
const held = document.body.appendChild(document.createElement("iframe"));
held.contentDocument.open();
const release = () => held.contentDocument.close();
setTimeout(release, 40000);
const wait = setInterval(() => {
  if (!document.documentElement.dataset.ready) return;
  clearInterval(wait);
  try {
)html" + driver + R"html(
  } finally {
    setTimeout(() => {
      document.documentElement.dataset.driven = "true";
      release();
    }, 300);
  }
}, 50);
</script></body>)html";
    page.replace(page.rfind("</body>"), 7, tail);
    const auto path = write("page.html", page);
    return output_of("timeout 60 chromium --headless --no-sandbox --disable-gpu --user-data-dir=" +
                     (dir_ / "profile").string() + " --window-size=1280,900 --dump-dom file://" +
                     path.string() + " 2>/dev/null");
  }

  test::TemporaryDirectory dir_;
};

TEST_F(Script, SyntaxIsFine) {
  if (!on_path("node")) GTEST_SKIP() << "node is not installed";
  const std::string page = render_report(fake_report());
  const std::size_t begin = page.rfind("<script>") + 8;
  const auto path = write("page.js", page.substr(begin, page.rfind("</script>") - begin));
  EXPECT_EQ(output_of("node --check " + path.string() + " 2>&1"), "");
}

// Touches everything: hovers each drawing, presses each button and key.
constexpr const char* kTouchAll = R"js(
const point = (node, type, x, y) => node.dispatchEvent(new PointerEvent(type, {bubbles: true,
  pointerId: 1, clientX: x, clientY: y, buttons: type === "pointerdown" ? 1 : 0}));
for (const node of document.querySelectorAll("svg[role=img], canvas")) {
  const box = node.getBoundingClientRect();
  for (let i = 0; i < 20; ++i) {
    point(node, "pointermove", box.left + box.width * i / 20, box.top + box.height * i / 20);
  }
  point(node, "pointerleave", 0, 0);
  for (const key of ["ArrowLeft", "ArrowRight", "+", "-", "0", "n", "p", "n", "[", "]", "Home",
                     "End"]) {
    node.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  }
}
for (const button of document.querySelectorAll("button")) button.click();
for (const details of document.querySelectorAll("details")) details.open = true;
const view = document.querySelector("canvas.view");
if (view) {
  view.focus();
  view.dispatchEvent(new WheelEvent("wheel", {deltaY: -200, clientX: 300, cancelable: true}));
}
)js";

TEST_F(Script, PageDrawsEverySectionAndSurvivesTouching) {
  if (!on_path("chromium")) GTEST_SKIP() << "chromium is not installed";
  const std::string page = run_page(render_report(fake_report()), kTouchAll);
  if (page.empty()) GTEST_SKIP() << "chromium does not run here";
  EXPECT_TRUE(has(page, "data-driven=\"true\""));
  EXPECT_FALSE(has(page, "data-failed"));
  EXPECT_TRUE(has(page, "data-theme=\"dark\""));
  for (const char* id : {"metrics", "viewer", "curves", "durations", "confusions", "labels",
                         "calibration", "environment"}) {
    EXPECT_TRUE(has(page, "<section id=\"" + std::string(id) + "\""));
  }
  EXPECT_TRUE(has(page, "wrong label"));  // the opened table of segments
  std::size_t boxes = 0;
  for (std::size_t at = 0; (at = page.find("<div class=\"scroll", at)) != std::string::npos; ++at) {
    ++boxes;  // keyboards scroll only what takes the focus
    EXPECT_TRUE(has(page.substr(at, page.find('>', at) - at), "tabindex=\"0\" role=\"group\""));
  }
  EXPECT_GE(boxes, 6U);
  const std::string drawn =
      page.substr(page.find("<main"), page.find("</main>") - page.find("<main"));
  for (const char* slip : {"undefined", "NaN", "Infinity", "[object"}) {
    EXPECT_FALSE(has(drawn, slip)) << slip;
  }
}

TEST_F(Script, EmptyAndHostilePagesDraw) {
  if (!on_path("chromium")) GTEST_SKIP() << "chromium is not installed";
  ReportData d;
  d.title = d.config = "</script><b id=\"evil\">";
  d.labels = {d.title};
  d.metrics = {{d.title, ReportUnit::kRatio, ReportBetter::kHigher, {kNoValue}, true, ""}};
  d.worst = {{d.title, 1, 1, 1, 1}};
  d.doubted = {{d.title, 0, 1, d.title, d.title, 0.5}};
  d.epochs = {{1, kNoValue, kNoValue, kNoValue, kNoValue}};
  d.durations = {{0, 0.01, 0.01, {}, {}, {}}};
  d.confusions.pairs = {0};
  d.recordings = {ReportRecording{}};
  d.calibrations = {{"none", {}, kNoValue}};
  const std::string page = run_page(render_report(d), kTouchAll);
  if (page.empty()) GTEST_SKIP() << "chromium does not run here";
  EXPECT_TRUE(has(page, "data-driven=\"true\""));
  EXPECT_FALSE(has(page, "data-failed"));
  EXPECT_FALSE(has(page, "<b id=\"evil\""));
}

}  // namespace
}  // namespace segfuse::learn
