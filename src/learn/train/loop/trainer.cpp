#include "learn/train/loop/trainer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/console/log.h"
#include "base/console/progress.h"
#include "base/context/pool.h"
#include "base/os/interrupt.h"
#include "engine/device/accelerator.h"
#include "engine/executor.h"
#include "learn/train/decode/decoder.h"
#include "learn/train/files/checkpoint.h"
#include "learn/train/loop/bound_inputs.h"
#include "learn/train/loop/offender.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

std::vector<Tensor> zeros_like(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> zeros;
  for (const Tensor& tensor : tensors)
    zeros.push_back(Tensor::zeros(tensor.dtype(), tensor.shape()));
  return zeros;
}

void copy_into(const std::vector<Tensor>& from, std::vector<Tensor>& to) {
  for (std::size_t i = 0; i < from.size(); ++i)
    std::memcpy(to[i].data(), from[i].data(), from[i].bytes());
}

std::vector<Tensor> clone(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

/// What a step changes: the state's own tensors, or copies of them on an accelerator.
struct LiveState {
  std::vector<Tensor> parameters, first_moment, second_moment, average;
};

Tensor scalar(double value) { return Tensor::full(DType::kF32, {}, value); }

/// Whether every gold label is one that the model has.
bool all_known(const Sequence& sequence) {
  return std::ranges::none_of(sequence.segments,
                              [](const FrameSegment& s) { return s.label == kUnknownLabel; });
}

bool lower_is_better(Selection selection) {
  return selection == Selection::kLabelError || selection == Selection::kLoss;
}

std::string title_of(Selection selection) {
  switch (selection) {
    case Selection::kBoundaryF1: return "dev boundary F1";
    case Selection::kSegmentF1: return "dev segment F1";
    case Selection::kLoss: return "dev loss";
    case Selection::kLabelError: break;
  }
  return "dev label error";
}

class Run {
 public:
  Run(const Segmenter& segmenter, const TrainingPlan& plan, std::vector<Tensor> parameters,
      const Tensor& duration_limit, const std::vector<Sequence>& train,
      const std::vector<Sequence>& dev, const Scorer& score, const TrainerOptions& options)
      : segmenter_(segmenter),
        plan_(plan),
        train_(train),
        dev_(dev),
        score_(score),
        options_(options),
        forward_backward_(segmenter.training(plan.crf_reg), pool_of(options.execution.context),
                          options.execution),
        step_inputs_(forward_backward_.fusion()),
        update_(optim::adamw_update(segmenter.parameters(), plan.adamw),
                pool_of(options.execution.context), options.execution),
        update_inputs_(update_.fusion()) {
    state_.parameters = std::move(parameters);
    state_.first_moment = zeros_like(state_.parameters);
    state_.second_moment = zeros_like(state_.parameters);
    if (plan.adamw.average > 0) state_.average = clone(state_.parameters);
    state_.best = clone(state_.parameters);
    for (const Sequence& sequence : train) lengths_.push_back(sequence.frames());
    schedule_.peak = plan.learning_rate;
    schedule_.total_steps = 0;
    for (std::int64_t epoch = 0; epoch < plan.epochs; ++epoch) {
      schedule_.total_steps += static_cast<std::int64_t>(batches(epoch).size());
    }
    schedule_.warmup_steps = std::llround(plan.warmup * static_cast<double>(schedule_.total_steps));
    for (const Sequence& sequence : dev)
      if (all_known(sequence)) known_dev_.push_back(sequence);
    if (plan.select_by == Selection::kLoss && !dev.empty() && known_dev_.empty())
      throw UsageError(
          "every development recording has labels that the training set lacks, so there is no loss "
          "to choose the epoch by; set training.select_by to label_error");
    recipe_ = options.recipe;
    add_data(recipe_, "training", train);
    add_data(recipe_, "development", dev);
    if (options.resume) restore();
    live_ = {place(state_.parameters), place(state_.first_moment), place(state_.second_moment),
             place(state_.average)};
    bind(duration_limit);
    decoder_ = std::make_unique<Decoder>(segmenter, evaluated(), duration_limit, options.execution);
  }

  TrainingOutcome run();

 private:
  std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch) const {
    return make_buckets(lengths_, {plan_.batch_size, plan_.batch_frames, plan_.seed}, epoch);
  }
  /// The parameters that decode: their running mean where there is one.
  const std::vector<Tensor>& evaluated() const {
    return state_.average.empty() ? state_.parameters : state_.average;
  }

  const std::shared_ptr<engine::Accelerator>& accelerator() const {
    return options_.execution.accelerator;
  }
  /// The tensors themselves, or copies on the accelerator.
  std::vector<Tensor> place(const std::vector<Tensor>& tensors) const {
    if (!accelerator()) return tensors;
    std::vector<Tensor> there;
    for (const Tensor& tensor : tensors)
      there.push_back(accelerator()->upload(tensor, "parameters"));
    return there;
  }
  void fetch();

  void restore();
  void save() {
    write_checkpoint(options_.checkpoint, state_, segmenter_.parameters(), recipe_);
    saved_ = Clock::now();
  }
  bool save_is_due() const {
    return options_.checkpoint_seconds > 0 &&
           std::chrono::duration<double>(Clock::now() - saved_).count() >=
               options_.checkpoint_seconds;
  }
  void bind(const Tensor& duration_limit);
  Batch stage(const std::vector<std::int64_t>& rows) const;
  std::vector<Tensor> start_step(const Batch& batch);
  double finish_step(const Batch& batch, const std::vector<Tensor>& results);
  std::string place_of(const Batch& batch) const;
  std::string offender();
  [[noreturn]] void out_of_memory(const Batch& batch, const engine::OutOfDeviceMemory& error) const;
  [[noreturn]] void refuse_data(const Batch& batch, const DataError& error);
  [[noreturn]] void refuse(const Batch& batch, double loss, double norm);
  void watch_scores(const EpochRecord& record);
  void train_epoch(const InterruptScope& interrupt, Progress& progress);
  void score_epoch(EpochRecord& record);
  void end_epoch(Progress& progress);
  bool exhausted() const;

  const Segmenter& segmenter_;
  const TrainingPlan& plan_;
  const std::vector<Sequence>& train_;
  const std::vector<Sequence>& dev_;
  const Scorer& score_;
  const TrainerOptions& options_;
  engine::Executable forward_backward_;
  BoundInputs step_inputs_;
  engine::Executable update_;
  BoundInputs update_inputs_;
  optim::ScheduleConfig schedule_;
  std::vector<std::int64_t> lengths_;
  std::vector<Sequence> known_dev_;  // those that have a loss
  Recipe recipe_;
  TrainingState state_;
  LiveState live_;
  std::unique_ptr<Decoder> decoder_;
  bool warned_ = false;
  using Clock = std::chrono::steady_clock;
  Clock::time_point saved_ = Clock::now();
};

