#include "runtime/memory/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <tuple>
#include <vector>

#include "segfuse/error.h"

namespace segfuse::runtime {
namespace {

constexpr std::size_t kGranule = 1024;
constexpr std::size_t kBytes = 64 * kGranule;
constexpr std::uint32_t kOwn = 1;  ///< the stream that memory is found for
constexpr std::size_t kUnit = 256;

std::byte* at(std::size_t offset) {
  return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40) + offset;
}

// An arena and what it should be, unit by unit.
class Checked {
 public:
  explicit Checked(unsigned seed) : arena_(nullptr, 0, at(0), kBytes, kGranule), random_(seed) {}

  void step() {
    switch (random_() % 8) {
      case 0: return map();
      case 1: return unmap();
      case 2:
      case 3:
      case 4: return give();
      default: return take();
    }
  }

 private:
  enum class Unit : std::uint8_t { kUnmapped, kFree, kLive };
  struct Cell {
    Unit unit = Unit::kUnmapped;
    Frontier uses;
  };

  std::size_t below(std::size_t n) { return random_() % n; }

  // What a caller knows: streams up to a tick.
  Frontier knowledge() {
    Frontier known;
    for (std::uint32_t s = 0; s < 3; ++s) known.raise({s, below(12)});
    return known;
  }
  static std::size_t unit_of(const Block* block) {
    return static_cast<std::size_t>(block->address - at(0)) / kUnit;
  }

  // The least waits and, among those, the smallest run of whole free blocks, by trying all.
  struct Best {
    int waits = 0;
    std::size_t bytes = 0;
    std::byte* address = nullptr;
    bool single = false;
    bool own = false;  ///< of a stream
  };
  template <class Waits>
  std::vector<Best> runs(std::size_t bytes, const Waits& waits) {
    std::vector<Best> found;
    for (Block* first = arena_.first(); first != nullptr; first = first->after) {
      Best run{0, 0, first->address, true, first->uses.only(kOwn)};
      Frontier uses;
      for (const Block* b = first; b != nullptr && b->state == BlockState::kFree; b = b->after) {
        run.bytes += b->bytes;
        uses.join(b->uses);
        if (run.bytes >= bytes) {
          run.waits = waits(uses);
          run.single = b == first;
          found.push_back(run);
          break;
        }
      }
    }
    return found;
  }

  void take() {
    const std::size_t bytes = kUnit * (1 + below(12));
    const Frontier known = knowledge();
    const auto uncovered = [&](const Frontier& uses) {
      int count = 0;
      for (const StreamTick use : uses.entries()) count += use.tick() > known.tick(use.stream());
      return count;
    };
    const auto covered = [&](const Frontier& uses) { return uses.within(known); };
    auto all = runs(bytes, uncovered);
    auto run = arena_.find(bytes, covered, kOwn);
    bool any = false;
    for (const Best& best : all) any = any || best.waits == 0;
    ASSERT_EQ(run.has_value(), any);
    if (run) {
      // A single block that no other stream uses is preferred, then a single one; of these, and of
      // runs, the smallest, then the lowest.
      std::erase_if(all, [](const Best& one) { return one.waits != 0; });
      const auto best = std::ranges::min_element(all, {}, [](const Best& one) {
        return std::tuple(!one.single, one.single && !one.own, one.bytes);
      });
      ASSERT_EQ(run->bytes, best->bytes);
      if (best->single) {
        ASSERT_EQ(run->first->bytes, run->bytes);
        ASSERT_EQ(run->first->uses.only(kOwn), best->own);
      }
    } else {
      run = arena_.find_waiting(bytes, uncovered);
      ASSERT_EQ(run.has_value(), !all.empty());
      if (!run) return;
      const auto least = std::ranges::min_element(all, {}, [](const Best& best) {
        return std::tuple(best.waits, best.bytes, best.address);
      });
      ASSERT_EQ(run->waits, least->waits);
      ASSERT_EQ(run->bytes, least->bytes);
      ASSERT_EQ(run->first->address, least->address);
    }
    Block* const block = arena_.take(*run, bytes);
    ASSERT_EQ(block->bytes, bytes);
    Frontier uses;
    for (std::size_t u = unit_of(block); u < unit_of(block) + bytes / kUnit; ++u) {
      ASSERT_EQ(cells_[u].unit, Unit::kFree);
      uses.join(cells_[u].uses);
      cells_[u].unit = Unit::kLive;
    }
    ASSERT_TRUE(uses.within(block->uses)) << "uses of the memory were lost";
    live_.push_back(block);
    check();
  }

