// Calls allocate nothing once their workspaces have grown.

#include <gtest/gtest.h>

#include "allocation_counter.h"
#include "unit/semicrf/problems.h"

namespace segfuse::semicrf::testing {
namespace {

TEST(Allocation, NoCallAllocatesAfterTheFirst) {
  for (const bool by_duration : {false, true}) {
    for (const Draw& draw : {Draw(gaussian), Draw(extreme)}) {
      for (const int threads : {1, 2}) {
        Rng rng(1);
        auto p = random_problem<float>(6, 40, 5, 7, by_duration, draw, rng);
        p.lengths = {40, 3, 0, 17, 40, 31};
        const Segmentations gold = random_gold(p, rng);
        Engine engine(threads);
        OwnedGradients<float> gradients(p);
        const Gradients<float> views = gradients.views();
        std::vector<double> loss(p.B);
        LossResult result;
        result.loss = loss;
        Segmentations best;
        std::vector<float> label(p.B * p.T_ * p.C);
        Posteriors<float> posteriors;
        posteriors.label = {label.data(), {p.B, p.T_, p.C}};
        posteriors.entropy = loss;
        const auto call = [&] {
          engine.loss(p.potentials(), gold, result, views);
          engine.viterbi(p.potentials(), best);
          engine.posteriors(p.potentials(), posteriors);
        };
        // Which of two workers gets which rows is chance, so a workspace may still grow late.
        const int calls = threads == 1 ? 3 : 100;
        const int may_allocate = threads == 1 ? 0 : 20;
        call();
        call();
        int allocating = 0;
        for (int i = 0; i < calls; ++i) {
          const std::int64_t before = allocations;
          call();
          allocating += allocations > before ? 1 : 0;
        }
        EXPECT_LE(allocating, may_allocate) << by_duration << " " << threads;
      }
    }
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
