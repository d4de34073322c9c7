// The map of registered ranges against one count for each byte.

#include "comm/registered/range_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

using Range = std::pair<std::uint64_t, std::uint64_t>;

/// One counter for each byte.
class Oracle {
 public:
  explicit Oracle(std::size_t bytes) : counts_(bytes) {}
  void add(Range r, std::uint32_t by) {
    for (std::uint64_t i = r.first; i < r.second; ++i) counts_[i] += by;
  }
  std::vector<CountedRange> ranges() const {
    std::vector<CountedRange> out;
    for (std::uint64_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) continue;
      if (!out.empty() && out.back().end == i && out.back().count == counts_[i])
        ++out.back().end;
      else
        out.push_back({i, i + 1, counts_[i]});
    }
    return out;
  }
  bool touches(Range r, std::uint32_t count) const {
    return std::any_of(counts_.begin() + static_cast<std::ptrdiff_t>(r.first),
                       counts_.begin() + static_cast<std::ptrdiff_t>(r.second),
                       [=](std::uint32_t c) { return c >= count; });
  }
  std::uint32_t at(std::uint64_t i) const { return counts_[i]; }

 private:
  std::vector<std::uint32_t> counts_;
};

// T4, first half.
TEST(RangeMap, ThreeOverlappingRangesGoInAnyOrder) {
  const std::array<Range, 3> all = {Range{0, 60}, {40, 100}, {50, 55}};
  std::array<int, 3> order = {0, 1, 2};
  do {
    RangeMap map;
    Oracle oracle(100);
    for (const Range& r : all) map.add(r.first, r.second), oracle.add(r, 1);
    ASSERT_EQ(map.ranges(), oracle.ranges());
    for (const int i : order) {
      const Range r = all[static_cast<std::size_t>(i)];
      map.remove(r.first, r.second);
      oracle.add(r, static_cast<std::uint32_t>(-1));
      ASSERT_EQ(map.ranges(), oracle.ranges());
    }
    EXPECT_TRUE(map.empty());
  } while (std::next_permutation(order.begin(), order.end()));
}

// T4, second half.
TEST(RangeMap, AgreesWithCountsOfBytesOverRandomOperations) {
  constexpr std::size_t kBytes = 96;
  std::mt19937_64 random(5);
  RangeMap map;
  Oracle oracle(kBytes);
  std::vector<Range> live;
  const auto any_range = [&] {
    const std::uint64_t begin = random() % kBytes;
    return Range{begin, begin + 1 + random() % (kBytes - begin)};
  };
  for (int step = 0; step < 100'000; ++step) {
    if (live.empty() || (live.size() < 24 && random() % 2 == 0)) {
      live.push_back(any_range());
      map.add(live.back().first, live.back().second);
      oracle.add(live.back(), 1);
    } else {
      std::swap(live[random() % live.size()], live.back());
      map.remove(live.back().first, live.back().second);
      oracle.add(live.back(), static_cast<std::uint32_t>(-1));
      live.pop_back();
    }
    ASSERT_EQ(map.ranges(), oracle.ranges()) << "step " << step;
    const Range asked = any_range();
    for (const std::uint32_t count : {1U, 2U})
      ASSERT_EQ(map.touches(asked.first, asked.second, count), oracle.touches(asked, count));
    ASSERT_EQ(map.count_at(asked.first), oracle.at(asked.first));
    ASSERT_EQ(map.empty(), live.empty());
  }
}

TEST(RangeMap, WhatWasNotAddedCannotBeRemoved) {
  RangeMap map;
  map.add(10, 20);
  map.add(20, 30);
  const auto before = map.ranges();
  for (const Range& r : {Range{0, 5}, {10, 19}, {11, 20}, {20, 10}, {15, 15}})
    EXPECT_THROW(map.remove(r.first, r.second), InternalError);
  EXPECT_THROW(map.add(7, 7), InternalError);
  EXPECT_EQ(map.ranges(), before);
  map.remove(10, 20);
  EXPECT_THROW(map.remove(10, 20), InternalError);
  EXPECT_EQ(map.ranges(), (std::vector<CountedRange>{{20, 30, 1}}));
}

/// Fails at the k-th allocation from now.
class Failing : public std::pmr::memory_resource {
 public:
  int left = 1 << 30;

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (left-- <= 0) throw std::bad_alloc();
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

TEST(RangeMap, WhenMemoryRunsOutNothingHasChanged) {
  std::mt19937_64 random(6);
  Failing memory;
  RangeMap map(&memory);
  std::vector<Range> live;
  int failed = 0;
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t begin = random() % 64;
    const Range r{begin, begin + 1 + random() % 32};
    const auto before = map.ranges();
    memory.left = static_cast<int>(random() % 3);
    try {
      map.add(r.first, r.second);
      live.push_back(r);
    } catch (const std::bad_alloc&) {
      ++failed;
      ASSERT_EQ(map.ranges(), before);
    }
    memory.left = 0;  // removing asks for none
    if (live.size() > 8) {
      std::swap(live[random() % live.size()], live.back());
      map.remove(live.back().first, live.back().second);
      live.pop_back();
    }
  }
  EXPECT_GT(failed, 1000);
  for (const Range& r : live) map.remove(r.first, r.second);
  EXPECT_TRUE(map.empty()) << "an edge was left behind";
}

}  // namespace
}  // namespace segfuse::comm
