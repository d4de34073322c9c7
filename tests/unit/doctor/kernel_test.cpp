// The kernel doctor: texts and cubins made by hand, and agreement with what the assembler says of
// many kernels.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/code/made_kernels.h"
#include "base/os/file.h"
#include "doctor/elf.h"
#include "doctor/kernel/cpu.h"
#include "doctor/kernel/cubin.h"
#include "doctor/kernel/fatbin.h"
#include "doctor/kernel/occupancy.h"
#include "doctor/kernel/ptx.h"
#include "jit/cpu_compiler.h"
#include "runtime/cuda/nvrtc.h"
#include "segfuse/doctor/streams.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"
#include "support/source_dir.h"
#include "unit/doctor/ptxas_report.h"

namespace segfuse {
namespace {

using test::expect_agreement;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kOthers = fs::path(SEGFUSE_SOURCE_DIR) / "tests/golden/kernels/others.cu";

/// NVRTC as tools/setup installs it with the Python tests' packages, if nothing else is named.
bool has_nvrtc() {
  std::error_code error;
  const fs::path root = fs::path(SEGFUSE_SOURCE_DIR) / ".venv-python/lib";
  if (std::getenv("SEGFUSE_NVRTC") == nullptr && fs::exists(root))
    for (const auto& entry : fs::recursive_directory_iterator(root, error))
      if (entry.path().filename() == "libnvrtc.so.13")
        setenv("SEGFUSE_NVRTC", entry.path().c_str(), 1);
  try {
    runtime::cuda::nvrtc_version();
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

class KernelAgreementTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the same texts are compiled in the plain build";
#endif
    if (!has_nvrtc()) GTEST_SKIP() << "libnvrtc cannot be opened";
  }
  static void check(const std::string& name, const std::string& source,
                    const std::vector<std::string>& defines) {
    SCOPED_TRACE(name);
    const auto compiled = runtime::cuda::compile_cubin(name, source, defines, GetParam());
    expect_agreement(doctor::read_cubin(compiled.cubin, name), compiled.report);
  }
};
INSTANTIATE_TEST_SUITE_P(Architectures, KernelAgreementTest,
                         ::testing::Values("sm_80", "sm_90", "sm_100"),
                         [](const auto& suite) { return std::string(suite.param); });

TEST_P(KernelAgreementTest, ManyKindsOfKernels) { check("others", read_file(kOthers), {}); }

/// The way of a .ptx file, with the toolkit's assembler as the oracle.
TEST(KernelDoctorTest, PtxIsAssembledAndAgreesWithPtxas) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the same texts are compiled in the plain build";
#endif
  const spawn::Result version = spawn::run({.arguments = {"ptxas", "--version"}});
  if (!version.ok()) GTEST_SKIP() << "ptxas is not in PATH";
  if (!has_nvrtc()) GTEST_SKIP() << "libnvrtc cannot be opened";
  const fs::path folder = fs::temp_directory_path() / fmt::format("segfuse_ptx_{}", getpid());
  fs::create_directories(folder);
  const auto compiled = runtime::cuda::compile_cubin("others", read_file(kOthers), {}, "sm_90");
  const fs::path file = folder / "others.ptx";
  std::ofstream(file) << compiled.ptx;
  const KernelReport report = examine_kernels(file);
  const spawn::Result oracle = spawn::run(
      {.arguments = {"ptxas", "-v", "-arch=sm_90", "-o", (folder / "x.cubin").string(), file},
       .err = spawn::Capture{}});
  ASSERT_TRUE(oracle.ok()) << oracle.err;
  expect_agreement(report.kernels, oracle.err + oracle.out);
  EXPECT_GE(report.kernels.size(), 20u);
  EXPECT_TRUE(report.spills());
  // The text's own barriers and shared memory are what the assembler makes of them.
  for (const KernelInfo& text : doctor::read_ptx(compiled.ptx, "others.ptx")) {
    for (const KernelInfo& kernel : report.kernels) {
      if (kernel.name != text.name) continue;
      EXPECT_EQ(kernel.barriers, text.barriers) << text.name;
      EXPECT_GE(kernel.shared_bytes, text.shared_bytes) << text.name;
      EXPECT_LE(kernel.shared_bytes, text.shared_bytes + 16) << "more than padding: " << text.name;
    }
  }
  fs::remove_all(folder);
}

std::string atomics_of(const KernelReport& report, const std::string& name) {
  std::string text;
  for (const KernelInfo& kernel : report.kernels)
    if (kernel.name == name)
      for (const KernelAtomic& atomic : kernel.atomics)
        text += fmt::format("{} {} {};", atomic.count, atomic.instruction, atomic.order);
  return text;
}

TEST(KernelDoctorTest, CudaTextIsCompiledAndItsAtomicsAreJudged) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the same texts are compiled in the plain build";
#endif
  if (!has_nvrtc()) GTEST_SKIP() << "libnvrtc cannot be opened";
  const KernelReport report = examine_kernels(kOthers, {.architecture = "sm_80", .block = 128});
  EXPECT_THAT(atomics_of(report, "float_atomics"), HasSubstr("add.f32 dependent"));
  EXPECT_THAT(atomics_of(report, "float_atomics"), HasSubstr("add.f64 dependent"));
  EXPECT_THAT(atomics_of(report, "tickets"), HasSubstr("add.u32 returned"));
  EXPECT_THAT(atomics_of(report, "largest"), HasSubstr("max.s32 independent"));
  EXPECT_THAT(atomics_of(report, "lock"), HasSubstr("cas.b32 dependent"));
  EXPECT_THAT(atomics_of(report, "calls"), HasSubstr("add.f32 dependent"));
  EXPECT_EQ(atomics_of(report, "row_sums"), "");
  EXPECT_THAT(kernel_report_text(report), HasSubstr("spills_much: "));
  EXPECT_THAT(kernel_report_json(report), HasSubstr("\"order\": \"returned\""));
  EXPECT_THAT(kernel_comparison_text(report, report), HasSubstr("former -> now"));
  for (const KernelInfo& kernel : report.kernels)
    EXPECT_EQ(kernel.occupancy.at(0).block, 128u) << kernel.name;
}

