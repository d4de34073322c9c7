#include "engine/exec/plan.h"

#include <algorithm>

#include "base/check.h"
#include "engine/exec/move.h"
#include "engine/exec/planner.h"
#include "engine/kernels/pointwise_kernels.h"

namespace segfuse::engine {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Planner::Planner(const ir::Fusion& fusion, const ir::Sizes& sizes)
    : fusion_(fusion),
      sizes_(sizes),
      refs_(fusion.storage().vals.size()),
      live_(fusion.storage().exprs.size(), false) {
  for (const ir::ExprId id : fusion.live_exprs()) live_[id.index] = true;
}

std::uint32_t Planner::add_storage(Storage::Kind kind, std::size_t index, std::size_t bytes) {
  plan_.storages.push_back({kind, index, aligned(bytes), 0, plan_.steps.size(), 0});
  return static_cast<std::uint32_t>(plan_.storages.size() - 1);
}

Ref Planner::scratch(DType type, Shape shape) {
  const std::size_t bytes = static_cast<std::size_t>(num_elements(shape)) * size_of(type);
  return {add_storage(Storage::Kind::kArena, 0, bytes), type, contiguous(std::move(shape))};
}

Ref Planner::place(ir::ValId val, DType type) {
  Ref ref = scratch(type, shape(val));
  const auto output = direct_outputs_.find(val.index);
  if (output != direct_outputs_.end() && type == dtype(val)) {
    Storage& storage = plan_.storages[ref.storage];
    storage.kind = Storage::Kind::kOutput;
    storage.index = output->second;
  }
  return refs_[val.index] = ref;
}

Ref Planner::scalar(DType dtype, double value) {
  const DType type = compute_type(dtype);
  Tensor tensor(dtype, {});
  tensor.set(0, value);
  tensor = tensor.to(type);  // rounded to a half first
  const std::uint32_t storage = add_storage(Storage::Kind::kConstant, 0, size_of(type));
  plan_.storages[storage].offset = plan_.constants.size();
  plan_.constants.resize(plan_.constants.size() + kAlignment);
  std::copy_n(static_cast<const std::byte*>(tensor.data()), size_of(type),
              plan_.constants.end() - kAlignment);
  return {storage, type, contiguous({})};
}

Ref Planner::packed(const Ref& ref) {
  if (is_contiguous(ref.layout)) return ref;
  Ref target = scratch(ref.dtype, ref.layout.shape);
  add_step({}, {ref}, {target},
           [from = ref, target](Run& run) { copy(run.pool, run.array(from), run.array(target)); });
  return target;
}

void Planner::add_step(ir::ExprId expr, std::vector<Ref> operands, std::vector<Ref> results,
                       std::function<void(Run&)> go) {
  const std::size_t step = plan_.steps.size();
  for (const auto* refs : {&operands, &results})
    for (const Ref& ref : *refs) plan_.storages[ref.storage].last_step = step;
  plan_.steps.push_back({expr, std::move(operands), std::move(results), std::move(go), {}, 0, 0});
}

void Planner::round(ir::ExprId expr, ir::ValId val) {
  if (!is_half(dtype(val))) return;
  const Ref target = ref(val);
  if (generated_) {
    const Ref half = place(val, dtype(val));
    return add_step(expr, {target}, {half}, [target, half](Run& run) {
      convert_to_half(half.dtype, run.array(target).as<float>(), run.array(half).data,
                      half.layout.size());
    });
  }
  add_step(expr, {target}, {target}, [target, loop = round_loop(dtype(val))](Run& run) {
    const Array array = run.array(target);
    loop(array.data, {{array.data, nullptr, nullptr}, {1, 0, 0}}, target.layout.size());
  });
}

void Planner::plan_inputs() {
  for (std::size_t i = 0; i < fusion_.inputs().size(); ++i) {
    const ir::ValId val = fusion_.inputs()[i].val;
    const DType type = dtype(val);
    const Layout layout = contiguous(shape(val));
    const Ref given{add_storage(Storage::Kind::kInput, i, 0), type, layout};
    refs_[val.index] = given;
    if (!generated_) refs_[val.index] = widened(given);
  }
}

Ref Planner::widened(const Ref& ref) {
  if (!is_half(ref.dtype)) return ref;
  const Ref from = packed(ref);
  const Ref target = scratch(DType::kF32, from.layout.shape);
  add_step({}, {from}, {target}, [from, target](Run& run) {
    convert_half(from.dtype, run.array(from).data, run.array(target).as<float>(),
                 from.layout.size());
  });
  return target;
}

/// An output that no step has made in place is copied, or converted to its half type.
void Planner::plan_outputs() {
  for (std::size_t i = 0; i < fusion_.outputs().size(); ++i) {
    const ir::ValId val = fusion_.outputs()[i].val;
    const Ref from = ref(val);
    plan_.output_shapes.push_back(from.layout.shape);
    plan_.in_place.emplace_back();
    for (const ir::Alias& alias : in_place_)
      if (alias.output == val) plan_.in_place.back() = plan_.storages[from.storage].index;
    if (plan_.in_place.back()) continue;
    const Storage& storage = plan_.storages[from.storage];
    const auto direct = direct_outputs_.find(val.index);
    if (direct != direct_outputs_.end() && direct->second == i &&
        storage.kind == Storage::Kind::kOutput && storage.index == i)
      continue;
    const Ref target{add_storage(Storage::Kind::kOutput, i, 0), dtype(val),
                     contiguous(from.layout.shape)};
    const Ref source = from.dtype != target.dtype ? packed(from) : from;
    add_step({}, {source}, {target}, [source, target](Run& run) {
      if (source.dtype == target.dtype) {
        copy(run.pool, run.array(source), run.array(target));
      } else {
        convert_to_half(target.dtype, run.array(source).as<float>(), run.array(target).data,
                        target.layout.size());
      }
    });
  }
}

/// First fit over the lives of the arena storages, in the order in which they begin.
void Planner::assign_arena() {
  struct Range {
    std::size_t begin, end, last_step;
  };
  std::vector<Range> taken;  // ascending by begin
  for (Storage& storage : plan_.storages) {
    if (storage.kind != Storage::Kind::kArena) continue;
    std::erase_if(taken, [&](const Range& r) { return r.last_step < storage.first_step; });
    std::size_t begin = 0;
    auto at = taken.begin();
    for (; at != taken.end() && begin + storage.bytes > at->begin; ++at)
      begin = std::max(begin, at->end);
    storage.offset = begin;
    plan_.arena_bytes = std::max(plan_.arena_bytes, begin + storage.bytes);
    taken.insert(at, {begin, begin + storage.bytes, storage.last_step});
  }
}

Plan Planner::run(std::span<const Group> groups) {
  for (std::size_t i = 0; i < fusion_.outputs().size(); ++i) {
    const ir::ValId val = fusion_.outputs()[i].val;
    if (!is_half(dtype(val)) && fusion_.val(val).definition.valid())
      direct_outputs_.emplace(val.index, i);
  }
  plan_inputs();
  for (const Group& group : groups) plan_group(group);
  plan_outputs();
  assign_arena();
  return std::move(plan_);
}

Plan make_plan(const ir::Fusion& fusion, std::span<const Group> groups, const ir::Sizes& sizes) {
  return Planner(fusion, sizes).run(groups);
}

}  // namespace segfuse::engine
