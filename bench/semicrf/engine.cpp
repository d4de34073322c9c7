// The semi-Markov CRF on the CPU: forward, loss with all gradients, Viterbi; against the plain O(T
// K C^2) recursion built by the same compiler, and against what the machine can do at most. With
// one thread also sweeps over T, K, C and B. Prints one JSON list of rows.
//   segfuse_bench_semicrf [threads [forward, loss_grad or viterbi]]
// With a kind of call given, that one alone, without sweeps.

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
#include "ceilings.h"
#include "segfuse/semicrf.h"

namespace {

using namespace segfuse;
using semicrf::View;

struct Sizes {
  std::int64_t b, t, k, c;
  bool by_duration = false;
  std::string name() const {
    return fmt::format("B{}_T{}_K{}_C{}{}", b, t, k, c, by_duration ? "_by_duration" : "");
  }
  std::int64_t slices() const { return by_duration ? k : 1; }
  /// Multiply-adds of one pass.
  double products() const {
    const double frames = static_cast<double>(b * t);
    return frames * static_cast<double>(by_duration ? k * c * c : c * c + k * c);
  }
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
    fill(transition, n.slices() * n.c * n.c);
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
    p.transition = {transition.data(), {n.slices(), n.c, n.c}};
    p.duration = {duration.data(), {n.k, n.c}};
    p.initial = initial;
    p.final = final;
    return p;
  }

  semicrf::Gradients<float> gradients() {
    semicrf::Gradients<float> g;
    g.emission = {d_emission.data(), {n.b, n.t, n.c}};
    g.transition = {d_transition.data(), {n.slices(), n.c, n.c}};
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
  double best = 0;    ///< what others on the machine disturbed least
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
  return {median, (ms.back() - ms.front()) / median, ms.front()};
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
  constexpr std::int64_t kTerms = 20'000'000;  // a fraction of a second
  Sizes one = sizes;
  one.b = 1;
  one.t = std::min(sizes.t, std::max(2 * sizes.k, kTerms / (sizes.k * sizes.c * sizes.c)));
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

class Suite {
 public:
  explicit Suite(int threads) : threads_(threads), ceilings_(bench::measure_ceilings()) {}

  /// `sweep` names the size that a row belongs to a sweep of; empty for none.
  void measure(const Sizes& n, const std::string& what, const std::string& sweep = "") {
    Problem problem(n, 1);
    semicrf::Engine engine(threads_);
    problem.run(engine, what);  // warm-up: workspaces
    problem.poison();
    const Timing timing = time(sweep.empty() ? 9 : 5, [&] { problem.run(engine, what); });
    const Reference plain = reference(n, what, threads_);
    nlohmann::ordered_json row = {
        {"name", what + "_" + n.name()},
        {"device", "cpu"},
        {"threads", threads_},
        {"ms", timing.median},
        {"best_ms", timing.best},
        {"spread", timing.spread},
        {"us_per_step", 1e3 * timing.best * threads_ / static_cast<double>(n.b * n.t)},
        {"error", plain.error},
        {"reference_ms", plain.ms}};
    if (what != "viterbi") {  // of which there is one algorithm only
      row["speedup"] = plain.ms / timing.best;
      add_ceilings(n, what, timing.best, row);
    }
    if (!sweep.empty()) {
      row["sweep"] = sweep;
      row["at"] = sweep == "T" ? n.t : sweep == "K" ? n.k : sweep == "C" ? n.c : n.b;
    }
    rows_.push_back(row);
  }

  /// The convolution over durations alone: what more durations cost, per multiply-add.
  void measure_convolution() {
    const Sizes few{16, 1000, 120, 39}, many{16, 1000, 360, 39};
    double ms[2] = {0, 0};
    for (int i = 0; i < 2; ++i) {
      Problem problem(i == 0 ? few : many, 1);
      semicrf::Engine engine(1);
      problem.run(engine, "forward");
      ms[i] = time(9, [&] { problem.run(engine, "forward"); }).best;
    }
    const double products = many.products() - few.products();
    const double gflops = 2e-6 * products / (ms[1] - ms[0]);
    rows_.push_back({{"name", "convolution_K360_less_K120"},
                     {"device", "cpu"},
                     {"threads", 1},
                     {"ms", ms[1] - ms[0]},
                     {"error", 0},
                     {"reference_ms", 2e-6 * products / ceilings_.fma_gflops},
                     {"gflops", gflops},
                     {"fma_ceiling", ceilings_.fma_gflops},
                     {"fma_share", gflops / ceilings_.fma_gflops}});
  }

  std::string text() const { return rows_.dump(1); }

 private:
  /// Multiply-adds and exponentials (one a frame and class) beside the machine's most. Only what
  /// the formulas need is counted, not padding to whole vectors.
  void add_ceilings(const Sizes& n, const std::string& what, double ms,
                    nlohmann::ordered_json& row) const {
    const double passes = what == "forward" ? 1.0 : (n.by_duration ? 4.0 : 3.0);
    const double gflops = 2e-6 * passes * n.products() / ms / threads_;
    const double exps = 1e3 * static_cast<double>(n.b * n.t * n.c) / ms / threads_;
    row["gflops"] = gflops;
    row["fma_ceiling"] = ceilings_.fma_gflops;
    row["fma_share"] = gflops / ceilings_.fma_gflops;
    row["exp_share"] = exps / ceilings_.exps_per_second;
  }

  int threads_;
  bench::Ceilings ceilings_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string only = argc > 2 ? argv[2] : "";
  Suite suite(threads);
  for (const Sizes& n : {Sizes{16, 400, 40, 45},
                         {32, 1000, 30, 39},
                         {64, 2000, 50, 64},
                         {8, 10000, 200, 8},
                         {1, 100000, 100, 24}})
    for (const std::string what : {"forward", "loss_grad", "viterbi"})
      if (only.empty() || only == what) suite.measure(n, what);
  for (const std::string what : {"forward", "loss_grad"})
    if (only.empty() || only == what) suite.measure({8, 500, 30, 39, true}, what);
  if (threads == 1 && only.empty()) {
    suite.measure_convolution();
    const std::string what = "loss_grad";
    for (const std::int64_t t : {250, 1000, 4000, 16000}) suite.measure({8, t, 30, 39}, what, "T");
    for (const std::int64_t k : {8, 30, 120, 480}) suite.measure({8, 1000, k, 39}, what, "K");
    for (const std::int64_t c : {4, 8, 16, 39, 64, 128}) suite.measure({8, 1000, 30, c}, what, "C");
    for (const std::int64_t b : {1, 2, 8, 32}) suite.measure({b, 1000, 30, 39}, what, "B");
  }
  fmt::print("{}\n", suite.text());
  return 0;
}