constexpr const char* kTwoLoops = R"(static float half(float x) { return 0.5f * x; }
void scale(float *x, const float *y, long n) {
  for (long i = 0; i < n; ++i) x[i] = half(y[i]);
}
void chain(float *x, long n) {
  for (long i = 1; i < n; ++i)
    x[i] = x[i - 1] * 0.5f + 1;
}
)";

TEST(KernelDoctorTest, LoopsOfCAreExplained) {
  std::string reason;
  if (!jit::open_cpu_compiler(&reason)) GTEST_SKIP() << reason;
  const fs::path file = fs::temp_directory_path() / fmt::format("segfuse_c_{}.c", getpid());
  std::ofstream(file) << kTwoLoops;
  const KernelReport report = examine_kernels(file);
  EXPECT_THAT(report.source, HasSubstr("C, compiled by clang"));
  ASSERT_EQ(report.kernels.size(), 2U);
  EXPECT_EQ(report.kernels[0].name, "chain");
  EXPECT_EQ(report.kernels[1].name, "scale");
  for (const KernelInfo& kernel : report.kernels) EXPECT_GT(kernel.code_bytes, 8U);
  bool vectorized = false;
  bool refused = false;
  for (const KernelLoop& loop : report.loops) {
    vectorized = vectorized || (loop.line == 3 && loop.vectorized);
    refused = refused || (loop.line == 6 && !loop.vectorized);
    EXPECT_TRUE(loop.line != 6 || !loop.vectorized) << loop.remark;
  }
  EXPECT_TRUE(vectorized && refused) << kernel_report_text(report);
  EXPECT_THAT(kernel_report_text(report), HasSubstr("line 6: loop not vectorized"));
  EXPECT_THAT(kernel_report_json(report), HasSubstr("\"vectorized\": true"));

  std::ofstream(file) << "void f(void) { return 1 +; }\n";
  try {
    (void)examine_kernels(file);
    FAIL() << "it compiled";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr(file.string() + ":1: "));
  }
  fs::remove(file);
}

TEST(KernelDoctorTest, RemarksOfOtherShapesAreLeftOut) {
  const auto loops = doctor::parse_remarks(
      "7: vectorized loop (width: 8)\nnothing\nx: y\n0: z\n2: loop not\n3: SLP vectorized\n"
      "2: loop not\n");
  ASSERT_EQ(loops.size(), 2U);
  EXPECT_EQ(loops[0].line, 2U);
  EXPECT_FALSE(loops[0].vectorized);
  EXPECT_TRUE(loops[1].vectorized);
}

