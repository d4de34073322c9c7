// The compiler's page: whole, by itself, and true to the report.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/console/markup.h"
#include "base/os/file.h"
#include "compiler/autodiff.h"
#include "compiler/segment/report.h"
#include "engine/compiled/html_parts.h"
#include "ir/builder.h"
#include "ir/text.h"
#include "segfuse/program.h"
#include "support/gpu/nvrtc.h"
#include "support/source_dir.h"

namespace segfuse::engine {
namespace {

using ir::ValId;
using ::testing::HasSubstr;
using ::testing::Not;

/// Attention with gradients, a state that is written over, and names that are markup.
ir::Fusion busy() {
  ir::Fusion f("<b>busy</b> & \"more\"");
  ir::Builder b(f);
  const ir::Extent time(f.symbol("T"));
  const ValId x = f.add_input("x<i>", DType::kF32, {4, time, 32});
  const ValId w = f.add_input("w", DType::kF32, {32, 32});
  const ValId scale = f.add_input("scale", DType::kF32, {32});
  const ValId normal = b.layer_norm(x, scale, f.add_input("shift", DType::kF32, {32}));
  const ValId q = b.matmul(normal, w);
  const ValId mixed = b.matmul(b.softmax(b.matmul(q, normal, false, true), -1), normal);
  const ValId loss = b.mean(b.square(mixed), {0, 1, 2});
  f.add_output(loss, "loss");
  const ValId parameters[] = {w, scale};
  const std::vector<ValId> gradients = compiler::gradients(f, loss, parameters);
  f.add_output(gradients[1], "g");
  const ValId next = b.sub(w, b.mul(gradients[0], b.constant(0.1)));
  f.add_output(next, "next");
  f.add_alias(next, w);
  return f;
}

/// Opening tags and their ends; "" if every one is closed in order.
std::string unbalanced(const std::string& page) {
  static const std::set<std::string> kEmpty = {"meta", "!doctype"};
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != page.npos; at = page.find('<', at + 1)) {
    const std::string tag = page.substr(at + 1, page.find('>', at) - at - 1);
    const bool end = tag.starts_with("/");
    const std::string name = tag.substr(end, tag.find_first_of(" \n", 1) - end);
    if (tag.ends_with("/") || kEmpty.contains(name)) continue;
    if (!end) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back() + " is open";
}

/// What stands between `before` and the next `after`.
std::vector<std::string> all_between(const std::string& text, const std::string& before,
                                     const std::string& after) {
  std::vector<std::string> found;
  for (std::size_t at = text.find(before); at != text.npos; at = text.find(before, at + 1)) {
    const std::size_t begin = at + before.size();
    found.push_back(text.substr(begin, text.find(after, begin) - begin));
  }
  return found;
}

TEST(CompilerPage, IsWholeAndByItself) {
  const Program program = Program::from_text(ir::print(busy()));
  const std::string page = program.emit("html", {.sizes = {{"T", 100}}});
  EXPECT_EQ(unbalanced(page), "");
  for (const char* foreign :
       {"http:", "https:", "//cdn", "<script", "<link", "src=", "@import", "url("})
    EXPECT_THAT(page, Not(HasSubstr(foreign)));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;busy&lt;/b&gt; &amp; &quot;more&quot;"));
  EXPECT_THAT(page, Not(HasSubstr("<b>busy")));
  EXPECT_THAT(page, Not(HasSubstr("x<i>")));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(page, HasSubstr("<body>\n<main>"));
  EXPECT_THAT(page, Not(HasSubstr("role=\"img\"")));  // a picture would hide its links
  EXPECT_EQ(all_between(page, "<pre", ">").size(),
            all_between(page, "<pre tabindex=\"0\"", ">").size());
  EXPECT_THAT(page, HasSubstr("T = 100"));
  EXPECT_EQ(page, program.emit("html", {.sizes = {{"T", 100}}}));
}

TEST(CompilerPage, ShowsEveryGroupWithItsKernelsAndReasons) {
  const ir::Fusion fusion = busy();
  const Program program = Program::from_text(ir::print(fusion));
  const std::string page = program.emit("html");
  const std::vector<std::string> cards = all_between(page, "<details id=\"", "\"");
  Emission emission(fusion, {});
  ASSERT_EQ(cards.size(), emission.segmented().size());
  const std::set<std::string> targets(cards.begin(), cards.end());
  EXPECT_EQ(targets.size(), cards.size());
  for (const std::string& link : all_between(page, "href=\"#", "\""))
    EXPECT_TRUE(targets.contains(link)) << link;
  std::size_t kernels = 0;
  emission.each([&](EmittedGroup& group) { kernels += group.lowered.kernels.size(); });
  EXPECT_EQ(all_between(page, "static void ", "(").size(), kernels);
  EXPECT_GE(all_between(page, "extern &quot;C&quot; __global__ void", "(").size(), kernels / 2);
  ASSERT_FALSE(emission.segmented().rejections.empty());
  for (const compiler::Rejection& one : emission.segmented().rejections)
    EXPECT_THAT(page, HasSubstr(escape_markup(one.reason)));
  for (const char* name : {"'w'", "'scale'", "'loss'", "'next'"})
    EXPECT_THAT(page, HasSubstr(">" + escape_markup(name) + "</text>"));
}

TEST(CompilerPage, BytesOfGroupsAddUpToTheReports) {
  Emission emission(busy(), {});
  const compiler::SegmentReport report = compiler::report(emission.segmented());
  std::int64_t needed = 0;
  std::int64_t all = 0;
  for (const Traffic& traffic : traffic_of(emission.segmented())) {
    needed += traffic.needed;
    all += traffic.total();
  }
  EXPECT_EQ(all, report.moved);
  EXPECT_EQ(needed, report.lower_bound);
}

TEST(CompilerPage, SaysWhatKernelsNeed) {
  const Program program = Program::from_file(SEGFUSE_SOURCE_DIR "/examples/layer_norm.sf");
  EmitOptions how;
  EXPECT_THAT(program.emit("html", how), Not(HasSubstr("needs on")));
  how.resources = [](const std::string& cubin) {
    EXPECT_FALSE(cubin.empty());
    return std::map<std::string, std::string>{{"row_norm", "few <registers>"}};
  };
  const std::string missing = testing::missing_nvrtc();
  const std::string page = program.emit("html", how);
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr(missing.empty() ? "few &lt;registers&gt;" : "is not known: CUDA: "));
}

TEST(CompilerPage, OfVeryManyGroupsHasNoPicture) {
  ir::Fusion f("long");
  ir::Builder b(f);
  ValId x = f.add_input("x", DType::kF32, {8, 8});
  const ValId w = f.add_input("w", DType::kF32, {8, 8});
  for (int i = 0; i < 450; ++i) x = b.matmul(x, w);
  f.add_output(x, "y");
  const std::string page = Program::from_text(ir::print(f)).emit("html");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr("too many for a picture"));
  EXPECT_THAT(page, Not(HasSubstr("<svg")));
}

TEST(CompilerPage, WritesBytesAsPeopleDo) {
  EXPECT_EQ(html_bytes(0), "0 B");
  EXPECT_EQ(html_bytes(1023), "1023 B");
  EXPECT_EQ(html_bytes(1536), "1.50 KiB");
  EXPECT_EQ(html_bytes(std::int64_t{300} << 20), "300 MiB");
}

}  // namespace
}  // namespace segfuse::engine