/// The state on the host is that of the accelerator.
void Run::fetch() {
  if (!accelerator()) return;
  const auto copy = [](const std::vector<Tensor>& from, std::vector<Tensor>& to) {
    for (std::size_t i = 0; i < from.size(); ++i)
      from[i].device_memory()->copy_to_host(to[i].data(), to[i].bytes());
  };
  copy(live_.parameters, state_.parameters);
  copy(live_.first_moment, state_.first_moment);
  copy(live_.second_moment, state_.second_moment);
  copy(live_.average, state_.average);
}

void Run::restore() {
  if (!std::filesystem::exists(options_.checkpoint)) {
    log(LogLevel::kInfo, "no checkpoint at {}: training starts from the beginning",
        options_.checkpoint.string());
    return;
  }
  state_ = read_checkpoint(options_.checkpoint, segmenter_.parameters(), recipe_);
  log(LogLevel::kInfo, "resuming after {} of {} steps (epoch {})", state_.step,
      schedule_.total_steps, state_.epoch + 1);
}

/// Parameters and moments are bound once; the update changes them in place.
void Run::bind(const Tensor& duration_limit) {
  for (std::size_t i = 0; i < live_.parameters.size(); ++i) {
    const std::string& name = segmenter_.parameters()[i].name;
    step_inputs_.set(name, live_.parameters[i]);
    update_inputs_.set(name, live_.parameters[i]);
    update_inputs_.set("m." + name, live_.first_moment[i]);
    update_inputs_.set("v." + name, live_.second_moment[i]);
    if (!live_.average.empty()) update_inputs_.set("mean." + name, live_.average[i]);
  }
  if (step_inputs_.has("duration_limit"))
    step_inputs_.set("duration_limit", place({duration_limit})[0]);
}