TEST(KernelWatchTest, SeesEachTextOnceWhileItLives) {
  std::string reason;
  const auto compiler = jit::open_cpu_compiler(&reason);
  if (!compiler) GTEST_SKIP() << reason;
  static_cast<void>(compiler->compile({"before", "void before(void) {}\n"}));
  {
    const Watch watch;
    EXPECT_TRUE(watch.kernels().empty());
    for (int i = 0; i < 2; ++i) static_cast<void>(compiler->compile({"two", kTwoLoops}));
    static_cast<void>(compiler->compile({"more", std::string(kTwoLoops) + "\n"}));
    const std::vector<KernelReport> reports = watch.kernels();
    ASSERT_EQ(reports.size(), 1U);
    std::vector<std::string> names;
    for (const KernelInfo& kernel : reports[0].kernels) names.push_back(kernel.name);
    EXPECT_THAT(names,
                ::testing::UnorderedElementsAre("scale", "chain", "scale_of_2", "chain_of_2"));
    EXPECT_THAT(kernel_report_text(reports[0]), HasSubstr("_of_2, line 6: loop not vectorized"));
    EXPECT_THAT(kernel_report_json(reports[0]), HasSubstr("\"kernel\": \""));
  }
  static_cast<void>(compiler->compile({"after", "void after(void) {}\n"}));
  EXPECT_TRUE(Watch().kernels().empty());
}

/// As a GPU tells them; the figures are those of the machine code, atomics of its text.
TEST(KernelWatchTest, ReportsKernelsOfAGpuByArchitecture) {
  if (!has_nvrtc()) GTEST_SKIP() << "NVRTC was not found";
  const Watch watch;
  const std::string text = R"(
extern "C" __global__ void __launch_bounds__(128, 1) count(int* at, const float* x) {
  if (x[threadIdx.x] > LEAST) atomicAdd(at, 1);
})";
  for (const char* architecture : {"sm_90", "sm_80", "sm_90"})
    for (const char* define : {"LEAST=1", "LEAST=2"})
      tell_kernels({MadeKernels::Language::kCuda,
                    "count",
                    text,
                    {define},
                    architecture,
                    runtime::cuda::compile_cubin("count", text, {define}, architecture).cubin});
  const std::vector<KernelReport> reports = watch.kernels();
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_THAT(reports[0].source, HasSubstr("sm_90"));
  EXPECT_THAT(reports[1].source, HasSubstr("sm_80"));
  for (const KernelReport& report : reports) {
    ASSERT_EQ(report.kernels.size(), 2U);
    EXPECT_EQ(report.kernels[0].name, "count");
    EXPECT_EQ(report.kernels[1].name, "count_of_2");
    for (const KernelInfo& kernel : report.kernels) {
      EXPECT_GT(kernel.registers.value_or(0), 0U);
      EXPECT_FALSE(kernel.spills());
      ASSERT_EQ(kernel.occupancy.size(), 1U);
      EXPECT_EQ(kernel.occupancy[0].block, 128U);
      if (!kernel.has_text) continue;  // this NVRTC keeps no PTX
      ASSERT_EQ(kernel.atomics.size(), 1U);
      EXPECT_EQ(kernel.atomics[0].order, "independent");
    }
  }
}

constexpr const char* kText = R"(
.version 9.0
.target sm_90, debug
.address_size 64
.shared .align 4 .b8 used[400];   // by the kernel
.shared .align 4 .b8 unused[100];
.extern .shared .align 16 .b8 asked[];
/* .visible .entry hidden() { } */
.func (.param .b32 back) helper(
  .param .b64 p
)
{
  .shared .align 8 .b64 own[4][2];
  red.global.add.u32 [%rd1], 1;
  bar.sync 2;
}
.visible .entry first(.param .u64 a)
.maxntid 64, 2, 1
.minnctapersm 2
{
  .reg .pred %p<3>;
  .reg .b32 %r<6>, %x;
  .local .align 16 .b8 depot[160];
  .loc 1 2 3
$L: @%p1 ld.local.f32 %r1, [depot];
  { st.local.v4.f32 [depot], {%r1,%r1,%r1,%r1}; }
  mov.u32 %r2, used;
  atom.global.add.u32 %r3, [%rd1], 1;
  atom.global.add.u32 %r4, [%rd1], %r5;
  mov.u32 %r5, %r4;
  atom.global.add.f16x2 %r2, [%rd1], %r5;
  bar.warp.sync 7;
  call (retval0), helper, (param0);
}
.entry second() { barrier.red.popc.aligned.u32 %r1, %r2, %p1; ret; }
)";

