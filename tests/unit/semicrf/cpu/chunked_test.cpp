// Time-parallel passes over long rows: equal to the sequential ones to rounding, also where models
// mix slowly or never, and the same bits for any number of threads.

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "semicrf/cpu/sum/chunked.h"
#include "unit/semicrf/outcome.h"
#include "unit/semicrf/problems.h"

namespace segfuse::semicrf::testing {
namespace {

/// One row of a problem through the linear-domain passes, in one piece or in parts.
struct LongRow {
  Model model;
  ScaledTables tables;
  RowBuffers buffers;
  ScaledState state;
  ChunkedState chunks;
  RowExpectations out;
  ScaledRow row;

  explicit LongRow(const Problem<float>& p)
      : row{.model = &model,
            .tables = &tables,
            .row = {},
            .state = &state,
            .out = &out,
            .part = {.end = p.T_, .total = p.T_},
            .keep_backward = true} {
    const Potentials<float> potentials = p.potentials();
    const Dims dims = check_potentials(potentials);
    load_model(potentials, dims, model);
    make_scaled_tables(model, tables);
    row.row = load_row(potentials, dims, 0, buffers);
  }
  bool in_one_piece() {
    ScaledRow* const one = &row;
    scaled_forward(&one, 1);
    scaled_expectations(&one, 1);
    return row.ok;
  }
  bool in_parts(int threads) {
    ThreadPool pool(threads);
    return is_chunked(model.dims, row.row.length) && chunked_forward(row, chunks, pool) &&
           chunked_expectations(row, chunks, pool);
  }
};

double largest_difference(const AlignedDoubles& a, const AlignedDoubles& b) {
  double worst = 0.0;
  EXPECT_EQ(a.size(), b.size());
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    worst = difference <= worst ? worst : difference;  // a NaN stays
  }
  return worst;
}

void expect_parts_equal_one_piece(const Problem<float>& p) {
  LongRow whole(p), parts(p);
  ASSERT_TRUE(whole.in_one_piece());
  ASSERT_TRUE(parts.in_parts(2));
  EXPECT_GT(parts.chunks.count, 1);
  const auto frames = static_cast<double>(p.T_);
  EXPECT_LT(relative(whole.row.log_partition, parts.row.log_partition), 1e-13);
  EXPECT_LT(largest_difference(whole.out.label, parts.out.label), 1e-9);
  EXPECT_LT(largest_difference(whole.out.start, parts.out.start), 1e-9);
  EXPECT_LT(largest_difference(whole.out.end, parts.out.end), 1e-9);
  EXPECT_LT(largest_difference(whole.out.duration, parts.out.duration), 1e-12 * frames);
  EXPECT_LT(largest_difference(whole.out.transition, parts.out.transition), 1e-12 * frames);
  for (std::int64_t at = 1; at < p.T_ - p.K; at += 97) {
    const std::int64_t k = 1 + at % p.K, c = at % p.C;
    const double a = scaled_segment(whole.row, at, k, c);
    const double b = chunked_segment(parts.row, parts.chunks, at, k, c);
    EXPECT_TRUE(a == b || std::abs(a - b) < 1e-8) << at << ": " << a << " " << b;
  }
}

TEST(Chunked, PartsEqualOnePiece) {
  for (const double scale : {0.3, 1.0, 5.0}) {
    SCOPED_TRACE(scale);
    Rng rng(1);
    auto p = random_problem<float>(1, 13001, 30, 7, false, gaussian, rng);
    for (float& v : p.emission) v = static_cast<float>(scale * rng.normal() - 2.0);
    expect_parts_equal_one_piece(p);
    p.with_start = p.with_end = p.with_initial = p.with_final = false;
    for (float& v : p.emission) v = rng.uniform() < 0.1 ? static_cast<float>(-kInf) : v;
    expect_parts_equal_one_piece(p);
  }
}

TEST(Chunked, SlowlyMixingModels) {
  // Sticky transitions between weak labels: the start is forgotten after many windows only.
  Rng rng(2);
  auto p =
      random_problem<float>(1, 14000, 100, 6, false, [](Rng& r) { return 0.3 * r.normal(); }, rng);
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t j = 0; j < 6; ++j) p.transition[i * 6 + j] -= i == j ? 0.0F : 10.0F;
  expect_parts_equal_one_piece(p);
  // Between 50 and 200 frames.
  auto q = random_problem<float>(1, 20000, 200, 4, false, gaussian, rng);
  for (std::int64_t k = 0; k < 49; ++k)
    for (std::int64_t c = 0; c < 4; ++c) q.duration[k * 4 + c] = static_cast<float>(-kInf);
  expect_parts_equal_one_piece(q);
}

