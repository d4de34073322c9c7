#include "learn/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/fnv.h"
#include "base/log.h"
#include "base/os/interrupt.h"
#include "base/progress.h"
#include "engine/device/accelerator.h"
#include "engine/executor.h"
#include "learn/train/checkpoint.h"
#include "learn/train/decoder.h"
#include "learn/train/offender.h"
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

/// A hash over the bytes of whatever makes a run what it is.
class Fingerprint {
 public:
  void add(const void* data, std::size_t bytes) {
    hash_ = fnv1a({static_cast<const char*>(data), bytes}, hash_);
  }
  void add(std::int64_t value) { add(&value, sizeof value); }
  void add(double value) { add(&value, sizeof value); }
  void add(const std::string& text) { add(text.data(), text.size()); }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = kFnvBasis;
};

class Run {
 public:
  Run(ThreadPool& pool, const Segmenter& segmenter, const TrainingPlan& plan,
      std::vector<Tensor> parameters, const Tensor& duration_limit,
      const std::vector<Sequence>& train, const std::vector<Sequence>& dev, const Scorer& dev_error,
      const TrainerOptions& options)
      : pool_(pool),
        segmenter_(segmenter),
        plan_(plan),
        train_(train),
        dev_(dev),
        dev_error_(dev_error),
        options_(options),
        forward_backward_(segmenter.training(plan.crf_reg), pool, options.execution),
        step_inputs_(forward_backward_.fusion()),
        update_(optim::adamw_update(segmenter.parameters(), plan.adamw), pool, options.execution),
        update_inputs_(update_.fusion()) {
    state_.parameters = std::move(parameters);
    state_.first_moment = zeros_like(state_.parameters);
    state_.second_moment = zeros_like(state_.parameters);
    if (plan.adamw.average > 0) state_.average = clone(state_.parameters);
    state_.best = clone(state_.parameters);
    state_.best_error = std::numeric_limits<double>::infinity();
    for (const Sequence& sequence : train) lengths_.push_back(sequence.frames());
    schedule_.peak = plan.learning_rate;
    schedule_.total_steps = 0;
    for (std::int64_t epoch = 0; epoch < plan.epochs; ++epoch) {
      schedule_.total_steps += static_cast<std::int64_t>(batches(epoch).size());
    }
    schedule_.warmup_steps = std::llround(plan.warmup * static_cast<double>(schedule_.total_steps));
    fingerprint_ = fingerprint();
    if (options.resume) restore();
    live_ = {place(state_.parameters), place(state_.first_moment), place(state_.second_moment),
             place(state_.average)};
    bind(duration_limit);
    decoder_ =
        std::make_unique<Decoder>(pool, segmenter, evaluated(), duration_limit, options.execution);
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

  std::uint64_t fingerprint() const;
  void restore();
  void save() {
    write_checkpoint(options_.checkpoint, state_, segmenter_.parameters(), fingerprint_);
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
  void end_epoch(Progress& progress);
  bool exhausted() const;

  ThreadPool& pool_;
  const Segmenter& segmenter_;
  const TrainingPlan& plan_;
  const std::vector<Sequence>& train_;
  const std::vector<Sequence>& dev_;
  const Scorer& dev_error_;
  const TrainerOptions& options_;
  engine::Executable forward_backward_;
  BoundInputs step_inputs_;
  engine::Executable update_;
  BoundInputs update_inputs_;
  optim::ScheduleConfig schedule_;
  std::vector<std::int64_t> lengths_;
  std::uint64_t fingerprint_ = 0;
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

std::uint64_t Run::fingerprint() const {
  Fingerprint f;
  for (const nn::ParameterSpec& spec : segmenter_.parameters()) {
    f.add(spec.name);
    for (const std::int64_t size : spec.shape) f.add(size);
  }
  const ModelConfig& m = segmenter_.config();
  for (const std::int64_t value : m.dilations) f.add(value);
  f.add(static_cast<std::int64_t>(m.head));
  f.add(m.attention_heads);
  f.add(m.dropout);
  for (const std::int64_t value :
       {plan_.epochs, plan_.batch_size, plan_.batch_frames, plan_.patience, plan_.select_every,
        static_cast<std::int64_t>(plan_.seed)})
    f.add(value);
  for (const double value : {plan_.learning_rate, plan_.warmup, plan_.clip, plan_.adamw.beta1,
                             plan_.adamw.beta2, plan_.adamw.weight_decay, plan_.adamw.average})
    f.add(value);
  if (plan_.crf_reg > 0) f.add(plan_.crf_reg);
  for (const auto* set : {&train_, &dev_}) {
    for (const Sequence& sequence : *set) {
      f.add(sequence.id);
      f.add(sequence.frames());
      for (const FrameSegment& s : sequence.segments) f.add(s.start * 1'000'003 + s.label);
    }
  }
  return f.value();
}

void Run::restore() {
  if (!std::filesystem::exists(options_.checkpoint)) {
    log(LogLevel::kInfo, "no checkpoint at {}: training starts from the beginning",
        options_.checkpoint.string());
    return;
  }
  state_ = read_checkpoint(options_.checkpoint, segmenter_.parameters(), fingerprint_);
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
  return why.empty() ? name_offender(pool_, forward_backward_.fusion(), inputs) : why;
}

/// The CRF refuses scores that are not finite before there is a loss.
void Run::refuse_data(const Batch& batch, const DataError& error) {
  std::string why;
  if (options_.name_offender && !options_.execution.check_numerics) why = offender();
  throw DataError("{}: {}", place_of(batch), why.empty() ? error.what() : why);
}

void Run::refuse(const Batch& batch, double loss, double norm) {
  std::string why;
  if (options_.name_offender) {
    why = offender();
    why = why.empty() ? " (operation by operation it is finite: look with segfuse doctor numerics)"
                      : fmt::format(" ({})", why);
  }
  const bool of_gradient = std::isfinite(loss);
  throw UsageError("the {} of {} is {}{}; lower training.learning_rate or set training.clip",
                   of_gradient ? "gradient" : "loss", place_of(batch), of_gradient ? norm : loss,
                   why);
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
  throw DeviceError(
      "the batch of {} does not fit the memory of {}: {} recordings, padded to {} frames each; "
      "lower "
      "training.batch_frames (now {}) or training.batch_size (now {}), or cut long recordings.\n{}",
      place_of(batch), accelerator()->name(), shape[0], shape[1], plan_.batch_frames,
      plan_.batch_size, error.what());
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
      throw Interrupted("interrupted in epoch {}; continue with --resume from {}", state_.epoch + 1,
                        options_.checkpoint.string());
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
    progress.note(fmt::format("epoch {}/{}  loss {:.3f}{}", state_.epoch + 1, plan_.epochs,
                              state_.epoch_loss / std::max(1.0, state_.epoch_segments),
                              state_.best_epoch > 0 && std::isfinite(state_.best_error)
                                  ? fmt::format("  best dev error {:.3f}", state_.best_error)
                                  : ""));
    progress.set(state_.step);
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
                     largest_magnitude(state_.parameters, segmenter_.parameters(), false)};
  const bool last = record.epoch == plan_.epochs;
  if (!dev_.empty() && (last || record.epoch % plan_.select_every == 0)) {
    double segments = 0;
    for (const Sequence& sequence : dev_) segments += static_cast<double>(sequence.segments.size());
    record.dev_loss = decoder_->loss(dev_) / std::max(1.0, segments);
    std::vector<std::vector<FrameSegment>> decoded;
    for (const Decoded& d : decoder_->decode(dev_, {.posteriors = false})) {
      decoded.emplace_back();
      for (const DecodedSegment& s : d.segments) decoded.back().push_back(s.segment);
    }
    record.dev_error = dev_error_(decoded);
  }
  const bool better =
      dev_.empty() || (std::isfinite(record.dev_error) && record.dev_error < state_.best_error);
  if (better) {
    if (!dev_.empty()) state_.best_error = record.dev_error;
    state_.best_epoch = record.epoch;
    copy_into(evaluated(), state_.best);
  }
  progress.print(fmt::format(
      "epoch {:3}  train loss {:.4f}  dev loss {:.4f}  dev label error {:.4f}{}", record.epoch,
      record.train_loss, record.dev_loss, record.dev_error, better ? "  *" : ""));
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
  return {state_.best, state_.best_epoch, state_.epoch < plan_.epochs, state_.history};
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

TrainingOutcome train(ThreadPool& pool, const Segmenter& segmenter, const TrainingPlan& plan,
                      std::vector<Tensor> parameters, const Tensor& duration_limit,
                      const std::vector<Sequence>& train, const std::vector<Sequence>& dev,
                      const Scorer& dev_error, const TrainerOptions& options) {
  if (train.empty())
    throw UsageError("the training set is empty; at least one recording with labels is needed");
  return Run(pool, segmenter, plan, std::move(parameters), duration_limit, train, dev, dev_error,
             options)
      .run();
}

}  // namespace segfuse::learn