TEST(KernelDoctorTest, PtxIsRead) {
  const auto kernels = doctor::read_ptx(kText, "x.ptx");
  ASSERT_EQ(kernels.size(), 2u);
  const KernelInfo& first = kernels[0];
  EXPECT_EQ(first.name, "first");
  EXPECT_EQ(first.architecture, "sm_90");
  EXPECT_EQ(first.max_threads, 128u);
  EXPECT_EQ(first.declared_registers, 10u);
  EXPECT_EQ(first.local_bytes, 160u);
  EXPECT_EQ(first.local_loads, 1u);
  EXPECT_EQ(first.local_stores, 1u);
  EXPECT_EQ(first.shared_bytes, 464u);
  EXPECT_EQ(first.barriers, 3u);
  EXPECT_FALSE(first.registers);
  ASSERT_EQ(first.atomics.size(), 4u);
  EXPECT_EQ(first.atomics[0].order, "dependent");
  EXPECT_EQ(first.atomics[1].order, "independent");
  EXPECT_EQ(first.atomics[2].order, "returned");
  EXPECT_EQ(first.atomics[3].instruction, "red.global.add.u32");
  EXPECT_EQ(kernels[1].barriers, 16u);
  EXPECT_THROW(doctor::read_ptx("hello\n", "x.ptx"), DataError);
  EXPECT_THROW(doctor::read_ptx("", "x.ptx"), DataError);
  EXPECT_THROW(doctor::read_ptx(".version 1\n.entry a() {\n{ }", "x.ptx"), DataError);
}

TEST(KernelDoctorTest, FunctionsThatAKernelCallsShareItsBarriers) {
  const auto kernels = doctor::read_ptx(
      ".version 9.0\n.target sm_90\n"
      ".func helper() { bar.sync 2; }\n.func other() { bar.sync 1; }\n"
      ".entry kernel() { bar.sync 0; call helper; call other; ret; }\n",
      "x.ptx");
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].barriers, 3u);
}

TEST(KernelDoctorTest, WhatIsNoKernelIsRefused) {
  for (const char* name : {"/bin/sh", "/nowhere.cubin", "/etc/passwd"})
    EXPECT_THROW(examine_kernels(name), DataError) << name;
  EXPECT_THROW(doctor::read_cubin("", "x"), DataError);
  EXPECT_THROW(doctor::read_cubin(std::string("\x7f"
                                              "ELF\x02\x01") +
                                      std::string(58, '\xff'),
                                  "x"),
               DataError);
}

TEST(KernelDoctorTest, OccupancyFollowsTheScarcestResource) {
  const auto of = [](std::uint64_t registers, std::uint64_t shared, std::uint64_t block) {
    const auto occupancy = doctor::occupancy_of("sm_90", registers, shared, block);
    return occupancy
               ? fmt::format("{} {} {:.3f}", occupancy->blocks, occupancy->limit, occupancy->share)
               : "nothing";
  };
  EXPECT_EQ(of(32, 0, 256), "8 threads 1.000");
  EXPECT_EQ(of(64, 0, 256), "4 registers 0.500");
  EXPECT_EQ(of(255, 0, 256), "1 registers 0.125");
  EXPECT_EQ(of(65, 0, 256), "3 registers 0.375");
  EXPECT_EQ(of(40, 0, 96), "16 registers 0.750") << "a warp's registers are in one quarter";
  EXPECT_EQ(of(16, 0, 32), "32 blocks 0.500");
  EXPECT_EQ(of(16, 49152, 256), "4 shared memory 0.500");
  EXPECT_EQ(of(16, 227 << 10, 256), "1 shared memory 0.125");
  EXPECT_EQ(of(16, (227 << 10) + 1, 256), "nothing");
  EXPECT_EQ(of(16, 0, 1025), "nothing");
  EXPECT_EQ(doctor::occupancy_of("sm_80", 16, 49152, 256)->blocks, 3u);
}

