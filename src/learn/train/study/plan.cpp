#include "learn/train/study/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

void check_options(const StudyOptions& options) {
  if (options.shares.empty() && options.folds == 0 && options.seeds == 1 && options.search.empty())
    throw UsageError(
        "the runs of a study must differ in something; pass --folds, --seeds or --search");
  if (options.folds != 0 && options.folds < 2)
    throw UsageError(fmt::format("--folds is {}; expected 2 or more", options.folds));
  if (options.seeds < 1)
    throw UsageError(fmt::format("--seeds is {}; expected 1 or more", options.seeds));
  if (!options.search.empty() && (options.folds != 0 || !options.shares.empty()))
    throw UsageError(
        "a search can be combined with --seeds only; search first, then study the chosen setting");
  const auto sets_seed = [](const std::string& text) { return text.starts_with("training.seed="); };
  if (options.seeds > 1 && std::ranges::any_of(options.search, sets_seed))
    throw UsageError("the search sets training.seed, and so does --seeds; leave one of them out");
  double last = 0;
  for (const double share : options.shares) {
    if (!(share > last && share <= 1))
      throw UsageError(fmt::format(
          "--shares has {} after {}; expected rising numbers above 0, at most 1", share, last));
    last = share;
  }
}

/// With as many steps as the whole training set has: more epochs, scored as often as before.
StudyPoint point_of_share(double share, const TrainingPlan& plan) {
  StudyPoint point{fmt::format("share-{:g}", share), share, {}};
  if (share == 1) return point;
  const auto longer = [&](std::int64_t epochs) {
    return std::llround(std::ceil(static_cast<double>(epochs) / share));
  };
  point.overrides = {fmt::format("data.train_share={}", share),
                     fmt::format("training.epochs={}", longer(plan.epochs)),
                     fmt::format("training.select_every={}", longer(plan.select_every))};
  if (plan.patience > 0)
    point.overrides.push_back(fmt::format("training.patience={}", longer(plan.patience)));
  return point;
}

/// The values of "key=a,b,c"; a comma within brackets or quotes is part of one.
std::vector<std::string> values_of(std::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0)
      quote = c == quote ? 0 : quote;
    else if (c == '"' || c == '\'')
      quote = c;
    else
      depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c == ',' && depth == 0 && quote == 0)
      values.emplace_back();
    else
      values.back() += c;
  }
  return values;
}

/// Each value of each key with each of the others, the last key's change first.
std::vector<StudyPoint> points_of_search(const std::vector<std::string>& search) {
  std::vector<StudyPoint> points(1);
  for (const std::string& one : search) {
    const std::size_t equals = one.find('=');
    const std::vector<std::string> values =
        equals == one.npos ? std::vector<std::string>() : values_of(one.substr(equals + 1));
    if (values.size() < 2 || std::ranges::find(values, "") != values.end())
      throw UsageError(fmt::format(
          "--search '{}' names no values to choose from; expected section.key=a,b,c", one));
    std::vector<StudyPoint> next;
    for (const StudyPoint& point : points)
      for (const std::string& value : values) {
        next.push_back(point);
        next.back().overrides.push_back(one.substr(0, equals) + "=" + std::string(trim(value)));
      }
    points = std::move(next);
  }
  for (std::size_t i = 0; i < points.size(); ++i) points[i].name = fmt::format("setting-{}", i + 1);
  return points;
}

std::vector<StudyPoint> points_of(const StudyOptions& options, const TrainConfig& config) {
  if (!options.search.empty()) return points_of_search(options.search);
  if (options.shares.empty()) return {StudyPoint()};
  std::vector<StudyPoint> points;
  for (const double share : options.shares)
    points.push_back(point_of_share(share, config.training));
  return points;
}

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "/" + name;
}

}  // namespace

StudyPlan plan_study(const StudyOptions& options, const TrainConfig& config) {
  check_options(options);
  StudyPlan plan{points_of(options, config), {}};
  for (std::size_t i = 0; i < plan.points.size(); ++i)
    for (std::int64_t s = 0; s < options.seeds; ++s)
      for (std::int64_t fold = options.folds == 0 ? 0 : 1; fold <= options.folds; ++fold) {
        StudyRun run{plan.points[i].name, i, config.training.seed, fold, plan.points[i].overrides};
        run.seed += static_cast<std::uint64_t>(s);
        if (options.seeds > 1) {
          run.name = joined(run.name, fmt::format("seed-{}", run.seed));
          run.overrides.push_back(fmt::format("training.seed={}", run.seed));
        }
        if (fold > 0) {
          run.name = joined(run.name, fmt::format("fold-{}", fold));
          run.overrides.push_back(fmt::format("data.folds={}", options.folds));
          run.overrides.push_back(fmt::format("data.test_fold={}", fold));
        }
        plan.runs.push_back(std::move(run));
      }
  return plan;
}

}  // namespace segfuse::learn