std::string Run::place_of(const Batch& batch) const {
  return fmt::format("step {} (epoch {}, first recording '{}')", state_.step + 1, state_.epoch + 1,
                     train_[static_cast<std::size_t>(batch.rows[0])].id);
}

/// What of the step that was run last goes wrong: its inputs are as they were, nothing was updated.
/// The accelerator's kernels first, which alone know their faults.
std::string Run::offender() {
  std::vector<Tensor> inputs;
  for (const Tensor& input : step_inputs_.tensors()) inputs.push_back(input.to_host());
  std::string why = name_bad_input(forward_backward_.fusion(), inputs);
  try {
    if (why.empty()) why = forward_backward_.look(step_inputs_.tensors());
  } catch (const Error&) {
    // It refuses for the reason that is looked for.
  }
  return why.empty() ? name_offender(forward_backward_.fusion(), inputs, options_.execution.context)
                     : why;
}

/// The CRF refuses scores that are not finite before there is a loss.
void Run::refuse_data(const Batch& batch, const DataError& error) {
  std::string why;
  if (options_.name_offender && !options_.execution.check_numerics) why = offender();
  throw DataError(fmt::format("{}: {}", place_of(batch), why.empty() ? error.what() : why));
}

void Run::refuse(const Batch& batch, double loss, double norm) {
  std::string why;
  if (options_.name_offender) {
    why = offender();
    why = why.empty() ? " (operation by operation it is finite: look with segfuse doctor numerics)"
                      : fmt::format(" ({})", why);
  }
  const bool of_gradient = std::isfinite(loss);
  throw UsageError(fmt::format(
      "the {} of {} is {}{}; lower training.learning_rate or set training.clip",
      of_gradient ? "gradient" : "loss", place_of(batch), of_gradient ? norm : loss, why));
}

/// Scores that large leave the emissions no say, and make sums over segmentations lose digits.
void Run::watch_scores(const EpochRecord& record) {
  if (warned_ || !(record.crf_largest > kLargeScore)) return;
  warned_ = true;
  log(LogLevel::kWarning,
      "after epoch {} the largest parameter of the CRF is {:.1f}; above {:.0f} the emissions "
      "hardly count: --crf-reg 1e-4 or more holds the scores, as a lower training.learning_rate "
      "does",
      record.epoch, record.crf_largest, kLargeScore);
}

/// A batch; its tensors on their way to the accelerator, if there is one.
Batch Run::stage(const std::vector<std::int64_t>& rows) const {
  Batch batch = make_batch(train_, rows, segmenter_.config());
  if (!accelerator()) return batch;
  try {
    for (Tensor* tensor : {&batch.features, &batch.lengths, &batch.labels, &batch.segment_start})
      *tensor = accelerator()->upload(*tensor, "batch");
  } catch (const engine::OutOfDeviceMemory& error) {
    out_of_memory(batch, error);
  }
  return batch;
}

void Run::out_of_memory(const Batch& batch, const engine::OutOfDeviceMemory& error) const {
  const Shape& shape = batch.features.shape();
  throw DeviceError(fmt::format(
      "the batch of {} does not fit the memory of {}: {} recordings, padded to {} frames each; "
      "lower "
      "training.batch_frames (now {}) or training.batch_size (now {}), or cut long recordings.\n{}",
      place_of(batch), accelerator()->name(), shape[0], shape[1], plan_.batch_frames,
      plan_.batch_size, error.what()));
}

/// Forward and backward. On an accelerator the results are on their way.
std::vector<Tensor> Run::start_step(const Batch& batch) {
  bind_batch(step_inputs_, batch, plan_.seed, state_.step);
  try {
    return forward_backward_.run(step_inputs_.tensors());
  } catch (const engine::OutOfDeviceMemory& error) {
    out_of_memory(batch, error);
  } catch (const DataError& error) {
    refuse_data(batch, error);
  }
}

