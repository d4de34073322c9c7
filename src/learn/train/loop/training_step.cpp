#include "learn/train/loop/training_step.h"

#include <algorithm>
#include <cmath>

#include "base/context/pool.h"
#include "engine/device/accelerator.h"
#include "learn/train/loop/offender.h"
#include "learn/train/loop/ranks.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

using optim::FlatLayout;
using optim::FlatTensors;

Tensor scalar(double value) { return Tensor::full(DType::kF32, {}, value); }

/// The program of a shard, which writes each gradient to where its input "gradient.NAME" lies.
ir::Fusion with_places(ir::Fusion fusion, const std::vector<nn::ParameterSpec>& specs) {
  for (const nn::ParameterSpec& spec : specs) {
    const std::string name = "gradient." + spec.name;
    const ir::Extents shape(spec.shape.begin(), spec.shape.end());
    const auto output = std::ranges::find(fusion.outputs(), name, &ir::Output::name);
    fusion.add_alias(output->val, fusion.add_input(name, DType::kF32, shape));
  }
  return fusion;
}

engine::ExecutableOptions with_precision(engine::ExecutableOptions execution, Precision precision) {
  execution.tf32 = precision == Precision::kTF32;
  return execution;
}

}  // namespace

TrainingStep::TrainingStep(const Segmenter& segmenter, const StepOptions& options,
                           const FlatState& state, const FlatLayout& layout,
                           const NamedTensors& limits, const engine::ExecutableOptions& execution)
    : layout_(layout),
      execution_(execution),
      adamw_(options.adamw),
      live_{place(state.parameters, "parameters"), place(state.first_moment, "moments"),
            place(state.second_moment, "moments"), place(state.average, "parameters")},
      forward_backward_(with_places(segmenter.training(options.precision), segmenter.parameters()),
                        pool_of(execution.context), with_precision(execution, options.precision)),
      step_inputs_(forward_backward_.fusion()),
      add_(optim::addition(layout), pool_of(execution.context), execution),
      norm_(optim::squares_of_blocks(layout), pool_of(execution.context), execution),
      update_(optim::adamw_update(layout.ranges(), options.adamw), pool_of(execution.context),
              execution),
      update_inputs_(update_.fusion()),
      shards_(options.shards),
      sum_(options.shards, 0) {
  for (std::size_t i = 0; i < segmenter.parameters().size(); ++i) {
    const std::string& name = segmenter.parameters()[i].name;
    step_inputs_.set(name, live_.parameters.parts[i]);
    gradient_inputs_.push_back("gradient." + name);
  }
  for (const NamedTensors& fixed : {limits, segmenter.constants()})
    for (const auto& [name, tensor] : fixed)
      if (step_inputs_.has(name))
        step_inputs_.set(name,
                         accelerator() ? accelerator()->upload(tensor, "parameters") : tensor);
  if (options.piece > 0) plan_pieces(segmenter, options.piece);
  if (options.crf_reg > 0 && layout.last < layout.size)
    regularise_.emplace(optim::regulariser(layout, options.crf_reg), pool_of(execution.context),
                        execution);
}

/// In the order in which the program's backward pass completes them, which all ranks share.
void TrainingStep::plan_pieces(const Segmenter& segmenter, std::int64_t elements) {
  const std::vector<ir::Input>& inputs = forward_backward_.fusion().inputs();
  const std::vector<std::size_t> of_input = forward_backward_.order_of_writes();
  std::vector<std::size_t> number;
  std::vector<std::size_t> order;
  for (const nn::ParameterSpec& spec : segmenter.parameters()) {
    number.push_back(static_cast<std::size_t>(
        std::ranges::find(inputs, "gradient." + spec.name, &ir::Input::name) - inputs.begin()));
    order.push_back(of_input[number.back()]);
  }
  pieces_ = optim::cut_into_pieces(layout_, order, elements);
  for (const optim::FlatPiece& piece : pieces_) {
    std::vector<std::size_t>& set = milestones_.inputs.emplace_back();
    for (const std::size_t p : piece.parameters) set.push_back(number[p]);
  }
  pieces_text_ = optim::text_of(pieces_);
}

