// What print_cuda() writes does what loop::interpret says, thread by thread on the host.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "compiler/codegen/cuda/print_cuda.h"
#include "support/gpu/kernel_jobs.h"
#include "support/gpu/printed_kernels.h"
#include "support/random/random_fusion.h"
#include "unit/codegen_gpu/models.h"

namespace segfuse::compiler {
namespace {

using testing::KernelJob;
using testing::PrintedKernels;

/// Blocks of all shapes, vectors, and ways to hold a row; sizes so small that every tail is there.
std::vector<Schedule> schedules() {
  Schedule s;
  s.target = Target::kCuda;
  s.threads = 32;
  s.tile = 24;
  s.cross = 2;
  s.rows = 3;
  s.unroll = 2;
  std::vector<Schedule> all = {s};
  auto add = [&](auto change) {
    all.push_back(s);
    change(all.back());
  };
  add([](Schedule& x) { x.threads = 1, x.unroll = 1, x.narrow = true; });
  add([](Schedule& x) { x.threads = 4, x.rows_at_once = 5, x.hold = Hold::kScratch, x.row = 512; });
  add([](Schedule& x) {
    x.threads = 8, x.rows_at_once = 4, x.hold = Hold::kRegister, x.row = 80, x.narrow = true;
  });
  add([](Schedule& x) { x.threads = 64, x.hold = Hold::kRegister, x.row = 512, x.unroll = 3; });
  add([](Schedule& x) {
    x.threads = 96, x.rows_at_once = 2, x.hold = Hold::kScratch, x.row = 512, x.narrow = true;
  });
  add([](Schedule& x) { x.threads = 64, x.split = 3; });
  add([](Schedule& x) { x.threads = 16, x.staged = true; });
  // Many parts and chunks, joined two after the other; columns' states in shared memory.
  add([](Schedule& x) { x.threads = 64, x.split = 3, x.joined = 2, x.row = 512; });
  return all;
}

/// Gives kernels the vectors that their sizes allow; leaves out what a schedule cannot hold.
bool adapt(loop::Kernel& kernel, const std::function<std::int64_t(const ir::Extent&)>& size) {
  const bool narrow = kernel.schedule.narrow;
  cuda::fit_to_sizes(kernel, size);
  kernel.schedule.narrow = narrow;
  for (const loop::KernelBuffer& buffer : kernel.buffers)
    if (buffer.capacity > 0 && size(buffer.elements) > buffer.capacity) return false;
  return true;
}

/// Compiles the kernels of all jobs together and runs them, in many blocks and in few.
void expect_all(const std::vector<KernelJob>& jobs) {
  PrintedKernels kernels;
  for (const KernelJob& job : jobs) kernels.add(job.kernel);
  ASSERT_NO_THROW(kernels.build());
  int failures = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i)
    for (const unsigned most : {~0U, 2U}) {
      std::vector<Tensor> globals;
      for (const Tensor& tensor : jobs[i].before) globals.push_back(tensor.clone());
      const int status =
          kernels.run(i, globals, [&](const ir::Extent& e) { return jobs[i].size(e); }, most);
      const std::string found = testing::difference(jobs[i], globals, status);
      EXPECT_EQ(found, "") << (failures == 0 ? loop::print(jobs[i].kernel) +
                                                   cuda::print_cuda_parts(jobs[i].kernel).code
                                             : "");
      if (!found.empty() && ++failures > 5) return;
    }
}

class Printed : public ::testing::TestWithParam<testing::NamedModel> {};

TEST_P(Printed, DoesWhatTheInterpreterSays) {
  Model model;
  GetParam().build(model);
  std::vector<KernelJob> jobs;
  for (const std::int64_t n : {1, 5, 12}) {  // the last is long enough for two warps
    const std::map<std::string, std::int64_t> sizes{{"N", n},      {"B", 3}, {"T", 2},
                                                    {"C", 16 * n}, {"H", 4}, {"W", n + 1}};
    const auto inputs = testing::normal_inputs(model.fusion, sizes);
    for (const Schedule& schedule : schedules())
      for (KernelJob& job : testing::jobs_of(
               model.fusion, inputs, [&](const Space&) { return schedule; },
               fmt::format("{} of {}", GetParam().name, n), adapt))
        jobs.push_back(std::move(job));
    for (KernelJob& job :
         testing::jobs_of(model.fusion, inputs, testing::chosen_for_cuda,
                          fmt::format("{} of {}, chosen", GetParam().name, n), adapt, sizes))
      jobs.push_back(std::move(job));
  }
  expect_all(jobs);
}

INSTANTIATE_TEST_SUITE_P(Models, Printed, ::testing::ValuesIn(testing::named_models()),
                         [](const auto& instance) { return instance.param.name; });

class RandomPrinted : public ::testing::TestWithParam<testing::Numbers> {};

TEST_P(RandomPrinted, DoWhatTheInterpreterSays) {
  const std::vector<Schedule> all = schedules();
  std::vector<KernelJob> jobs;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    const testing::RandomFusion program = testing::random_fusion(seed, GetParam());
    const auto inputs =
        testing::random_inputs(program, seed, static_cast<std::int64_t>(seed % 3) + 1,
                               static_cast<std::int64_t>(4 + seed % 5));
    for (KernelJob& job : testing::jobs_of(
             program.fusion, inputs, [&](const Space&) { return all[seed % all.size()]; },
             fmt::format("seed {}", seed), adapt))
      jobs.push_back(std::move(job));
  }
  expect_all(jobs);
}

