// The semi-Markov CRF on the CPU: forward, loss with all gradients, Viterbi; against the plain O(T
// K C^2) recursion built by the same compiler. Prints one JSON list of rows.
//   segfuse_bench_semicrf [threads]

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "segfuse/semicrf.h"

namespace {

using namespace segfuse;
using semicrf::View;

struct Sizes {
  std::int64_t b, t, k, c;
  std::string name() const { return fmt::format("B{}_T{}_K{}_C{}", b, t, k, c); }
};

/// Random scores N(0, 1), with gold segments of random durations.
struct Problem {
  Sizes n;
  std::vector<float> emission, transition, duration, initial, final;
  std::vector<float> d_emission, d_transition, d_duration, d_initial, d_final;
  std::vector<double> loss;
  semicrf::Segmentations gold;

  Problem(const Sizes& sizes, std::uint64_t seed) : n(sizes) {
    Rng rng(seed);
    auto fill = [&](std::vector<float>& v, std::int64_t size) {
      v.resize(static_cast<std::size_t>(size));
      for (float& x : v) x = static_cast<float>(rng.normal());
    };
    fill(emission, n.b * n.t * n.c);
    fill(transition, n.c * n.c);
    fill(duration, n.k * n.c);
    fill(initial, n.c);
    fill(final, n.c);
    for (std::int64_t row = 0; row < n.b; ++row) {
      for (std::int64_t t = 0; t < n.t;) {
        const auto d = std::min<std::int64_t>(
            1 + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(n.k))), n.t - t);
        gold.append(t, d, static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(n.c))));
        t += d;
      }
      gold.end_row();
    }
    poison();
  }

  void poison() {
    d_emission.assign(emission.size(), NAN);
    d_transition.assign(transition.size(), NAN);
    d_duration.assign(duration.size(), NAN);
    d_initial.assign(initial.size(), NAN);
    d_final.assign(final.size(), NAN);
    loss.assign(static_cast<std::size_t>(n.b), NAN);
  }

  semicrf::Potentials<float> potentials() const {
    semicrf::Potentials<float> p;
    p.emission = {emission.data(), {n.b, n.t, n.c}};
    p.transition = {transition.data(), {1, n.c, n.c}};
    p.duration = {duration.data(), {n.k, n.c}};
    p.initial = initial;
    p.final = final;
    return p;
  }

  semicrf::Gradients<float> gradients() {
    semicrf::Gradients<float> g;
    g.emission = {d_emission.data(), {n.b, n.t, n.c}};
    g.transition = {d_transition.data(), {1, n.c, n.c}};
    g.duration = {d_duration.data(), {n.k, n.c}};
    g.initial = d_initial;
    g.final = d_final;
    return g;
  }

  void run(semicrf::Engine& engine, const std::string& what) {
    semicrf::LossResult result;
    result.loss = loss;
    if (what == "loss_grad") {
      engine.loss(potentials(), gold, result, gradients());
    } else if (what == "forward") {
      engine.log_partition<float>(potentials(), {View<double, 1>(loss), {}});
    } else {
      semicrf::Segmentations best;
      semicrf::ViterbiResult scores;
      scores.score = loss;
      engine.viterbi(potentials(), best, scores);
    }
  }
};

struct Timing {
  double median = 0;
  double spread = 0;  ///< (largest - smallest) / median
};

Timing time(int runs, const std::function<void()>& body) {
  std::vector<double> ms;
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    ms.push_back(1e3 *
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2];
  return {median, (ms.back() - ms.front()) / median};
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return std::isfinite(worst) ? worst : INFINITY;
}

/// The first frames of one row through the plain recursion: its time, scaled to all frames of all
/// rows, and the fast one's error on it.
struct Reference {
  double ms = 0;
  double error = 0;  ///< relative for scores, absolute for gradients, the larger
};

Reference reference(const Sizes& sizes, const std::string& what, int threads) {
  constexpr std::int64_t kFrames = 2000;
  Sizes one = sizes;
  one.b = 1;
  one.t = std::min(sizes.t, kFrames);
  Problem plain(one, 7);
  Problem fast(one, 7);
  semicrf::Engine reference_engine(1, {semicrf::Algorithm::kReference});
  semicrf::Engine engine(threads);
  Reference result;
  const double share = static_cast<double>(one.t) / static_cast<double>(sizes.b * sizes.t);
  result.ms = time(1, [&] { plain.run(reference_engine, what); }).median / share;
  fast.run(engine, what);
  result.error = std::abs(plain.loss[0] - fast.loss[0]) / std::max(1.0, std::abs(plain.loss[0]));
  if (what != "loss_grad") return result;
  for (const double error :
       {largest_difference(plain.d_emission, fast.d_emission),
        largest_difference(plain.d_transition, fast.d_transition) / static_cast<double>(one.t),
        largest_difference(plain.d_duration, fast.d_duration) / static_cast<double>(one.t)})
    result.error = std::max(result.error, error);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::vector<Sizes> sizes = {
      {16, 400, 40, 45}, {32, 1000, 30, 39}, {8, 10000, 200, 8}, {1, 100000, 100, 24}};
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Sizes& n : sizes) {
    for (const std::string what : {"forward", "loss_grad", "viterbi"}) {
      Problem problem(n, 1);
      semicrf::Engine engine(threads);
      problem.run(engine, what);  // warm-up: workspaces
      problem.poison();
      const Timing timing = time(5, [&] { problem.run(engine, what); });
      const Reference plain = reference(n, what, threads);
      rows.push_back(
          {{"name", what + "_" + n.name()},
           {"device", "cpu"},
           {"threads", threads},
           {"ms", timing.median},
           {"spread", timing.spread},
           {"us_per_step", 1e3 * timing.median * threads / static_cast<double>(n.b * n.t)},
           {"error", plain.error},
           {"reference_ms", plain.ms}});
    }
  }
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
