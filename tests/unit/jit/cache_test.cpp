#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "base/console/log.h"
#include "base/os/file.h"
#include "jit_test.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"
#include "segfuse/version.h"

namespace segfuse::jit {
namespace {

using Cache = JitTest;
using test::TemporaryDirectory;

TEST_F(Cache, EqualTextsAreCompiledOnceWhateverTheirNames) {
  const auto compiler = in_memory();
  const CSource source = scaling("f", 2);
  const auto first = compiler->compile(source);
  EXPECT_EQ(compiler->compile(source), first);
  EXPECT_EQ(compiler->compile({"another name", source.text}), first);
  EXPECT_NE(compiler->compile({source.name, source.text + " "}), first);
  const CpuCompilerCounters counters = compiler->counters();
  EXPECT_EQ(counters.compiled, 2);
  EXPECT_EQ(counters.hits, 2);
  EXPECT_EQ(counters.disk_hits, 0);
  EXPECT_EQ(compiler->object_path(source.text), "");
}

TEST_F(Cache, ThreadsThatAskForOneTextCompileItOnce) {
  constexpr int kThreads = 8;
  constexpr int kTexts = 4;
  const auto compiler = in_memory();
  std::vector<std::shared_ptr<const CpuCode>> codes(kThreads * kTexts);
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int text = 0; text < kTexts; ++text) {
        start.arrive_and_wait();
        codes[t * kTexts + text] = compiler->compile(scaling("f", text));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiler->counters().compiled, kTexts);
  EXPECT_EQ(compiler->counters().hits, kTexts * (kThreads - 1));
  for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(codes[i], codes[i % kTexts]);
  for (int text = 0; text < kTexts; ++text) EXPECT_EQ(scaled(*codes[text], "f"), 3 * text);
}

TEST_F(Cache, ThreadsCompileDifferentTextsAtTheSameTime) {
  constexpr int kThreads = 4;
  const auto compiler = in_memory(3);  // less than they hold
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {
        const int factor = 100 * t + i;
        const auto code = compiler->compile(scaling("f", factor));
        wrong += scaled(*code, "f") == 3.0F * static_cast<float>(factor) ? 0 : 1;
        wrong += compiler->compile(scaling("shared", 7)) != nullptr ? 0 : 1;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Cache, AllWhoWaitForAWrongTextLearnIt) {
  constexpr int kThreads = 8;
  const auto compiler = in_memory();
  std::atomic<int> errors = 0;
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      start.arrive_and_wait();
      try {
        compiler->compile({"wrong", "int f( {"});
      } catch (const CompileError&) {
        ++errors;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, kThreads);
  EXPECT_EQ(scaled(*compiler->compile(scaling("f", 2)), "f"), 6);
}

TEST_F(Cache, TheLeastRecentlyUsedGoesFirstAndHeldCodeStaysValid) {
  const auto compiler = in_memory(2);
  const auto held = compiler->compile(scaling("f", 1));
  compiler->compile(scaling("f", 2));
  compiler->compile(scaling("f", 1));  // now 2 is the older one
  compiler->compile(scaling("f", 3));
  EXPECT_EQ(compiler->counters().evicted, 1);
  EXPECT_EQ(compiler->compile(scaling("f", 1)), held);
  EXPECT_EQ(compiler->counters().compiled, 3);
  compiler->compile(scaling("f", 2));  // again
  EXPECT_EQ(compiler->counters().compiled, 4);
  compiler->compile(scaling("f", 3));
  compiler->compile(scaling("f", 4));
  EXPECT_EQ(scaled(*held, "f"), 3) << "not in the cache any more, and held";
  const auto again = compiler->compile(scaling("f", 1));
  EXPECT_NE(again, held);
  EXPECT_EQ(scaled(*again, "f"), scaled(*held, "f"));
}

TEST_F(Cache, CodeOutlivesItsCompiler) {
  auto compiler = in_memory();
  const auto code = compiler->compile(scaling("f", 6));
  compiler.reset();
  EXPECT_EQ(scaled(*code, "f"), 18);
}

TEST_F(Cache, TheNextCompilerFindsObjectsOnDisk) {
  const TemporaryDirectory folder;
  const CSource source = scaling("f", 2);
  const auto first = on_disk(folder / "new");
  first->compile(source);
  EXPECT_TRUE(std::filesystem::exists(first->object_path(source.text)));
  const auto second = on_disk(folder / "new");
  EXPECT_EQ(scaled(*second->compile(source), "f"), 6);
  EXPECT_EQ(second->counters().compiled, 0);
  EXPECT_EQ(second->counters().disk_hits, 1);
}

TEST_F(Cache, AnotherTargetIsAnotherKey) {
  const TemporaryDirectory folder;
  const CSource source = scaling("f", 2);
  std::set<std::filesystem::path> paths;
  for (const CpuTarget& target : {CpuTarget{"x86-64", "", 0}, CpuTarget{"x86-64", "+avx2", 0},
                                  CpuTarget{"x86-64-v3", "", 0}, CpuTarget{"x86-64-v3", "", 128}}) {
    const auto compiler = open_cpu_compiler(
        nullptr, {.target = target, .store = std::make_shared<const CodeStore>(folder.path())});
    compiler->compile(source);
    EXPECT_EQ(compiler->counters().compiled, 1);
    paths.insert(compiler->object_path(source.text));
  }
  EXPECT_EQ(paths.size(), 4U);
}

TEST_F(Cache, AFileSaysAllThatItDependsOn) {
  const TemporaryDirectory folder;
  const CSource source = scaling("f", 2);
  const auto compiler = on_disk(folder.path());
  compiler->compile(source);
  const std::string file = read_file(compiler->object_path(source.text));
  for (const std::string& part :
       {source.text, compiler->version(), compiler->target().text(), "segfuse " + version(),
        std::string("-O2"), std::string("-ffp-contract=off")})
    EXPECT_NE(file.find(part), std::string::npos) << part;
}

TEST_F(Cache, DamagedFilesAreIgnoredAndWrittenAnew) {
  const TemporaryDirectory folder;
  const CSource source = scaling("f", 2);
  const auto compile = [&] {
    const auto compiler = on_disk(folder.path());
    EXPECT_EQ(scaled(*compiler->compile(source), "f"), 6);
    return compiler->counters().disk_hits;
  };
  compile();
  const std::filesystem::path path = on_disk(folder.path())->object_path(source.text);
  const std::string whole = read_file(path);
  std::vector<std::string> damaged = {"", "x", whole + "x", std::string(whole.size(), '\0')};
  for (std::size_t part = 1; part < 8; ++part)
    damaged.push_back(whole.substr(0, whole.size() * part / 8));
  for (std::size_t part = 0; part < 8; ++part) {
    damaged.push_back(whole);
    damaged.back()[whole.size() * part / 8] ^= 1;
  }
  for (const std::string& bytes : damaged) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_EQ(compile(), 0) << bytes.size() << " bytes";
    EXPECT_EQ(read_file(path), whole);
    EXPECT_EQ(compile(), 1);
  }
}

TEST_F(Cache, AnEntryOfAnotherKeyUnderTheSameNameIsNotTaken) {
  const TemporaryDirectory folder;
  const auto compiler = on_disk(folder.path());
  compiler->compile(scaling("f", 2));
  std::filesystem::copy_file(compiler->object_path(scaling("f", 2).text),
                             compiler->object_path(scaling("f", 3).text));
  EXPECT_EQ(scaled(*on_disk(folder.path())->compile(scaling("f", 3)), "f"), 9);
}

TEST_F(Cache, AFolderThatCannotBeWrittenIsDoneWithout) {
  const TemporaryDirectory folder;
  folder.write("file", "in the way");
  std::vector<std::string> logged;
  const LogSink former =
      set_log_sink([&](LogLevel, std::string_view message) { logged.emplace_back(message); });
  const auto compiler = on_disk(folder / "file");
  EXPECT_EQ(scaled(*compiler->compile(scaling("f", 2)), "f"), 6);
  EXPECT_EQ(scaled(*compiler->compile(scaling("f", 3)), "f"), 9);
  set_log_sink(former);
  EXPECT_EQ(compiler->counters().compiled, 2);
  ASSERT_EQ(logged.size(), 1U) << "said once";
  EXPECT_THAT(logged[0], testing::HasSubstr("is not kept"));
}

constexpr const char* kFolderVariable = "SEGFUSE_JIT_TEST_FOLDER";

/// By itself a test of a folder; with the variable what each of several processes does.
TEST_F(Cache, TenTextsComeRightFromOneFolder) {
  const TemporaryDirectory own;
  const char* const named = std::getenv(kFolderVariable);
  for (int i = 0; i < 10; ++i) {
    const auto compiler = on_disk(named != nullptr ? std::filesystem::path(named) : own.path());
    EXPECT_EQ(scaled(*compiler->compile(scaling("f", i)), "f"), 3 * i);
  }
}

std::string outcome_of_process_on(const std::filesystem::path& folder) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  return spawn::run(
             {.arguments = {self, "--gtest_filter=Cache.TenTextsComeRightFromOneFolder"},
              .environment = spawn::Environment::patch({{kFolderVariable, folder.string()}})})
      .outcome();
}

TEST_F(Cache, ProcessesShareAFolder) {
  const TemporaryDirectory folder;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::string> outcomes(4);
    std::vector<std::thread> starters;
    for (std::string& outcome : outcomes)
      starters.emplace_back([&] { outcome = outcome_of_process_on(folder.path()); });
    for (std::thread& starter : starters) starter.join();
    EXPECT_THAT(outcomes, testing::Each("exit status 0"));
  }
  const auto compiler = on_disk(folder.path());
  for (int i = 0; i < 10; ++i) compiler->compile(scaling("f", i));
  EXPECT_EQ(compiler->counters().disk_hits, 10);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().extension(), ".o") << "nothing else is left behind";
}

}  // namespace
}  // namespace segfuse::jit