INSTANTIATE_TEST_SUITE_P(Programs, RandomPrinted,
                         ::testing::Values(testing::Numbers::kSmooth, testing::Numbers::kExact),
                         [](const auto& instance) {
                           return instance.param == testing::Numbers::kSmooth ? "Smooth" : "Exact";
                         });

// ---- what the text has

/// The text of the model's first kernel under the chosen schedule, and its kernel.
std::pair<std::string, loop::Kernel> chosen_text(const std::function<void(Model&)>& build,
                                                 const std::map<std::string, std::int64_t>& sizes) {
  Model model;
  build(model);
  const auto inputs = testing::normal_inputs(model.fusion, sizes);
  const auto jobs =
      testing::jobs_of(model.fusion, inputs, testing::chosen_for_cuda, "chosen", adapt, sizes);
  return {cuda::print_cuda_parts(jobs.at(0).kernel).code, jobs.at(0).kernel};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PrintedText, TilesOfATranspositionMoveByVectors) {
  const auto f32 = [](Model& m) { testing::transposed_rows(m, DType::kF32); };
  const std::string whole = chosen_text(f32, {{"N", 72}, {"C", 136}}).first;
  EXPECT_TRUE(has(whole, "fetch_pack<4>(b0")) << whole;
  EXPECT_TRUE(has(whole, "store_pack<4>(b2")) << whole;
  const std::string odd = chosen_text(f32, {{"N", 72}, {"C", 135}}).first;
  EXPECT_FALSE(has(odd, "store_pack")) << odd;
  const auto bf16 = [](Model& m) { testing::transposed_rows(m, DType::kBF16); };
  EXPECT_TRUE(has(chosen_text(bf16, {{"N", 72}, {"C", 136}}).first, "store_pack<8>(b2"));
}

/// Where a branch is around it, NVRTC divides again for every element.
TEST(PrintedText, AnOuterIterationIsDividedOnceAndTilesHaveNoEndInATurn) {
  const auto f32 = [](Model& m) { testing::transposed_rows(m, DType::kF32); };
  const std::string odd = chosen_text(f32, {{"N", 72}, {"C", 135}}).first;
  std::size_t uses = 0;  // a quotient and a remainder
  for (std::size_t at = odd.find("(i0)"); at != std::string::npos; at = odd.find("(i0)", at + 1))
    ++uses;
  EXPECT_EQ(uses, 2U) << odd;
  EXPECT_TRUE(has(odd, "const long long q")) << odd;
  EXPECT_FALSE(has(odd, "< end) {")) << odd;
}

TEST(PrintedText, VectorsAreMadeForTheLongestBuffers) {
  const auto build = [](Model& m) { testing::column_sums(m, DType::kBF16); };
  const auto [text, kernel] = chosen_text(build, {{"N", 1024}, {"C", 512}});
  EXPECT_EQ(kernel.schedule.vector, 8) << text;  // beside partial sums in f32
  EXPECT_TRUE(has(text, "store_pack<8>(b1")) << text;
}