/// Every segment has 7 frames: where a row begins decides all boundaries.
Problem<float> periodic(std::int64_t frames, Rng& rng) {
  auto p = random_problem<float>(1, frames, 7, 3, false, gaussian, rng);
  for (std::int64_t k = 0; k < 6; ++k)
    for (std::int64_t c = 0; c < 3; ++c) p.duration[k * 3 + c] = static_cast<float>(-kInf);
  return p;
}

TEST(Chunked, ModelsThatNeverForgetAreDoneAgainOrInOnePiece) {
  Rng rng(3);
  expect_parts_equal_one_piece(periodic(7 * 2000, rng));  // few parts: one after the other
  const auto p = periodic(7 * 6000, rng);
  LongRow whole(p), parts(p);
  ASSERT_TRUE(whole.in_one_piece());
  EXPECT_FALSE(parts.in_parts(1));
  // And the engine's answer is right.
  std::vector<double> log_partition(1);
  Engine(2).log_partition<float>(p.potentials(), {log_partition, {}});
  EXPECT_LT(relative(log_partition[0], whole.row.log_partition), 1e-14);
}

TEST(Chunked, SameBitsForAnyNumberOfThreadsAndBesideOtherRows) {
  Rng rng(4);
  auto p = random_problem<float>(3, 9000, 20, 9, false, gaussian, rng);
  p.lengths = {9000, 100, 8500};
  const Segmentations gold = random_gold(p, rng);
  std::vector<std::vector<float>> found;
  std::vector<std::vector<double>> losses;
  for (const int threads : {1, 2, 7}) {
    Engine engine(threads);
    OwnedGradients<float> gradients(p);
    std::vector<double> loss(3);
    LossResult result;
    result.loss = loss;
    engine.loss(p.potentials(), gold, result, gradients.views());
    found.push_back(gradients.flat());
    losses.push_back(loss);
  }
  for (const auto& other : found) EXPECT_EQ(other, found[0]);
  for (const auto& other : losses) EXPECT_EQ(other, losses[0]);
  auto one = p;
  one.B = 1, one.lengths.clear();
  std::vector<double> alone(1);
  LossResult result;
  result.loss = alone;
  Engine(3).loss(one.potentials(), packed({unpacked(gold, 0)}), result);
  EXPECT_EQ(alone[0], losses[0][0]);
}

TEST(Chunked, ARowWithoutAPathIsNoticed) {
  Rng rng(5);
  auto p = random_problem<float>(1, 9000, 10, 3, false, gaussian, rng);
  for (std::int64_t c = 0; c < 3; ++c) p.emission[6000 * 3 + c] = static_cast<float>(-kInf);
  std::vector<double> log_partition(1);
  std::vector<RowStatus> status(1);
  OwnedGradients<float> gradients(p);
  Engine(2).log_partition(p.potentials(), {log_partition, status}, gradients.views());
  EXPECT_EQ(log_partition[0], -kInf);
  EXPECT_EQ(status[0], RowStatus::kNoPath);
  for (const float g : gradients.flat()) ASSERT_EQ(g, 0.0F);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