/// Clip and update. Returns the loss, summed over the batch's sequences.
double Run::finish_step(const Batch& batch, const std::vector<Tensor>& results) {
  const double segments = static_cast<double>(std::max<std::int64_t>(batch.segments, 1));
  const double loss = results[0].to_host().at(0);
  const double norm = std::sqrt(results[1].to_host().at(0));
  try {
    forward_backward_.check();
  } catch (const DataError& error) {
    refuse_data(batch, error);
  }
  if (!std::isfinite(loss) || !std::isfinite(norm)) refuse(batch, loss, norm);
  const double clip = plan_.clip > 0 && norm > plan_.clip ? plan_.clip / norm : 1;
  const double t = static_cast<double>(state_.step + 1);
  update_inputs_.set("rate", scalar(optim::learning_rate(schedule_, state_.step)));
  update_inputs_.set("clip", scalar(clip));
  update_inputs_.set("correction1", scalar(1 / (1 - std::pow(plan_.adamw.beta1, t))));
  update_inputs_.set("correction2", scalar(1 / (1 - std::pow(plan_.adamw.beta2, t))));
  for (std::size_t i = 0; i < segmenter_.parameters().size(); ++i)
    update_inputs_.set("gradient." + segmenter_.parameters()[i].name, results[i + 2]);
  try {
    static_cast<void>(update_.run(update_inputs_.tensors()));
  } catch (const engine::OutOfDeviceMemory& error) {
    out_of_memory(batch, error);
  }
  ++state_.step;
  return loss * segments;
}

void Run::train_epoch(const InterruptScope& interrupt, Progress& progress) {
  const auto rows = batches(state_.epoch);
  const auto count = static_cast<std::int64_t>(rows.size());
  const auto batch_at = [&](std::int64_t i) { return stage(rows[static_cast<std::size_t>(i)]); };
  std::optional<Batch> next;
  while (state_.batch < count) {
    if (interrupt.requested()) {
      fetch();
      save();
      throw Interrupted(fmt::format("interrupted in epoch {}; continue with --resume from {}",
                                    state_.epoch + 1, options_.checkpoint.string()));
    }
    if (save_is_due()) {
      fetch();
      save();
    }
    const Batch batch = next ? std::move(*next) : batch_at(state_.batch);
    const std::vector<Tensor> results = start_step(batch);
    // Made and copied while the device is busy with this one.
    next.reset();
    if (accelerator() && state_.batch + 1 < count) next = batch_at(state_.batch + 1);
    state_.epoch_loss += finish_step(batch, results);
    state_.epoch_segments += static_cast<double>(batch.segments);
    ++state_.batch;
    progress.note(fmt::format(
        "epoch {}/{}  loss {:.3f}{}", state_.epoch + 1, plan_.epochs,
        state_.epoch_loss / std::max(1.0, state_.epoch_segments),
        state_.best_epoch > 0 && std::isfinite(state_.best_score)
            ? fmt::format("  best {} {:.3f}", title_of(plan_.select_by), state_.best_score)
            : ""));
    progress.set(state_.step);
  }
}

/// Decodes the development set. Parameters that give it no finite score have diverged.
void Run::score_epoch(EpochRecord& record) {
  std::vector<Decoded> found;
  try {
    double segments = 0;
    for (const Sequence& sequence : known_dev_)
      segments += static_cast<double>(sequence.segments.size());
    if (!known_dev_.empty()) record.dev_loss = decoder_->loss(known_dev_) / std::max(1.0, segments);
    found = decoder_->decode(dev_, {.posteriors = false});
  } catch (const DataError& error) {
    throw UsageError(fmt::format(
        "the development set cannot be scored after epoch {}: {}; the training has diverged: lower "
        "training.learning_rate or set training.clip",
        record.epoch, error.what()));
  }
  std::vector<std::vector<FrameSegment>> decoded;
  for (const Decoded& d : found) {
    decoded.emplace_back();
    for (const DecodedSegment& s : d.segments) decoded.back().push_back(s.segment);
  }
  const DevScores scores = score_(decoded);
  record.dev_error = scores.label_error;
  switch (plan_.select_by) {
    case Selection::kLabelError: record.dev_score = scores.label_error; break;
    case Selection::kBoundaryF1: record.dev_score = scores.boundary_f1; break;
    case Selection::kSegmentF1: record.dev_score = scores.segment_f1; break;
    case Selection::kLoss: record.dev_score = record.dev_loss; break;
  }
}