/// From the tables of NVIDIA's programming guide: warps, blocks, shared memory of a multiprocessor.
TEST(KernelDoctorTest, OccupancyIsKnownForAllArchitectures) {
  const auto blocks = [](const char* architecture, std::uint64_t shared, std::uint64_t block) {
    const auto occupancy = doctor::occupancy_of(architecture, 16, shared, block);
    return occupancy ? occupancy->blocks : 0;
  };
  struct Row {
    const char* architecture;
    std::uint64_t of_one_warp, of_1024, of_10000_bytes, most_shared;
  };
  for (const Row& row :
       {Row{"sm_70", 32, 2, 9, 96}, Row{"sm_75", 16, 1, 6, 64}, Row{"sm_80", 32, 2, 15, 163},
        Row{"sm_86", 16, 1, 9, 99}, Row{"sm_87", 16, 1, 15, 163}, Row{"sm_89", 24, 1, 9, 99},
        Row{"sm_90a", 32, 2, 20, 227}, Row{"sm_100f", 32, 2, 20, 227},
        Row{"sm_103", 32, 2, 20, 227}, Row{"sm_110", 24, 1, 20, 227}, Row{"sm_120", 24, 1, 9, 99},
        Row{"sm_121a", 24, 1, 9, 99}}) {
    SCOPED_TRACE(row.architecture);
    EXPECT_EQ(blocks(row.architecture, 0, 32), row.of_one_warp);
    EXPECT_EQ(blocks(row.architecture, 0, 1024), row.of_1024);
    EXPECT_EQ(blocks(row.architecture, 10000, 32), row.of_10000_bytes);
    EXPECT_EQ(blocks(row.architecture, row.most_shared << 10, 32), 1u);
    EXPECT_EQ(blocks(row.architecture, (row.most_shared << 10) + 1, 32), 0u);
  }
  for (const char* name : {"sm_60", "sm_999", "sm_", "", "sm_90x", "compute_90"})
    EXPECT_EQ(blocks(name, 0, 32), 0u) << name;
}

// --- cubins, and what they are packed into ------------------------------------------------------

void put(std::string& bytes, std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i, value >>= 8) bytes += static_cast<char>(value & 0xff);
}

struct Section {
  std::string name;
  std::string bytes;
  std::uint64_t flags = 0;
};

/// An ELF file of these sections, for a machine.
std::string elf_of(std::uint64_t machine, std::vector<Section> sections, std::uint64_t flags = 0) {
  sections.insert(sections.begin(), Section{});
  sections.push_back({".shstrtab", ""});
  std::string names(1, '\0');
  std::vector<std::uint64_t> name_at;
  for (const Section& section : sections) {
    name_at.push_back(names.size());
    names += section.name + '\0';
  }
  sections.back().bytes = names;
  std::string content;
  std::string table;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    put(table, name_at[i], 4);
    put(table, i == 0 ? 0 : 1, 4);
    put(table, sections[i].flags, 8);
    put(table, 0, 8);
    put(table, 64 + content.size(), 8);
    put(table, sections[i].bytes.size(), 8);
    put(table, 0, 24);
    content += sections[i].bytes;
  }
  std::string file(
      "\x7f"
      "ELF\x02\x01\x01\x41\x08\0\0\0\0\0\0\0",
      16);
  put(file, 2, 2);
  put(file, machine, 2);
  put(file, 1, 4);
  put(file, 0, 16);
  put(file, 64 + content.size(), 8);
  put(file, flags, 4);
  put(file, 64, 2);
  put(file, 0, 4);
  put(file, 64, 2);
  put(file, sections.size(), 2);
  put(file, sections.size() - 1, 2);
  return file + content + table;
}

/// With one kernel that has no attributes.
std::string cubin_of(const std::string& kernel, std::uint64_t architecture,
                     std::uint64_t code_flags, const std::string& attributes = "") {
  return elf_of(190,
                {{".text." + kernel, std::string(128, '\1'), code_flags},
                 {".nv.info." + kernel, attributes},
                 {".nv.constant0." + kernel, std::string(16, '\0')}},
                architecture << 8);
}

TEST(KernelDoctorTest, PartsThatEndBeyondTheFileAreRefused) {
  const std::string good = cubin_of("k", 90, 6);
  const std::size_t table = doctor::little_endian(good, 40, 8);
  for (const std::size_t offset : {std::size_t{40}, table + 64 + 24}) {
    for (const std::uint64_t place : {~std::uint64_t{15}, ~std::uint64_t{0}, good.size() - 1}) {
      std::string changed;
      put(changed, place, 8);
      changed = good.substr(0, offset) + changed + good.substr(offset + 8);
      EXPECT_THROW(doctor::read_cubin(changed, "x.cubin"), DataError) << offset << " " << place;
    }
  }
  EXPECT_EQ(doctor::read_cubin(good, "x.cubin").size(), 1u);
}

