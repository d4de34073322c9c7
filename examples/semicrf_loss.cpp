// The semi-Markov CRF by itself, on plain arrays: the loss of a segmentation, its gradient, and the
// best segmentation.
#include <cmath>
#include <cstdio>
#include <vector>

#include "segfuse/error.h"
#include "segfuse/semicrf.h"

int main() try {
  namespace crf = segfuse::semicrf;
  constexpr std::int64_t kFrames = 8;
  constexpr std::int64_t kLabels = 2;
  constexpr std::int64_t kLongest = 4;

  // Frames 0-2 look like label 0, frames 3-7 like label 1; a label does not follow itself.
  std::vector<float> emission;
  for (int t = 0; t < kFrames; ++t)
    emission.insert(emission.end(), {t < 3 ? 1.0F : -1.0F, t < 3 ? -1.0F : 1.0F});
  const std::vector<float> transition = {-INFINITY, 0, 0, -INFINITY};
  const std::vector<float> duration(kLongest * kLabels, 0);

  crf::Potentials<float> potentials;
  potentials.emission = {emission.data(), {1, kFrames, kLabels}};
  potentials.transition = {transition.data(), {1, kLabels, kLabels}};
  potentials.duration = {duration.data(), {kLongest, kLabels}};

  crf::Segmentations gold;
  gold.append(0, 3, 0);
  gold.append(3, 4, 1);
  gold.append(7, 1, 0);
  gold.end_row();

  crf::Engine engine;
  std::vector<double> loss(1);
  std::vector<float> gradient(emission.size());
  crf::LossResult result;
  result.loss = loss;
  crf::Gradients<float> gradients;
  gradients.emission = {gradient.data(), {1, kFrames, kLabels}};
  engine.loss(potentials, gold, result, gradients);
  std::printf("-log p(gold) = %.4f, its derivative by the last frame's score for label 1: %.4f\n",
              loss[0], static_cast<double>(gradient.back()));

  crf::Segmentations best;
  engine.viterbi(potentials, best);
  for (std::size_t i = 0; i < best.start.size(); ++i)
    std::printf("frames %d to %d: label %d\n", best.start[i], best.start[i] + best.duration[i] - 1,
                best.label[i]);
  return 0;
} catch (const segfuse::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.exit_code());
}