void Run::end_epoch(Progress& progress) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  fetch();
  EpochRecord record{state_.epoch + 1,
                     state_.epoch_loss / std::max(1.0, state_.epoch_segments),
                     kNaN,
                     kNaN,
                     optim::learning_rate(schedule_, state_.step - 1),
                     largest_magnitude(state_.parameters, segmenter_.parameters(), true),
                     largest_magnitude(state_.parameters, segmenter_.parameters(), false),
                     kNaN};
  const bool last = record.epoch == plan_.epochs;
  const bool scored = !dev_.empty() && (last || record.epoch % plan_.select_every == 0);
  if (scored) score_epoch(record);
  const bool first = state_.best_epoch == 0;
  const bool better =
      dev_.empty() ||
      (std::isfinite(record.dev_score) &&
       (first || (lower_is_better(plan_.select_by) ? record.dev_score < state_.best_score
                                                   : record.dev_score > state_.best_score)));
  if (better) {
    state_.best_score = record.dev_score;
    state_.best_epoch = record.epoch;
    copy_into(evaluated(), state_.best);
  }
  std::string line = fmt::format("epoch {:3}  train loss {:.4f}", record.epoch, record.train_loss);
  if (std::isfinite(record.dev_loss)) line += fmt::format("  dev loss {:.4f}", record.dev_loss);
  if (scored) line += fmt::format("  dev label error {:.4f}", record.dev_error);
  if (scored && plan_.select_by != Selection::kLabelError && plan_.select_by != Selection::kLoss)
    line += fmt::format("  {} {:.4f}", title_of(plan_.select_by), record.dev_score);
  progress.print(line + (scored && better ? "  *" : ""));
  state_.history.push_back(record);
  watch_scores(record);
  state_.epoch_loss = 0;
  state_.epoch_segments = 0;
  state_.batch = 0;
  ++state_.epoch;
  save();
}

bool Run::exhausted() const {
  return plan_.patience > 0 && state_.best_epoch > 0 &&
         state_.epoch - state_.best_epoch >= plan_.patience;
}

TrainingOutcome Run::run() {
  const InterruptScope interrupt;
  Progress progress(options_.name, schedule_.total_steps, {.quiet = options_.quiet});
  while (state_.epoch < plan_.epochs && !exhausted()) {
    train_epoch(interrupt, progress);
    end_epoch(progress);
  }
  progress.finish();
  return {state_.best, state_.best_epoch, state_.epoch < plan_.epochs, recipe_, state_.history};
}

}  // namespace

double largest_magnitude(const std::vector<Tensor>& parameters,
                         const std::vector<nn::ParameterSpec>& specs, bool crf) {
  double largest = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (is_crf(specs[i]) != crf) continue;
    for (const float value : parameters[i].span<float>()) {
      const double size = std::abs(static_cast<double>(value));
      if (!(size <= largest)) largest = size;  // NaN is kept
      if (std::isnan(largest)) return largest;
    }
  }
  return largest;
}

void bind_batch(BoundInputs& inputs, const Batch& batch, std::uint64_t seed, std::int64_t step) {
  inputs.set("features", batch.features);
  inputs.set("lengths", batch.lengths);
  inputs.set("labels", batch.labels);
  if (inputs.has("segment_start")) inputs.set("segment_start", batch.segment_start);
  inputs.set("scale", scalar(1 / static_cast<double>(std::max<std::int64_t>(batch.segments, 1))));
  inputs.set("seed",
             Tensor::from(std::vector<std::int64_t>{static_cast<std::int64_t>(seed), step}, {2}));
}

TrainingOutcome train(const Segmenter& segmenter, const TrainingPlan& plan,
                      std::vector<Tensor> parameters, const Tensor& duration_limit,
                      const std::vector<Sequence>& train, const std::vector<Sequence>& dev,
                      const Scorer& score, const TrainerOptions& options) {
  if (train.empty())
    throw UsageError("the training set is empty; at least one recording with labels is needed");
  return Run(segmenter, plan, std::move(parameters), duration_limit, train, dev, score, options)
      .run();
}

}  // namespace segfuse::learn