/// CUDA 12 writes them into the flags of the code (seen with ptxas 12.9: 0x100006 is 1, 0x600006
/// 6, 0x1000006 16), CUDA 13 into an attribute.
TEST(KernelDoctorTest, BarriersOfBothWaysOfWritingThem) {
  const auto barriers = [](std::uint64_t flags, const std::string& attributes) {
    const auto kernels = doctor::read_cubin(cubin_of("k", 90, flags, attributes), "x.cubin");
    return kernels.size() == 1 ? kernels[0].barriers.value_or(99) : 98;
  };
  EXPECT_EQ(barriers(0x6, ""), 0u);
  EXPECT_EQ(barriers(0x100006, ""), 1u);
  EXPECT_EQ(barriers(0x600006, ""), 6u);
  EXPECT_EQ(barriers(0x1000006, ""), 16u);
  EXPECT_EQ(barriers(0x6, std::string("\x02\x4c\x05\0", 4)), 5u);
}

constexpr const char* kBarriers = R"(.version 7.1
.target sm_80
.address_size 64
.visible .entry none() { ret; }
.visible .entry _Z2tmILi32EdEvPT0_(.param .u64 p) { bar.sync 0; ret; }
.visible .entry six() { bar.sync 5; ret; }
.visible .entry named(.param .u32 p) { .reg .b32 %r<2>; ld.param.u32 %r1, [p]; bar.sync %r1; ret; }
)";

/// By whatever assembler is here, of CUDA 12 or 13.
TEST(KernelDoctorTest, BarriersAgreeWithTheAssembler) {
  if (!spawn::run({.arguments = {"ptxas", "--version"}}).ok())
    GTEST_SKIP() << "ptxas is not in PATH";
  const fs::path file = fs::temp_directory_path() / fmt::format("segfuse_bar_{}.ptx", getpid());
  std::ofstream(file) << kBarriers;
  for (const char* architecture : {"sm_80", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    const spawn::Result oracle =
        spawn::run({.arguments = {"ptxas", "-v", fmt::format("-arch={}", architecture), "-o",
                                  "/dev/null", file},
                    .err = spawn::Capture{}});
    if (!oracle.ok()) continue;  // an older one
    const KernelReport report = examine_kernels(file, {.architecture = architecture});
    expect_agreement(report.kernels, oracle.err + oracle.out);
    EXPECT_THAT(kernel_report_text(report), HasSubstr("void tm<32, double>(double*)"));
    for (const KernelInfo& kernel : report.kernels) EXPECT_EQ(kernel.occupancy.size(), 1u);
  }
  std::ofstream(file) << ".version 7.1\n.target sm_80\n.address_size 64\n"
                         ".visible .entry f() {\n .reg .b32 %r<2>;\n mov.u32 %r1 %r0;\n ret;\n}\n";
  try {
    (void)examine_kernels(file);
    FAIL() << "it was assembled";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("line 6; fatal"));
  }
  fs::remove(file);
}

std::string part_of(std::uint64_t kind, std::uint64_t flags, const std::string& bytes,
                    std::uint64_t unpacked) {
  std::string part;
  put(part, kind, 2);
  put(part, 0x101, 2);
  put(part, 64, 4);
  put(part, (bytes.size() + 7) / 8 * 8, 8);
  put(part, flags == 0 ? 0 : bytes.size(), 4);
  put(part, 0, 20);
  put(part, flags, 8);
  put(part, 0, 8);
  put(part, unpacked, 8);
  return part + bytes + std::string((8 - bytes.size() % 8) % 8, '\0');
}

std::string fatbin_of(const std::string& parts) {
  std::string fatbin;
  put(fatbin, 0xba55ed50, 4);
  put(fatbin, 1, 2);
  put(fatbin, 16, 2);
  put(fatbin, parts.size(), 8);
  return fatbin + parts;
}

/// As a block of LZ4 that repeats nothing.
std::string packed_lz4(const std::string& text) {
  std::string packed(1, '\xf0');
  std::size_t rest = text.size() - 15;
  for (; rest >= 255; rest -= 255) packed += '\xff';
  packed += static_cast<char>(rest);
  return packed + text;
}

