#include "compiler/segment/segmenter.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "compiler/segment/run_order.h"
#include "compiler/segment/search.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

using ir::ExprId;
using ir::ValId;

namespace {

/// The groups that are left, in the order of their first expressions made topological.
class Result {
 public:
  Result(const MergeSearch& search, const ir::Fusion& fusion) : search_(search), fusion_(fusion) {
    std::vector<MergeSearch::Number> alive;
    for (MergeSearch::Number g = 0; g < search.groups().size(); ++g)
      if (search.groups()[g].alive) alive.push_back(g);
    std::sort(alive.begin(), alive.end(), [&](MergeSearch::Number a, MergeSearch::Number b) {
      return last_rank(a) < last_rank(b);
    });
    place_.assign(search.groups().size(), MergeSearch::kNone);
    numbers_ = alive;
    for (std::uint32_t i = 0; i < alive.size(); ++i) place_[alive[i]] = i;
  }

  std::vector<std::uint32_t> order();
  /// Takes the Fusion away from the search.
  SegmentedFusion make(ir::Fusion& fusion, const SizeHints& hints);

 private:
  std::uint32_t last_rank(MergeSearch::Number g) const {
    return search_.context().rank(search_.groups()[g].exprs.back());
  }
  std::uint32_t place_of(ExprId id) const { return place_[search_.group_of(id)]; }
  void find_lifetimes();

  const MergeSearch& search_;
  const ir::Fusion& fusion_;
  std::vector<MergeSearch::Number> numbers_;  // of the search, by place
  std::vector<std::uint32_t> place_;          // by number
  std::vector<Lifetime> lifetimes_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> before_;
};

void Result::find_lifetimes() {
  std::vector<int> index(fusion_.storage().vals.size(), -1);
  for (const MergeSearch::Number number : numbers_) {
    const Candidate& group = search_.groups()[number];
    for (const ValId output : group.boundary.outputs) {
      index[output.index] = static_cast<int>(lifetimes_.size());
      const auto& aliases = search_.in_place();
      const bool in_place = std::any_of(aliases.begin(), aliases.end(),
                                        [&](const ir::Alias& a) { return a.output == output; });
      lifetimes_.push_back({place_[number],
                            {},
                            in_place ? 0 : search_.context().bytes(output),
                            search_.context().is_output(output)});
    }
  }
  for (std::uint32_t place = 0; place < numbers_.size(); ++place) {
    for (const ValId input : search_.groups()[numbers_[place]].boundary.inputs) {
      if (index[input.index] >= 0)
        lifetimes_[static_cast<std::size_t>(index[input.index])].readers.push_back(place);
      for (const ir::Alias& alias : search_.in_place()) {
        if (alias.input != storage_root(fusion_, input)) continue;
        const std::uint32_t writer = place_of(fusion_.val(alias.output).definition);
        if (writer != place) before_.emplace_back(place, writer);
      }
    }
  }
}

std::vector<std::uint32_t> Result::order() {
  find_lifetimes();
  // A possible order first: Kahn's, lowest place first.
  std::vector<std::vector<std::uint32_t>> users(numbers_.size());
  std::vector<int> missing(numbers_.size(), 0);
  auto edge = [&](std::uint32_t from, std::uint32_t to) {
    users[from].push_back(to);
    ++missing[to];
  };
  for (const Lifetime& value : lifetimes_)
    for (const std::uint32_t reader : value.readers) edge(value.writer, reader);
  for (const auto& [first, second] : before_) edge(first, second);
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t i = 0; i < missing.size(); ++i)
    if (missing[i] == 0) ready.push(i);
  std::vector<std::uint32_t> possible;
  std::vector<std::uint32_t> position(numbers_.size(), 0);
  while (!ready.empty()) {
    const std::uint32_t next = ready.top();
    ready.pop();
    position[next] = static_cast<std::uint32_t>(possible.size());
    possible.push_back(next);
    for (const std::uint32_t user : users[next])
      if (--missing[user] == 0) ready.push(user);
  }
  SEGFUSE_CHECK(possible.size() == numbers_.size(), "the groups of '{}' have an order",
                fusion_.name());
  for (Lifetime& value : lifetimes_) {
    value.writer = position[value.writer];
    for (std::uint32_t& reader : value.readers) reader = position[reader];
    std::sort(value.readers.begin(), value.readers.end());
  }
  for (auto& [first, second] : before_) {
    first = position[first];
    second = position[second];
  }
  const RunOrder best = find_run_order(numbers_.size(), lifetimes_, before_);
  std::vector<std::uint32_t> order;
  for (const std::uint32_t p : best.order) order.push_back(possible[p]);
  return order;
}

SegmentedFusion Result::make(ir::Fusion& fusion, const SizeHints& hints) {
  const std::vector<std::uint32_t> in_order = order();
  std::vector<GroupId> id_of(search_.groups().size());  // by number
  std::vector<IterationDomain> domains;
  for (std::uint32_t i = 0; i < in_order.size(); ++i) {
    const MergeSearch::Number number = numbers_[in_order[i]];
    id_of[number] = GroupId{i};
    domains.push_back(search_.groups()[number].domain);
  }
  std::vector<GroupId> group_of(fusion_.storage().exprs.size());
  for (const ExprId id : fusion_.exprs())
    if (search_.group_of(id) != MergeSearch::kNone)
      group_of[id.index] = id_of[search_.group_of(id)];
  SegmentedFusion result(std::move(fusion), hints, std::move(group_of), std::move(domains));
  result.in_place = search_.in_place();
  result.copies = search_.copies();
  for (const MergeSearch::Refusal& refusal : search_.refusals()) {
    const auto [first, second] = std::minmax(id_of[refusal.first], id_of[refusal.second]);
    result.rejections.push_back({first, second, refusal.reason});
  }
  std::sort(result.rejections.begin(), result.rejections.end());
  return result;
}

}  // namespace

SegmentedFusion segment(ir::Fusion fusion, const SegmentOptions& options) {
  if (fusion.live_exprs().size() != fusion.exprs().size())
    throw UsageError(fmt::format(
        "the Fusion '{}' has dead code; run the passes before it is segmented", fusion.name()));
  MergeSearch search(fusion, options);
  search.try_whole();
  search.try_parts();
  search.merge_pairs();
  if (options.recompute) search.recompute_cheap_chains();
  search.separate_views();
  return Result(search, fusion).make(fusion, options.hints);
}

}  // namespace segfuse::compiler
