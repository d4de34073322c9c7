// The tools over the semi-Markov CRF, beside the engine's own call that is nearest: constraints,
// samples, the n best, least risk, online decoding. Prints one JSON list of rows.
//   segfuse_bench_semicrf_tools [threads]

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
#include "segfuse/semicrf_tools.h"

namespace {

using namespace segfuse;
using namespace segfuse::semicrf;

/// Random scores N(0, 1) of B rows, T frames, K durations and C classes.
struct Problem {
  std::int64_t b, t, k, c;
  std::vector<float> emission, transition, duration;

  Problem(std::int64_t rows, std::int64_t frames, std::int64_t durations, std::int64_t classes)
      : b(rows), t(frames), k(durations), c(classes) {
    Rng rng(1);
    auto fill = [&](std::vector<float>& v, std::int64_t size) {
      v.resize(static_cast<std::size_t>(size));
      for (float& x : v) x = static_cast<float>(rng.normal());
    };
    fill(emission, b * t * c);
    fill(transition, c * c);
    fill(duration, k * c);
  }
  Potentials<float> potentials() const {
    Potentials<float> p;
    p.emission = {emission.data(), {b, t, c}};
    p.transition = {transition.data(), {1, c, c}};
    p.duration = {duration.data(), {k, c}};
    return p;
  }
};

/// Outputs of a call; the first is compared with the engine's.
struct Outputs {
  std::vector<double> value;
  std::vector<float> emission, transition, duration, boundary;
  Segmentations path;
  SegmentationLists lists;

  explicit Outputs(const Problem& p)
      : value(static_cast<std::size_t>(p.b)),
        emission(p.emission.size()),
        transition(p.transition.size()),
        duration(p.duration.size()),
        boundary(static_cast<std::size_t>(p.b * p.t)) {}
  Gradients<float> gradients(const Problem& p) {
    Gradients<float> g;
    g.emission = {emission.data(), {p.b, p.t, p.c}};
    g.transition = {transition.data(), {1, p.c, p.c}};
    g.duration = {duration.data(), {p.k, p.c}};
    return g;
  }
};

using Call = std::function<void(Outputs&)>;

/// The shortest of some runs: others may be using the machine.
double shortest_ms(const Problem& p, const Call& call) {
  Outputs out(p);
  call(out);  // warm-up: workspaces
  std::vector<double> ms;
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call(out);
    ms.push_back(1e3 *
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return *std::min_element(ms.begin(), ms.end());
}

/// Largest relative difference of the two calls' values.
double error_of(const Problem& p, const Call& call, const Call& reference) {
  Outputs a(p);
  Outputs b(p);
  call(a);
  reference(b);
  double worst = 0;
  for (std::size_t i = 0; i < a.value.size(); ++i)
    worst =
        std::max(worst, std::abs(a.value[i] - b.value[i]) / std::max(1.0, std::abs(b.value[i])));
  return worst;
}

struct Row {
  std::string name;
  Call call;
  Call reference;
  bool same_value;  ///< whether both calls compute one number a row
};

std::vector<Row> rows_of(const Problem& p, Engine& engine, Inference& tools) {
  const auto potentials = [&p] { return p.potentials(); };
  // A tail of nothing: the same model, in the log domain.
  static const std::vector<double> none(256, -INFINITY);
  const Scope scope{{}, View<const double, 1>(none.data(), {p.c})};
  const Call forward = [=, &engine](Outputs& out) {
    engine.log_partition<float>(potentials(), {View<double, 1>(out.value), {}});
  };
  const Call gradients = [=, &p, &engine](Outputs& out) {
    engine.log_partition<float>(potentials(), {View<double, 1>(out.value), {}}, out.gradients(p));
  };
  const Call viterbi = [=, &engine](Outputs& out) {
    engine.viterbi(potentials(), out.path, {View<double, 1>(out.value), {}});
  };
  const auto k_best = [=, &p, &tools](std::int64_t n) {
    return [=, &p, &tools](Outputs& out) {
      tools.k_best(potentials(), {}, n, out.lists);
      for (std::int64_t b = 0; b < p.b; ++b)
        out.value[static_cast<std::size_t>(b)] = out.lists.score[static_cast<std::size_t>(b * n)];
    };
  };
  return {
      {"forward",
       [=, &tools](Outputs& out) {
         tools.log_partition<float>(potentials(), scope, {View<double, 1>(out.value), {}});
       },
       forward, true},
      {"gradients",
       [=, &p, &tools](Outputs& out) {
         tools.log_partition<float>(potentials(), scope, {View<double, 1>(out.value), {}},
                                    out.gradients(p));
       },
       gradients, true},
      {"1_best", k_best(1), viterbi, true},
      {"100_best", k_best(100), viterbi, true},
      {"100_samples",
       [=, &tools](Outputs& out) { tools.sample(potentials(), {}, 100, 1, out.lists); }, forward,
       false},
      {"boundary_within_2",
       [=, &p, &tools](Outputs& out) {
         tools.boundary_within(potentials(), {}, 2,
                               View<float, 2>(out.boundary.data(), {p.b, p.t}));
       },
       gradients, false},
      {"minimum_risk_2",
       [=, &tools](Outputs& out) {
         tools.minimum_risk(potentials(), {}, 2, out.path, View<double, 1>(out.value));
       },
       gradients, false},
      {"online",
       [=, &p](Outputs& out) {
         OnlineDecoder decoder(potentials());
         for (std::int64_t b = 0; b < p.b; ++b) {
           for (std::int64_t t = 0; t < p.t; ++t)
             decoder.push(View<const float, 2>(p.emission.data() + (b * p.t + t) * p.c, {1, p.c}),
                          out.path);
           out.value[static_cast<std::size_t>(b)] = decoder.best_score();
           decoder.finish(out.path);
         }
       },
       viterbi, true},
  };
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Problem& p : {Problem(8, 1000, 30, 39), Problem(1, 20000, 100, 24)}) {
    Engine engine(threads);
    Inference tools(threads);
    for (const Row& row : rows_of(p, engine, tools)) {
      nlohmann::ordered_json cells = {
          {"name", fmt::format("{}_B{}_T{}_K{}_C{}", row.name, p.b, p.t, p.k, p.c)},
          {"device", "cpu"},
          {"threads", threads},
          {"ms", shortest_ms(p, row.call)}};
      if (row.same_value) cells["error"] = error_of(p, row.call, row.reference);
      cells["reference_ms"] = shortest_ms(p, row.reference);
      rows.push_back(cells);
    }
  }
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