  void give() {
    if (live_.empty()) return;
    const std::size_t which = below(live_.size());
    Block* const block = live_[which];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(which));
    for (std::size_t i = below(3); i > 0; --i)
      block->uses.raise({static_cast<std::uint32_t>(below(3)), 1 + below(12)});
    for (std::size_t u = unit_of(block); u < unit_of(block) + block->bytes / kUnit; ++u)
      cells_[u] = {Unit::kFree, block->uses};
    arena_.give(block);
    check();
  }

  void map() {
    const std::size_t bytes = kUnit * (1 + below(12));
    const Frontier known = knowledge();
    const auto covered = [&](const Frontier& uses) { return uses.within(known); };
    if (arena_.find(bytes, covered, kOwn)) return;
    const auto growth = arena_.find_growth(bytes, covered);
    if (!growth) return;
    Block* const block = arena_.begin_map(*growth);
    ASSERT_EQ(unit_of(block) * kUnit % kGranule, 0U);
    if (below(4) == 0) {
      arena_.finish_unmap(block);  // the device refused
    } else {
      for (std::size_t u = unit_of(block); u < unit_of(block) + block->bytes / kUnit; ++u) {
        ASSERT_EQ(cells_[u].unit, Unit::kUnmapped);
        cells_[u] = {Unit::kFree, {}};
      }
      arena_.finish_map(block);
      ASSERT_TRUE(arena_.find(bytes, covered, kOwn)) << "what was mapped does not help";
    }
    check();
  }

  void unmap() {
    const Frontier known = knowledge();
    const std::size_t wanted = kGranule * (1 + below(4));
    std::size_t idle = 0;
    for (std::size_t g = 0; g < kBytes / kGranule; ++g) {
      bool all = true;
      for (std::size_t u = g * kGranule / kUnit; u < (g + 1) * kGranule / kUnit; ++u)
        all = all && cells_[u].unit == Unit::kFree;
      idle += all ? kGranule : 0;
    }
    const auto blocks =
        arena_.begin_unmap(wanted, [&](const Frontier& uses) { return uses.within(known); });
    std::size_t released = 0;
    for (Block* const block : blocks) {
      released += block->bytes;
      for (std::size_t u = unit_of(block); u < unit_of(block) + block->bytes / kUnit; ++u) {
        ASSERT_EQ(cells_[u].unit, Unit::kFree);
        cells_[u] = {};
      }
      arena_.finish_unmap(block);
    }
    ASSERT_LE(released, wanted);
    ASSERT_LE(released, idle);
    for (Cell& cell : cells_)
      if (cell.uses.within(known)) cell.uses.clear();  // over for good
    check();
  }

  void check() {
    arena_.verify();
    for (const Block* block = arena_.first(); block != nullptr; block = block->after) {
      const Unit unit = block->state == BlockState::kUnmapped ? Unit::kUnmapped
                        : block->state == BlockState::kFree   ? Unit::kFree
                                                              : Unit::kLive;
      for (std::size_t u = unit_of(block); u < unit_of(block) + block->bytes / kUnit; ++u)
        ASSERT_EQ(cells_[u].unit, unit) << "at unit " << u;
    }
  }

  Arena arena_;
  std::mt19937 random_;
  std::vector<Cell> cells_ = std::vector<Cell>(kBytes / kUnit);
  std::vector<Block*> live_;
};

