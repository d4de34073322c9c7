#include "semicrf/align/rest_bound.h"

#include <algorithm>

#include "base/sizes.h"
#include "base/thread_pool.h"
#include "semicrf/cpu/best/viterbi.h"
#include "semicrf/cpu/sum/factored.h"

namespace segfuse::semicrf {
namespace {

/// The row from its end to its beginning, with the orders' labels only: what follows a segment is
/// what stands before it there.
class Mirror {
 public:
  Mirror(const Model& model, const Row& row, const LabelOrders& orders,
         const std::vector<bool>& in_pieces) {
    std::vector<bool> used(at(model.dims.classes));
    for (const LabelOrders::Node& node : orders.nodes) used[at(node.label)] = true;
    place_.assign(used.size(), -1);
    for (std::int64_t c = 0; c < model.dims.classes; ++c) {
      if (!used[at(c)]) continue;
      place_[at(c)] = std::ssize(labels_);
      labels_.push_back(c);
    }
    model_.dims = {1, row.length, std::ssize(labels_), padded(std::ssize(labels_)), 1, false};
    copy_durations(model);
    copy_links(model, orders);
    for (const std::int64_t c : labels_)
      if (in_pieces[at(c)]) link(model, c, c);
    row_.length = row.length;
    row_.emission = mirrored(row, row.emission, model.dims.stride, frames_.emission);
    row_.start = mirrored(row, row.end, model.dims.stride, frames_.start);
    row_.end = mirrored(row, row.start, model.dims.stride, frames_.end);
  }

  const Model& model() const { return model_; }
  const Row& row() const { return row_; }
  /// What stands before each boundary of the mirrored row, (L, stride), relative to a base each.
  RestBound bound(double whole, const double* linked, const double* base) const {
    RestBound bound{whole, std::vector<std::vector<double>>(place_.size())};
    for (std::size_t i = 0; i < labels_.size(); ++i) {
      std::vector<double>& rest = bound.after[at(labels_[i])];
      rest.assign(at(row_.length + 1), kNegInf);
      for (std::int64_t t = 0; t < row_.length; ++t)
        rest[at(row_.length - t)] =
            base[t] + linked[t * model_.dims.stride + static_cast<std::int64_t>(i)];
    }
    return bound;
  }

 private:
  void copy_durations(const Model& model) {
    Dims& dims = model_.dims;
    for (std::int64_t d = 1; d <= model.dims.max_duration; ++d)
      for (const std::int64_t c : labels_)
        if (model.duration[(d - 1) * model.dims.stride + c] > kNegInf) dims.max_duration = d;
    model_.duration.assign(dims.max_duration * dims.stride, kNegInf);
    for (std::int64_t d = 0; d < dims.max_duration; ++d)
      for (std::size_t i = 0; i < labels_.size(); ++i)
        model_.duration[d * dims.stride + static_cast<std::int64_t>(i)] =
            model.duration[d * model.dims.stride + labels_[i]];
  }
  void copy_links(const Model& model, const LabelOrders& orders) {
    const Dims& dims = model_.dims;
    model_.transition.assign(dims.classes * dims.stride, kNegInf);
    model_.initial.assign(dims.stride, kNegInf);
    model_.final.assign(dims.stride, kNegInf);
    for (const LabelOrders::Node& node : orders.nodes) {
      const std::int64_t place = place_[at(node.label)];
      if (node.last) model_.initial[place] = model.final[node.label];
      if (node.first) model_.final[place] = model.initial[node.label];
      for (const std::int32_t next : node.next)
        link(model, node.label, orders.nodes[at(next)].label);
    }
  }
  void link(const Model& model, std::int64_t from, std::int64_t to) {
    model_.transition[place_[at(to)] * model_.dims.stride + place_[at(from)]] =
        model.transition[from * model.dims.stride + to];
  }
  const double* mirrored(const Row& row, const double* frames, std::int64_t stride,
                         AlignedDoubles& out) const {
    if (frames == nullptr) return nullptr;
    out.assign(row.length * model_.dims.stride, 0.0);
    for (std::int64_t t = 0; t < row.length; ++t) {
      double* to = out.data() + (row.length - 1 - t) * model_.dims.stride;
      for (std::size_t i = 0; i < labels_.size(); ++i) to[i] = frames[t * stride + labels_[i]];
    }
    return out.data();
  }

  std::vector<std::int64_t> labels_;  // those of the orders, rising
  std::vector<std::int64_t> place_;   // by label
  Model model_;
  RowBuffers frames_;
  Row row_;
};

}  // namespace

RestBound bound_of_sums(const Model& model, const Row& row, const LabelOrders& orders,
                        const std::vector<bool>& in_pieces) {
  const Mirror mirror(model, row, orders, in_pieces);
  FactoredTables tables;
  make_tables(mirror.model(), tables);
  FactoredState state;
  const double whole = factored_forward(mirror.model(), tables, mirror.row(), state);
  const Pass& pass = state.forward;
  return mirror.bound(whole, pass.linked.data(), pass.base.data());
}

RestBound bound_of_scores(const Model& model, const Row& row, const LabelOrders& orders,
                          const std::vector<bool>& in_pieces) {
  const Mirror mirror(model, row, orders, in_pieces);
  ThreadPool pool(1);
  ViterbiState state;
  std::vector<Segment> path;
  if (!viterbi_row(mirror.model(), mirror.row(), BestCut{}, state, pool, path))
    return mirror.bound(kNegInf, state.source.data(), state.base.data());
  const Dims& dims = mirror.model().dims;
  double whole = kNegInf;
  for (std::int64_t c = 0; c < dims.classes; ++c)
    whole = std::max(whole, state.value[row.length * dims.stride + c] + mirror.model().final[c]);
  return mirror.bound(whole + state.base[row.length], state.source.data(), state.base.data());
}

}  // namespace segfuse::semicrf
