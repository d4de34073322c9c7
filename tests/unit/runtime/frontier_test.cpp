#include "runtime/frontier.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace segfuse::runtime {
namespace {

using Model = std::map<std::uint32_t, Tick>;

void expect_same(const Frontier& frontier, const Model& model) {
  ASSERT_EQ(frontier.size(), model.size());
  std::size_t i = 0;
  for (const auto& [stream, tick] : model) {
    EXPECT_EQ(frontier.entries()[i].stream(), stream);
    EXPECT_EQ(frontier.entries()[i].tick(), tick);
    EXPECT_EQ(frontier.tick(stream), tick);
    ++i;
  }
}

TEST(Frontier, StreamAndTickArePackedApart) {
  const Tick last = (Tick{1} << 48) - 1;
  const StreamTick use(63, last);
  EXPECT_EQ(use.stream(), 63U);
  EXPECT_EQ(use.tick(), last);
  EXPECT_FALSE(StreamTick().happened());
  EXPECT_LT(StreamTick(1, last), StreamTick(2, 1));
}

TEST(Frontier, NothingHappenedIsNoEntry) {
  Frontier frontier;
  frontier.raise({3, 0});
  EXPECT_TRUE(frontier.empty());
  EXPECT_TRUE(frontier.only(7));
}

TEST(Frontier, AgreesWithAMap) {
  std::mt19937 random(1);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int trial = 0; trial < 2000; ++trial) {
    std::array<Frontier, 2> frontiers;
    std::array<Model, 2> models;
    const std::uint32_t streams = 1 + below(8);
    for (int step = 0; step < 30; ++step) {
      const std::size_t which = below(2);
      Frontier& frontier = frontiers[which];
      Model& model = models[which];
      const std::uint32_t stream = below(streams);
      const Tick tick = below(6);
      switch (below(5)) {
        case 0:
        case 1:
          frontier.raise({stream, tick});
          if (tick > 0) model[stream] = std::max(model[stream], tick);
          break;
        case 2:
          frontier.join(frontiers[1 - which]);
          for (const auto& [s, t] : models[1 - which]) model[s] = std::max(model[s], t);
          break;
        case 3:
          frontier.drop_if([&](StreamTick use) { return use.tick() <= tick; });
          std::erase_if(model, [&](const auto& entry) { return entry.second <= tick; });
          break;
        default: {
          const Frontier copy = frontier;
          EXPECT_EQ(copy, frontier);
          frontier = copy;
        }
      }
      expect_same(frontier, model);
      bool within = true;
      for (const auto& [s, t] : models[0]) within = within && t <= frontiers[1].tick(s);
      EXPECT_EQ(frontiers[0].within(frontiers[1]), within);
      EXPECT_EQ(frontier.only(stream),
                model.empty() || (model.size() == 1 && model.begin()->first == stream));
    }
  }
}

}  // namespace
}  // namespace segfuse::runtime