/// Heads beside each other: a vector stays within one of them, whichever it is.
TEST(PrintedText, VectorsOfAnAxisThatOthersAreJoinedWith) {
  const auto text = [](std::int64_t width) {
    const auto build = [&](Model& m) {
      const ir::ValId x = m.input("x", {3, 2, m.size("T"), width});
      const ir::ValId turned = m.b.permute(x, {2, 1, 0, 3});
      const ir::Extents flat{m.size("T"), 6 * width};
      m.output(m.b.sum(m.b.reshape(turned, flat), {0}));
    };
    return chosen_text(build, {{"T", 512}}).first;
  };
  EXPECT_TRUE(has(text(64), "fetch_pack<4>(b0")) << text(64);
  EXPECT_FALSE(has(text(63), "fetch_pack<4>(b0")) << text(63);
}

TEST(PrintedText, RowsThatFillTheirRegistersHaveNoEnd) {
  const auto build = [](Model& m) { testing::layer_norm_rows(m, DType::kF32); };
  const auto [text, kernel] = chosen_text(build, {{"N", 8}, {"C", 1024}});
  EXPECT_TRUE(kernel.schedule.filled);
  EXPECT_FALSE(has(text, "< end")) << text;
  const auto [part, with_end] = chosen_text(build, {{"N", 8}, {"C", 1020}});
  EXPECT_FALSE(with_end.schedule.filled);
  EXPECT_TRUE(has(part, "< end")) << part;
}

/// Rows of less than a vector: a lane takes several together, the last ones one by one.
TEST(PrintedText, ShortRowsAreMovedAsWholeVectors) {
  using Build = void (*)(Model&, DType);
  const Build builds[] = {testing::softmax_rows, testing::rms_norm_rows,
                          [](Model& m, DType t) { testing::layer_norm_rows(m, t, true); },
                          [](Model& m, DType t) {  // a result and an operand for each row
                            const ir::ValId x = m.input("x", {m.size("N"), m.size("C")}, t);
                            const ir::ValId of_row = m.input("y", {m.size("N"), ir::Extent(1)}, t);
                            m.output(m.b.sum(m.b.mul(x, of_row), {1}));
                          }};
  std::vector<KernelJob> jobs;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const std::int64_t columns : {1, 2, 3, 5, 7})
      for (const Build build : builds) {
        Model model;
        build(model, dtype);
        const bool strip = columns * static_cast<std::int64_t>(size_of(dtype)) < 16;
        for (const std::int64_t rows : {1, 7, 67, 300}) {
          const std::map<std::string, std::int64_t> sizes{{"N", rows}, {"C", columns}};
          const auto inputs = testing::normal_inputs(model.fusion, sizes);
          for (KernelJob& job : testing::jobs_of(
                   model.fusion, inputs, testing::chosen_for_cuda,
                   fmt::format("{} rows of {} {}", rows, columns, name_of(dtype)), adapt, sizes)) {
            EXPECT_EQ(job.kernel.schedule.strip > 1, strip) << loop::print(job.kernel);
            jobs.push_back(std::move(job));
          }
        }
      }
  expect_all(jobs);
  const auto [text, kernel] =
      chosen_text([](Model& m) { testing::softmax_rows(m, DType::kBF16); }, {{"N", 67}, {"C", 3}});
  EXPECT_TRUE(has(text, "fetch_pack<8>(b1 + (first * 3 + p * 8))")) << text;
  EXPECT_TRUE(has(text, "constexpr long long n0 = 3;")) << text;
}

TEST(PrintedText, ChunksOfRowsAskForTheNextRowEarlyButNotBehindTheLast) {
  const auto build = [](Model& m) { testing::layer_norm_gradients(m, DType::kF32); };
  const auto [text, kernel] = chosen_text(build, {{"N", 64}, {"C", 512}});
  EXPECT_TRUE(has(text, "prefetch_l2(")) << text;
  EXPECT_TRUE(has(text, " + 1 < min(")) << text;
}

TEST(PrintedText, ASumOfTwoRowsIsHeldInsteadOfBoth) {
  const auto build = [](Model& m) { testing::layer_norm_rows(m, DType::kF32, true); };
  const auto [text, kernel] = chosen_text(build, {{"N", 8}, {"C", 1024}});
  int held = 0;
  for (const loop::KernelBuffer& buffer : kernel.buffers)
    held += buffer.kind == loop::KernelBuffer::Kind::kRow ? 1 : 0;
  EXPECT_EQ(held, 1) << loop::print(kernel);
}

}  // namespace
}  // namespace segfuse::compiler