/// The tensors themselves, or a copy on the accelerator.
FlatTensors TrainingStep::place(const FlatTensors& tensors, std::string_view label) const {
  if (!accelerator() || tensors.parts.empty()) return tensors;
  return {layout_, accelerator()->upload(tensors.whole, label)};
}

void TrainingStep::fetch(const FlatState& state) const {
  if (!accelerator()) return;
  const auto copy = [](const FlatTensors& from, const FlatTensors& to) {
    if (to.parts.empty()) return;
    Tensor host = to.whole;
    from.whole.device_memory()->copy_to_host(host.data(), host.bytes());
  };
  copy(live_.parameters, state.parameters);
  copy(live_.first_moment, state.first_moment);
  copy(live_.second_moment, state.second_moment);
  copy(live_.average, state.average);
}

void TrainingStep::load(const FlatState& state) const {
  if (!accelerator()) return;
  const auto copy = [&](const FlatTensors& from, const FlatTensors& to) {
    if (!to.parts.empty()) accelerator()->upload_into(from.whole, to.whole);
  };
  copy(state.parameters, live_.parameters);
  copy(state.first_moment, live_.first_moment);
  copy(state.second_moment, live_.second_moment);
  copy(state.average, live_.average);
}

void TrainingStep::stage(Batch& batch) const {
  if (!accelerator()) return;
  for (Tensor* tensor : {&batch.features, &batch.lengths, &batch.labels, &batch.segment_start})
    *tensor = accelerator()->upload(*tensor, "batch");
}

void TrainingStep::begin(std::int64_t present, std::int64_t first) {
  sum_ = comm::TreeSum(shards_, present);
  present_ = present;
  next_shard_ = first;
  losses_.clear();
  left_.clear();
  started_ = false;
}

const FlatTensors& TrainingStep::slot(std::size_t index) {
  while (slots_.size() <= index) slots_.push_back(place(FlatTensors::zeros(layout_), "gradients"));
  return slots_[index];
}

/// Loss and gradients of a batch, the latter in a slot.
std::vector<Tensor> TrainingStep::run(const Batch& batch, const ShardPlace& where,
                                      std::size_t slot) {
  while (slots_.size() <= slot) slots_.push_back(place(FlatTensors::zeros(layout_), "gradients"));
  for (std::size_t i = 0; i < gradient_inputs_.size(); ++i)
    step_inputs_.set(gradient_inputs_[i], slots_[slot].parts[i]);
  bind_batch(step_inputs_, batch, where);
  return forward_backward_.run(step_inputs_.tensors(), pieces_.empty() ? nullptr : &milestones_);
}

void TrainingStep::add(const Batch& batch, const ShardPlace& where) {
  add_up();
  losses_.push_back(run(batch, where, sum_.next_slot())[0]);
  left_ = sum_.push({0, next_shard_++});
}

void TrainingStep::add_up() {
  for (const comm::TreeSum::Addition a : left_)
    static_cast<void>(add_.run(std::vector{slots_[a.to].whole, slots_[a.from].whole}));
  left_.clear();
}

void TrainingStep::start_sum(TrainingRanks& ranks) {
  const std::size_t nodes = sum_.held().size();
  std::vector<Tensor> slots;
  for (std::size_t s = 0; s < nodes + left_.size(); ++s) slots.push_back(slots_[s].whole);
  std::vector<TrainingRanks::Piece> pieces;
  for (const optim::FlatPiece& piece : pieces_) pieces.push_back({piece.begin, piece.end});
  left_.clear();
  started_ = true;
  ranks.start_sum(slots, nodes, present_, slot(0).whole, pieces,
                  losses_.empty() ? nullptr : milestones_.over.get());
}

/// Slot 0 gets the sum over all ranks.
void TrainingStep::exchange(TrainingRanks& ranks) {
  add_up();
  std::vector<Tensor> nodes;
  for (const comm::TreeSum::Held& held : sum_.held()) nodes.push_back(slots_[held.slot].whole);
  ranks.sum(nodes, present_, slot(0).whole);
}