std::vector<std::string> names_of(const fs::path& file, const std::string& bytes) {
  std::ofstream(file) << bytes;
  std::vector<std::string> names;
  for (const KernelInfo& kernel : examine_kernels(file).kernels)
    names.push_back(
        fmt::format("{} {} {}", kernel.name, kernel.architecture, kernel.barriers.value_or(99)));
  return names;
}

TEST(KernelDoctorTest, FatBinariesAndLibrariesAreUnpacked) {
  using ::testing::ElementsAre;
  const fs::path file = fs::temp_directory_path() / fmt::format("segfuse_fat_{}", getpid());
  const std::string first = cubin_of("k", 80, 0x300006);
  const std::string second = cubin_of("k", 90, 0x200006);
  const std::string text = kBarriers;
  const std::string fatbin =
      fatbin_of(part_of(2, 0, first, 0) + part_of(2, 0x2000, packed_lz4(second), second.size()) +
                part_of(1, 0x2000, packed_lz4(text), text.size()));
  EXPECT_THAT(names_of(file, fatbin), ElementsAre("k sm_80 3", "k sm_90 2"));
  EXPECT_THAT(examine_kernels(file).source, "fat binary with 2 cubins and 1 PTX texts");
  EXPECT_THAT(kernel_comparison_text(examine_kernels(file), examine_kernels(file)),
              HasSubstr("k for sm_90"));
  const std::string other = fatbin_of(part_of(2, 0, cubin_of("other", 75, 6), 0));
  const std::string library =
      elf_of(62, {{".text", "x"}, {".nv_fatbin", fatbin + std::string(8, '\0') + other}});
  EXPECT_THAT(names_of(file, library), ElementsAre("k sm_80 3", "k sm_90 2", "other sm_75 0"));
  EXPECT_THAT(
      names_of(file, fatbin_of(part_of(1, 0, text, 0))),
      ElementsAre("_Z2tmILi32EdEvPT0_ sm_80 1", "named sm_80 16", "none sm_80 0", "six sm_80 6"));
  // What does not unpack is left out, with a word; what goes beyond the file is refused.
  EXPECT_THAT(names_of(file, fatbin_of(part_of(2, 0, first, 0) + part_of(2, 0x2000, "abc", 100))),
              ElementsAre("k sm_80 3"));
  EXPECT_THAT(kernel_report_text(examine_kernels(file)), HasSubstr("does not unpack"));
  for (const std::size_t size : {20u, 70u, 200u, 500u})
    EXPECT_THROW(names_of(file, fatbin.substr(0, size)), DataError) << size;
  EXPECT_THROW(names_of(file, elf_of(62, {{".text", "x"}})), DataError);
  fs::remove(file);
}

TEST(KernelDoctorTest, FatBinariesOfAnyLengthAreFollowedByOthers) {
  const std::string part = part_of(2, 0, "code", 0);
  for (std::size_t more = 0; more < 9; ++more) {
    const std::string odd = fatbin_of(part + std::string(more, 'x'));
    const std::string padding((8 - odd.size() % 8) % 8, '\0');
    EXPECT_EQ(doctor::read_fatbin(odd + padding + fatbin_of(part), "x").cubins.size(), 2u) << more;
  }
}

TEST(KernelDoctorTest, BlocksOfLz4AreUnpackedOrRefused) {
  // "abcabcabcabcabX": three letters, eleven more from three back, one at the end.
  const std::string packed = std::string(
      "\x37"
      "abc\x03\0\x10X",
      8);
  EXPECT_EQ(doctor::unpack_lz4(packed, 15), "abcabcabcabcabX");
  EXPECT_EQ(doctor::unpack_lz4(packed, 14), "");
  EXPECT_EQ(doctor::unpack_lz4(packed, 16), "");
  EXPECT_EQ(doctor::unpack_lz4(std::string("\x37"
                                           "abc\x04\0\x10X",
                                           8),
                               15),
            "")
      << "before it";
  EXPECT_EQ(doctor::unpack_lz4(std::string("\x37"
                                           "abc\0\0\x10X",
                                           8),
                               15),
            "");
  for (std::size_t size = 0; size < packed.size(); ++size)
    EXPECT_EQ(doctor::unpack_lz4(packed.substr(0, size), 15), "") << size;
}

}  // namespace
}  // namespace segfuse
