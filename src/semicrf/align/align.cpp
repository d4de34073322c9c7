#include <fmt/core.h>

#include "base/context/pool.h"
#include "base/thread_pool.h"
#include "segfuse/error.h"
#include "segfuse/semicrf/orders.h"
#include "semicrf/align/lattice.h"

namespace segfuse::semicrf {
namespace {

void check_call(std::span<const LabelOrders> orders, const AlignOptions& options,
                const Dims& dims) {
  if (dims.by_duration)
    throw UsageError("semicrf: an alignment needs transitions that do not depend on durations");
  if (std::ssize(orders) != dims.batch)
    throw UsageError(fmt::format("semicrf: {} orders of labels for {} rows; expected one for each",
                                 orders.size(), dims.batch));
  if (!options.pieces.empty() && std::ssize(options.pieces) != dims.classes)
    throw UsageError(
        fmt::format("semicrf: {} rules of pieces for {} classes; expected one for each",
                    options.pieces.size(), dims.classes));
  for (const LabelOrders& of_row : orders)
    for (const LabelOrders::Node& node : of_row.nodes)
      if (node.label < 0 || node.label >= dims.classes)
        throw UsageError(fmt::format("semicrf: an order has the label {}; expected one below {}",
                                     node.label, dims.classes));
}

Alignment align_row(const Model& model, const Row& row, const LabelOrders& orders,
                    const AlignOptions& options) {
  Alignment alignment;
  if (row.length == 0 || orders.nodes.empty()) {
    if (row.length == 0 && orders.nodes.empty()) return alignment;
    return {RowStatus::kNoPath, {}, kNegInf, kNegInf};
  }
  const LabelOrders unique = one_path_each(orders);
  AlignLattice lattice(model, row, unique, options);
  lattice.find_best(alignment);
  if (alignment.status == RowStatus::kOk) lattice.find_posteriors(alignment);
  return alignment;
}

}  // namespace

template <class T>
std::vector<Alignment> align(const Context& context, const Potentials<T>& potentials,
                             std::span<const LabelOrders> orders, const AlignOptions& options) {
  const Dims dims = check_potentials(potentials);
  check_call(orders, options, dims);
  Model model;
  load_model(potentials, dims, model);
  std::vector<Alignment> rows(static_cast<std::size_t>(dims.batch));
  pool_of(context).run(dims.batch, [&](std::int64_t b) {
    RowBuffers buffers;
    const Row row = load_row(potentials, dims, b, buffers);
    const auto i = static_cast<std::size_t>(b);
    rows[i] = align_row(model, row, orders[i], options);
  });
  return rows;
}

template std::vector<Alignment> align(const Context&, const Potentials<float>&,
                                      std::span<const LabelOrders>, const AlignOptions&);
template std::vector<Alignment> align(const Context&, const Potentials<double>&,
                                      std::span<const LabelOrders>, const AlignOptions&);

}  // namespace segfuse::semicrf
