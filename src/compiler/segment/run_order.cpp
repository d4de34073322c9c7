#include "compiler/segment/run_order.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"

namespace segfuse::compiler {
namespace {

class Scheduler {
 public:
  Scheduler(std::size_t count, std::span<const Lifetime> values,
            std::span<const std::pair<std::uint32_t, std::uint32_t>> before)
      : values_(values),
        growth_(count, 0),
        missing_(count, 0),
        users_(count),
        reads_(count),
        writes_(count),
        waiting_(values.size()),
        ran_(count, false) {
    for (std::size_t v = 0; v < values.size(); ++v) {
      const Lifetime& value = values[v];
      writes_[value.writer].push_back(v);
      growth_[value.writer] += value.bytes;
      waiting_[v] = value.readers.size();
      for (const std::uint32_t reader : value.readers) {
        reads_[reader].push_back(v);
        users_[value.writer].push_back(reader);
        ++missing_[reader];
      }
      if (value.readers.size() == 1 && !value.stays) growth_[value.readers[0]] -= value.bytes;
    }
    for (const auto& [first, second] : before) {
      users_[first].push_back(second);
      ++missing_[second];
    }
  }

  RunOrder run() {
    RunOrder result;
    for (std::uint32_t g = 0; g < missing_.size(); ++g)
      if (missing_[g] == 0) ready_.emplace(growth_[g], g);
    while (!ready_.empty()) {
      const std::uint32_t group = ready_.begin()->second;
      ready_.erase(ready_.begin());
      result.order.push_back(group);
      done(group);
    }
    SEGFUSE_CHECK(result.order.size() == missing_.size(), "groups can be put in order");
    result.peak_bytes = peak_;
    return result;
  }

 private:
  void done(std::uint32_t group) {
    ran_[group] = true;
    for (const std::size_t v : writes_[group]) alive_ += values_[v].bytes;
    peak_ = std::max(peak_, alive_);
    for (const std::size_t v : writes_[group])
      if (values_[v].readers.empty() && !values_[v].stays) alive_ -= values_[v].bytes;
    for (const std::size_t v : reads_[group]) {
      if (values_[v].stays) continue;
      if (--waiting_[v] == 0) alive_ -= values_[v].bytes;
      if (waiting_[v] != 1) continue;
      for (const std::uint32_t reader : values_[v].readers) last_reader(v, reader);
    }
    for (const std::uint32_t user : users_[group])
      if (--missing_[user] == 0) ready_.emplace(growth_[user], user);
  }

  /// The one reader that is left frees the value.
  void last_reader(std::size_t v, std::uint32_t reader) {
    if (ran_[reader]) return;
    const bool was_ready = ready_.erase({growth_[reader], reader}) > 0;
    growth_[reader] -= values_[v].bytes;
    if (was_ready) ready_.emplace(growth_[reader], reader);
  }

  std::span<const Lifetime> values_;
  std::vector<std::int64_t> growth_;
  std::vector<std::size_t> missing_;
  std::vector<std::vector<std::uint32_t>> users_;
  std::vector<std::vector<std::size_t>> reads_;
  std::vector<std::vector<std::size_t>> writes_;
  std::vector<std::size_t> waiting_;
  std::set<std::pair<std::int64_t, std::uint32_t>> ready_;
  std::vector<bool> ran_;
  std::int64_t alive_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace

std::int64_t peak_bytes(std::span<const std::uint32_t> order, std::span<const Lifetime> values) {
  std::vector<std::size_t> position(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  std::vector<std::int64_t> change(order.size() + 1, 0);
  for (const Lifetime& value : values) {
    const std::size_t begin = position[value.writer];
    std::size_t end = begin;
    for (const std::uint32_t reader : value.readers) end = std::max(end, position[reader]);
    change[begin] += value.bytes;
    change[value.stays ? order.size() : end + 1] -= value.bytes;
  }
  std::int64_t alive = 0;
  std::int64_t peak = 0;
  for (const std::int64_t step : change) peak = std::max(peak, alive += step);
  return peak;
}

RunOrder find_run_order(std::size_t count, std::span<const Lifetime> values,
                        std::span<const std::pair<std::uint32_t, std::uint32_t>> before) {
  RunOrder greedy = Scheduler(count, values, before).run();
  RunOrder given;
  given.order.resize(count);
  std::iota(given.order.begin(), given.order.end(), 0);
  given.peak_bytes = peak_bytes(given.order, values);
  return given.peak_bytes <= greedy.peak_bytes ? given : greedy;
}

}  // namespace segfuse::compiler
