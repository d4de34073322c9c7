#include "base/thread_pool.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/code/float_mode.h"

namespace segfuse {
namespace {

std::size_t threads_of_process() {
  DIR* folder = ::opendir("/proc/self/task");
  std::size_t count = 0;
  while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.';
  ::closedir(folder);
  return count;
}

/// Every test runs with each of these worker counts; tear-down proves that no thread is left.
class Workers : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { before_ = threads_of_process(); }
  void TearDown() override {
    // A joined thread may stand in /proc for a moment longer.
    for (int i = 0; i < 1000 && threads_of_process() > before_; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(threads_of_process(), before_);
  }

 private:
  std::size_t before_ = 0;
};

INSTANTIATE_TEST_SUITE_P(ThreadPool, Workers, testing::Values(1, 2, 4, 8, 64));

TEST_P(Workers, EveryTaskRunsExactlyOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.size(), GetParam());
  for (const std::int64_t tasks : {0, 1, 2, 63, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
    pool.run(tasks, [&](std::int64_t task) { ++runs.at(static_cast<std::size_t>(task)); });
    for (const std::atomic<int>& count : runs) ASSERT_EQ(count, 1);
  }
}

TEST_P(Workers, RangesCoverAllOnceAndDependOnSizesOnly) {
  ThreadPool pool(GetParam());
  std::mutex mutex;
  std::set<std::pair<std::int64_t, std::int64_t>> ranges;
  pool.for_ranges(10, 4, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(ranges.emplace(begin, end).second);
  });
  EXPECT_EQ(ranges, (std::set<std::pair<std::int64_t, std::int64_t>>{{0, 4}, {4, 8}, {8, 10}}));
  pool.for_ranges(0, 4, [&](std::int64_t, std::int64_t) { FAIL() << "nothing to do"; });
  std::atomic<int> calls{0};
  pool.for_ranges(3, 0, [&](std::int64_t, std::int64_t) { ++calls; });
  EXPECT_EQ(calls, 3) << "a grain of zero counts as one";
}

TEST_P(Workers, SumsHaveTheSameBitsOnAnyNumberOfThreads) {
  const auto sum_on = [](int threads) {
    ThreadPool pool(threads);
    std::vector<double> parts(100);
    pool.for_ranges(100000, 1000, [&](std::int64_t begin, std::int64_t end) {
      double sum = 0;
      for (std::int64_t i = begin; i < end; ++i) sum += std::sin(static_cast<double>(i));
      parts[static_cast<std::size_t>(begin / 1000)] = sum;
    });
    return std::accumulate(parts.begin(), parts.end(), 0.0);
  };
  EXPECT_EQ(sum_on(GetParam()), sum_on(1));
}

TEST_P(Workers, NestedLoopsRunInPlace) {
  ThreadPool pool(GetParam());
  std::atomic<int> inner{0};
  pool.run(8, [&](std::int64_t) {
    const std::thread::id outer = std::this_thread::get_id();
    pool.run(16, [&](std::int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      ++inner;
    });
  });
  EXPECT_EQ(inner, 8 * 16);
}

TEST_P(Workers, TheFirstFailureByTaskIsThrownAfterAllTasksEnded) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ended{0};
    std::string message;
    try {
      pool.run(100, [&](std::int64_t task) {
        ++ended;
        if (task % 10 == 7) throw std::runtime_error(std::to_string(task));
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    ASSERT_EQ(message, "7");
    ASSERT_EQ(ended, 100);
  }
  std::atomic<int> after{0};
  pool.run(10, [&](std::int64_t) { ++after; });
  EXPECT_EQ(after, 10) << "the pool serves on";
}

TEST_P(Workers, FailuresOfNestedLoopsPassThrough) {
  ThreadPool pool(GetParam());
  EXPECT_THROW(pool.run(4,
                        [&](std::int64_t) {
                          pool.run(4, [](std::int64_t) { throw std::runtime_error("inner"); });
                        }),
               std::runtime_error);
}

TEST_P(Workers, ManyShortLoopsInARowLoseNoTask) {
  ThreadPool pool(GetParam());
  std::int64_t sum = 0;
  for (int round = 0; round < 2000; ++round) {
    std::atomic<std::int64_t> part{0};
    pool.run(3, [&](std::int64_t task) { part += task + 1; });
    sum += part;
  }
  EXPECT_EQ(sum, 2000 * 6);
}

TEST_P(Workers, LoopsFromSeveralThreadsRunAtTheSameTime) {
  ThreadPool pool(GetParam());
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round)
        pool.run(5, [&](std::int64_t task) { sum += task; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 3 * 100 * 10);
}

TEST_P(Workers, ManyPoolsShareThem) {
  const std::size_t before = threads_of_process();
  std::vector<std::unique_ptr<ThreadPool>> pools;
  for (int i = 0; i < 100; ++i) {
    pools.push_back(std::make_unique<ThreadPool>(GetParam()));
    std::atomic<int> sum{0};
    pools.back()->run(100, [&](std::int64_t task) { sum += static_cast<int>(task); });
    ASSERT_EQ(sum, 4950);
  }
  EXPECT_LT(threads_of_process() - before, static_cast<std::size_t>(GetParam()));
}

TEST_P(Workers, NoMoreThanThePoolHasTakePart) {
  ThreadPool many(GetParam());
  ThreadPool two(2);
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  two.run(200, [&](std::int64_t) {
    const int here = ++now;
    for (int seen = most; seen < here && !most.compare_exchange_weak(seen, here);) {
    }
    std::this_thread::yield();
    --now;
  });
  EXPECT_LE(most, 2);
}

TEST_P(Workers, AnotherSizeIsAsGoodAsAnotherPool) {
  ThreadPool pool(2);
  pool.resize(GetParam());
  EXPECT_EQ(pool.size(), GetParam());
  std::atomic<int> sum{0};
  pool.run(100, [&](std::int64_t task) { sum += static_cast<int>(task); });
  EXPECT_EQ(sum, 4950);
  pool.resize(1);
  EXPECT_EQ(pool.size(), 1);
  pool.run(100, [&](std::int64_t task) { sum += static_cast<int>(task); });
  EXPECT_EQ(sum, 2 * 4950);
}

TEST(ThreadPoolDeathTest, AForkedChildRunsItsLoopsAndEnds) {
  ThreadPool pool(3);
  std::atomic<bool> stop{false};
  std::thread busy([&] {  // so that the fork happens in the middle of loops
    while (!stop) pool.run(10, [](std::int64_t) {});
  });
  for (int i = 0; i < 20; ++i)
    EXPECT_EXIT(
        {
          std::atomic<int> sum{0};
          const auto add = [&](std::int64_t task) { sum += static_cast<int>(task); };
          pool.run(100, add);
          pool.resize(4);
          pool.run(100, add);
          {
            ThreadPool own(3);
            own.run(100, add);
          }
          std::_Exit(sum == 3 * 4950 ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
  stop = true;
  busy.join();
}

TEST(ThreadPool, ZeroTakesTheCoresOfThisProcess) {
  EXPECT_GE(available_cores(), 1);
  EXPECT_EQ(ThreadPool(0).size(), available_cores());
}

TEST(ThreadPool, TasksReallyRunAtTheSameTime) {
  ThreadPool pool(4);
  std::atomic<int> waiting{0};
  pool.run(4, [&](std::int64_t) {  // hangs unless four threads take part
    ++waiting;
    while (waiting < 4) std::this_thread::yield();
  });
  EXPECT_EQ(waiting, 4);
}

TEST(ThreadPool, TasksRoundAlikeWhoeverCalls) {
  const FloatMode mode(Denormals::kFlushed);
  ThreadPool pool(4);
  std::atomic<int> waiting{0};
  std::atomic<int> kept{0};
  pool.run(4, [&](std::int64_t) {
    ++waiting;
    while (waiting < 4) std::this_thread::yield();
    volatile float tiny = 1e-39F;
    if (tiny * 2 > 0) ++kept;
  });
  EXPECT_EQ(kept, 4);
  volatile float tiny = 1e-39F;
  EXPECT_EQ(tiny * 2, 0.0F) << "the caller's own mode was not given back";
}

// Containers bound processes and memory. (The address space stands for both here: root may have any
// number of threads.) It ended in std::terminate: threads that nobody joined.
TEST(ThreadPoolDeathTest, ThreadsThatCannotBeStartedAreDoneWithout) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own memory is beyond any limit";
#endif
  EXPECT_EXIT(
      {
        std::ifstream status("/proc/self/statm");
        std::size_t pages = 0;
        status >> pages;
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max =
            pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + (std::size_t{100} << 20);
        setrlimit(RLIMIT_AS, &limit);
        ThreadPool pool(512);
        std::atomic<int> sum{0};
        pool.run(1000, [&](std::int64_t task) { sum += static_cast<int>(task); });
        std::_Exit(pool.size() < 512 && sum == 499'500 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "the system started only [0-9]+ of 512 threads \\(Resource temp");
}

}  // namespace
}  // namespace segfuse