TEST(Arena, AgreesWithAMapOfItsUnits) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Checked checked(seed);
    for (int step = 0; step < 400; ++step) {
      checked.step();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Arena, FreshMemoryIsNotMadeToWait) {
  Arena arena(nullptr, 0, at(0), kBytes, kGranule);
  const auto nothing = [](const Frontier& uses) { return uses.empty(); };
  const auto grow = [&](std::size_t bytes) {
    const auto growth = arena.find_growth(bytes, nothing);
    ASSERT_TRUE(growth);
    arena.finish_map(arena.begin_map(*growth));
  };
  grow(kGranule);
  Block* const block = arena.take(*arena.find(kGranule, nothing, kOwn), kGranule);
  block->uses.raise({5, 9});
  arena.give(block);
  EXPECT_FALSE(arena.find(kUnit, nothing, kOwn));
  grow(kUnit);
  EXPECT_TRUE(arena.find(kUnit, nothing, kOwn));
  arena.verify();
}

/// A batch that a second stream has read lies beside memory that only the first one used.
TEST(Arena, AStreamFindsItsOwnMemoryBesideWhatOthersUseToo) {
  for (const bool reversed : {false, true}) {
    Arena arena(nullptr, 0, at(0), kBytes, kGranule);
    const auto all = [](const Frontier&) { return true; };
    arena.finish_map(arena.begin_map(*arena.find_growth(2 * kUnit, all)));
    std::array<Block*, 2> blocks{};
    for (Block*& block : blocks) block = arena.take(*arena.find(kUnit, all, kOwn), kUnit);
    Block* const own = blocks[reversed ? 1 : 0];
    Block* const shared = blocks[reversed ? 0 : 1];
    const std::byte* const address = own->address;
    own->uses.raise({kOwn, 4});
    shared->uses.raise({kOwn, 9});
    shared->uses.raise({0, 4});
    arena.give(own);
    arena.give(shared);
    const auto covered = [](const Frontier& uses) { return uses.only(kOwn) && !uses.empty(); };
    const auto run = arena.find(kUnit, covered, kOwn);
    ASSERT_TRUE(run);
    EXPECT_EQ(run->first->address, address);
  }
}

/// Memory of another stream that fits better is left to that one.
TEST(Arena, AStreamTakesItsOwnMemoryFirst) {
  Arena arena(nullptr, 0, at(0), kBytes, kGranule);
  const auto all = [](const Frontier&) { return true; };
  arena.finish_map(arena.begin_map(*arena.find_growth(4 * kUnit, all)));
  Block* const other = arena.take(*arena.find(kUnit, all, kOwn), kUnit);
  Block* const own = arena.take(*arena.find(2 * kUnit, all, kOwn), 2 * kUnit);
  std::vector<Block*> rest;
  while (const auto run = arena.find(kUnit, all, kOwn)) rest.push_back(arena.take(*run, kUnit));
  other->uses.raise({0, 4});
  own->uses.raise({kOwn, 4});
  arena.give(other);
  arena.give(own);
  Block* const first = arena.take(*arena.find(kUnit, all, kOwn), kUnit);
  EXPECT_EQ(first, own);
  EXPECT_TRUE(arena.take(*arena.find(kUnit, all, 0), kUnit)->uses.only(0));
}

TEST(Arena, PiecesWithDifferentUsesAreHandedOutTogether) {
  Arena arena(nullptr, 0, at(0), kBytes, kGranule);
  const auto all = [](const Frontier&) { return true; };
  arena.finish_map(arena.begin_map(*arena.find_growth(2 * kUnit, all)));
  Block* const a = arena.take(*arena.find(kUnit, all, kOwn), kUnit);
  Block* const b = arena.take(*arena.find(kUnit, all, kOwn), kUnit);
  a->uses.raise({0, 4});
  b->uses.raise({1, 4});
  arena.give(a);
  arena.give(b);
  const auto uncovered = [](const Frontier& uses) { return static_cast<int>(uses.size()); };
  EXPECT_EQ(arena.find_waiting(kUnit, uncovered)->waits, 0);  // the rest of the granule
  EXPECT_EQ(arena.find_waiting(3 * kUnit, uncovered)->waits, 1);
  const auto both = arena.find_waiting(4 * kUnit, uncovered);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->waits, 2);
  const Block* const joined = arena.take(*both, 4 * kUnit);
  EXPECT_EQ(joined->uses.tick(0), 4U);
  EXPECT_EQ(joined->uses.tick(1), 4U);
}

}  // namespace
}  // namespace segfuse::runtime