std::vector<float> TrainingStep::losses() {
  std::vector<float> losses;
  for (const Tensor& loss : losses_) losses.push_back(static_cast<float>(loss.to_host().at(0)));
  forward_backward_.check();
  return losses;
}

double TrainingStep::reduce(TrainingRanks& ranks) {
  if (ranks.alone())
    add_up();
  else if (!started_)
    exchange(ranks);
  const Tensor& gradient = slots_[0].whole;
  if (regularise_) {
    const Shape rest = {layout_.size - layout_.last};
    static_cast<void>(
        regularise_->run(std::vector{engine::part_of(gradient, layout_.last, rest),
                                     engine::part_of(live_.parameters.whole, layout_.last, rest)}));
  }
  const Tensor blocks = norm_.run(std::vector{gradient})[0];
  // The norm is enqueued behind the sum. This wait, unlike that for the norm, ends without a rank
  // that is lost.
  if (started_) ranks.wait_for_sum();
  const Tensor on_host = blocks.to_host();
  double squares = 0;
  for (const float block : on_host.span<float>()) squares += static_cast<double>(block);
  return std::sqrt(squares);
}

void TrainingStep::update(double rate, double clip, std::int64_t steps) {
  const auto t = static_cast<double>(steps);
  update_inputs_.set("rate", scalar(rate));
  update_inputs_.set("clip", scalar(clip));
  update_inputs_.set("correction1", scalar(1 / (1 - std::pow(adamw_.beta1, t))));
  update_inputs_.set("correction2", scalar(1 / (1 - std::pow(adamw_.beta2, t))));
  const auto bind = [&](const std::string& prefix, const FlatTensors& tensors) {
    if (tensors.parts.empty()) return;
    if (update_inputs_.has("decayed"))
      update_inputs_.set(prefix + "decayed", engine::part_of(tensors.whole, 0, {layout_.decayed}));
    if (update_inputs_.has("other"))
      update_inputs_.set(prefix + "other", engine::part_of(tensors.whole, layout_.decayed,
                                                           {layout_.size - layout_.decayed}));
  };
  bind("", live_.parameters);
  bind("gradient.", slots_[0]);
  bind("m.", live_.first_moment);
  bind("v.", live_.second_moment);
  bind("mean.", live_.average);
  static_cast<void>(update_.run(update_inputs_.tensors()));
}

/// What of the batch that was bound last goes wrong. The accelerator's kernels first, which alone
/// know their faults.
std::string TrainingStep::offender() {
  std::vector<Tensor> inputs;
  for (const Tensor& input : step_inputs_.tensors()) inputs.push_back(input.to_host());
  // Where gradients went: nothing reads that.
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (forward_backward_.fusion().inputs()[i].name.starts_with("gradient."))
      inputs[i] = Tensor::zeros(DType::kF32, inputs[i].shape());
  std::string why = name_bad_input(forward_backward_.fusion(), inputs);
  try {
    if (why.empty()) why = forward_backward_.look(step_inputs_.tensors());
  } catch (const Error&) {
    // It refuses for the reason that is looked for.
  }
  return why.empty() ? name_offender(forward_backward_.fusion(), inputs, execution_.context) : why;
}

TrainingStep::Verdict TrainingStep::examine(const Batch& batch, const ShardPlace& where,
                                            bool name_operation) {
  Verdict verdict;
  try {
    const Tensor loss = run(batch, where, 0)[0].to_host();
    forward_backward_.check();
    const Tensor gradient = slots_[0].whole.to_host();
    verdict.finite = std::isfinite(loss.at(0)) &&
                     std::ranges::all_of(gradient.span<float>(),
                                         [](float value) { return std::isfinite(value); });
  } catch (const DataError& error) {
    verdict = {false, error.what()};
  }
  if (verdict.finite || !name_operation) return verdict;
  if (std::string why = offender(); !why.empty()) verdict.why = std::move(why);
  return verdict;
}

}  // namespace segfuse::learn
