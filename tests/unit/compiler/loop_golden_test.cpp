// Loop IR of one case of each kind of group, under the CPU's schedules. SEGFUSE_UPDATE_GOLDEN=1
// writes the files again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/os/file.h"
#include "compiler/schedule/choose.h"
#include "support/source_dir.h"
#include "unit/compiler/segment_models.h"

namespace segfuse::compiler {
namespace {

struct Kind {
  const char* name;
  GroupKind kind;
  std::function<void(Model&)> build;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::vector<Kind> kinds() {
  auto matrix = [](Model& m) { return m.input("x", {m.size("N"), m.size("C")}); };
  return {
      {"pointwise", GroupKind::kPointwise,
       [=](Model& m) { m.output(m.b.exp(m.b.add(matrix(m), m.input("b", {m.size("C")})))); }},
      {"transpose", GroupKind::kTiledTranspose,
       [=](Model& m) { m.output(m.b.exp(m.b.permute(matrix(m), {1, 0}))); }},
      {"reduce", GroupKind::kReduce, [=](Model& m) { m.output(m.b.sum(matrix(m), {1})); }},
      {"columns", GroupKind::kReduce, [=](Model& m) { m.output(m.b.sum(matrix(m), {0})); }},
      {"row_norm", GroupKind::kRowNorm, [=](Model& m) { m.output(m.b.softmax(matrix(m), 1)); }},
      {"short_rows", GroupKind::kRowNorm,
       [](Model& m) { m.output(m.b.softmax(m.input("x", {m.size("N"), 3}), 1)); }},
      {"short_bias", GroupKind::kPointwise,
       [](Model& m) { m.output(m.b.add(m.input("x", {m.size("N"), 3}), m.input("b", {3}))); }},
      {"few_columns", GroupKind::kReduce,
       [](Model& m) { m.output(m.b.sum(m.input("x", {100'000, 3}), {0})); }},
      {"col_norm", GroupKind::kColNorm, [=](Model& m) { m.output(m.b.softmax(matrix(m), 0)); }},
      {"row_col", GroupKind::kRowCol, [](Model& m) { m.backward(rms_norm_layer(m)); }},
  };
}

class LoopGolden : public ::testing::TestWithParam<Kind> {};

TEST_P(LoopGolden, StaysTheSame) {
  Model m;
  GetParam().build(m);
  const SegmentedFusion cut = m.cut();
  ir::Fusion fusion = cut.fusion();
  std::string text;
  int found = 0;
  for (const SegmentedGroup& group : cut.groups()) {
    const IterationDomain& domain = cut.domain(group.id);
    found += domain.kind == GetParam().kind;
    if (domain.kind == GroupKind::kView) continue;
    const GroupLowering lowering(fusion, group, domain, cut.in_place, cut.hints(),
                                 function_name(domain.kind));
    std::vector<std::int64_t> lengths;
    for (const SpaceAxis& axis : lowering.space().axes) lengths.push_back(axis.hint);
    for (const GroupKernel& kernel : lowering.lower(choose_cpu(lowering.space(), lengths)).kernels)
      text += loop::print(kernel.kernel);
  }
  EXPECT_EQ(found, 1);
  const std::string path =
      std::string(SEGFUSE_SOURCE_DIR "/tests/golden/loop/") + GetParam().name + ".txt";
  std::ifstream file(path);
  std::stringstream stands;
  stands << file.rdbuf();
  if (text != stands.str() && std::getenv("SEGFUSE_UPDATE_GOLDEN") != nullptr) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text, stands.str()) << "set SEGFUSE_UPDATE_GOLDEN=1 to rewrite " << path;
}

INSTANTIATE_TEST_SUITE_P(Kinds, LoopGolden, ::testing::ValuesIn(kinds()),
                         [](const auto& instance) { return instance.param.name; });

// docs/lowering.md explains a softmax by the loops that come out of it.
TEST(LoopDocs, ShowASoftmaxAsItIsLowered) {
  const std::string loops = read_file(SEGFUSE_SOURCE_DIR "/tests/golden/loop/row_norm.txt");
  EXPECT_THAT(read_file(SEGFUSE_SOURCE_DIR "/docs/lowering.md"),
              ::testing::HasSubstr("```\n" + loops + "```\n"));
}

}  // namespace
}  // namespace segfuse::compiler
