#include "learn/train/loop/trainer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/code/blake2b.h"
#include "base/console/log.h"
#include "base/console/progress.h"
#include "base/context/pool.h"
#include "base/os/file.h"
#include "base/os/interrupt.h"
#include "engine/device/accelerator.h"
#include "learn/data/buckets.h"
#include "learn/train/decode/decoder.h"
#include "learn/train/decode/on_ranks.h"
#include "learn/train/files/checkpoint.h"
#include "learn/train/loop/company.h"
#include "learn/train/loop/ranks.h"
#include "learn/train/loop/training_step.h"
#include "learn/train/loop/watch.h"
#include "segfuse/error.h"
#include "segfuse/version.h"

namespace segfuse::learn {
namespace {

using comm::meet::Phase;

void copy_into(const std::vector<Tensor>& from, std::vector<Tensor>& to) {
  for (std::size_t i = 0; i < from.size(); ++i)
    std::memcpy(to[i].data(), from[i].data(), from[i].bytes());
}

std::vector<Tensor> clone(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

/// Whether every gold label is one that the model has.
bool all_known(const Sequence& sequence) {
  return std::ranges::none_of(sequence.segments,
                              [](const FrameSegment& s) { return s.label == kUnknownLabel; });
}

/// What ranks that come later compare theirs with.
constexpr const char* kRecipeNote = "recipe";

Recipe parse_recipe(const std::string& text) {
  constexpr const char* kPlace = "the recipe of a rank";
  const Json json = parse_json(text, kPlace);
  return recipe_from_json(JsonPlace(json, kPlace));
}

/// That text, or its hash where it is too long for a note.
std::string short_text(const std::string& recipe) {
  constexpr std::size_t kLongest = std::size_t{16} << 10;
  return recipe.size() <= kLongest ? recipe : blake2b_hex(recipe);
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

bool better_score(Selection by, double score, double than) {
  return lower_is_better(by) ? score < than : score > than;
}

class Run {
 public:
  Run(const Segmenter& segmenter, const TrainingPlan& plan, std::vector<Tensor> parameters,
      const Limits& limits, const std::vector<Sequence>& train, const std::vector<Sequence>& dev,
      const Scorer& score, const TrainerOptions& options)
      : segmenter_(segmenter),
        plan_(plan),
        train_(train),
        dev_(dev),
        score_(score),
        options_(options),
        ranks_(options.group, plan.shards, options.watch),
        layout_(segmenter.parameters(), is_crf) {
    state_.parameters = std::move(parameters);
    state_.best = clone(state_.parameters);
    for (const Sequence& sequence : train) lengths_.push_back(sequence.frames());
    schedule_.peak = plan.learning_rate;
    schedule_.total_steps = 0;
    for (std::int64_t epoch = 0; epoch < plan.epochs; ++epoch) {
      schedule_.total_steps += static_cast<std::int64_t>(steps(epoch).size());
    }
    schedule_.warmup_steps = std::llround(plan.warmup * static_cast<double>(schedule_.total_steps));
    for (const Sequence& sequence : dev)
      if (all_known(sequence)) known_dev_.push_back(sequence);
    if (plan.select_by == Selection::kLoss && !dev.empty() && known_dev_.empty())
      throw UsageError(
          "every development recording has labels that the training set lacks, so no loss can "
          "select the epoch; set training.select_by to label_error");
    recipe_ = options.recipe;
    add_data(recipe_, "training", train);
    add_data(recipe_, "development", dev);
    compare_recipes();
    ranks_.choose_exchange(options.comm, accelerator().get(), options.nccl);
    if (options.resume) restore();
    flatten();
    const std::int64_t piece = ranks_.overlaps() ? kSumPiece : 0;
    step_.emplace(segmenter,
                  StepOptions{plan.shards, plan.crf_reg, plan.adamw, piece, plan.precision}, flat_,
                  layout_, limits.named(), options.execution);
    decoder_ = std::make_unique<Decoder>(segmenter, evaluated(), limits, options.execution);
  }

  TrainingOutcome run();

 private:
  /// The rows of each shard of each step.
  using Step = std::vector<std::vector<std::int64_t>>;
  std::vector<Step> steps(std::int64_t epoch) const {
    return make_steps(lengths_, shard_batches(plan_), plan_.shards, epoch);
  }
  ShardPlace place_of(const Step& step, std::size_t shard) const;
  /// Those of this rank.
  comm::ShardRange shards_of(const Step& step) const {
    const auto present = static_cast<std::int64_t>(step.size());
    const comm::ShardRange own = ranks_.shards();
    return {std::min(own.begin, present), std::min(own.end, present)};
  }
  /// The parameters that decode: their running mean where there is one.
  const std::vector<Tensor>& evaluated() const {
    return state_.average.empty() ? state_.parameters : state_.average;
  }

  const std::shared_ptr<engine::Accelerator>& accelerator() const {
    return options_.execution.accelerator;
  }
  void compare_recipes();
  void compare_with(const std::string& others, const Recipe& own) const;
  void restore();
  void flatten();
  void take_in();
  void take_state(const std::string& bytes);
  void save() {
    if (!ranks_.leads()) return;
    ranks_.report(Phase::kSaving, state_.step);
    write_checkpoint(options_.checkpoint, state_, segmenter_.parameters(), recipe_);
    saved_ = Clock::now();
  }
  bool save_is_due() const {
    return ranks_.leads() && options_.checkpoint_seconds > 0 &&
           std::chrono::duration<double>(Clock::now() - saved_).count() >=
               options_.checkpoint_seconds;
  }
  Batch stage(const std::vector<std::int64_t>& rows) const;
  void compute(const Step& step, std::optional<Batch>& next, const Step* after);
  std::vector<float> losses(const Step& step);
  double sum_step(const Step& step, std::optional<Batch>& next, const Step* after, double& norm);
  double run_step(const Step& step, std::optional<Batch>& next, const Step* after);
  std::string name_of(const std::vector<std::int64_t>& rows) const;
  [[noreturn]] void out_of_memory(const std::vector<std::int64_t>& rows,
                                  const engine::OutOfDeviceMemory& error) const;
  [[noreturn]] void refuse_data(const Step& step, const DataError& error);
  [[noreturn]] void refuse(const Step& step, double loss, double norm);
  void watch_scores(const EpochRecord& record);
  void train_epoch(std::optional<InterruptScope>& interrupt, Progress& progress);
  void score_epoch(EpochRecord& record);
  void share(EpochRecord& record);
  bool is_better(const EpochRecord& record) const;
  void end_epoch(Progress& progress);
  bool exhausted() const;

  const Segmenter& segmenter_;
  const TrainingPlan& plan_;
  const std::vector<Sequence>& train_;
  const std::vector<Sequence>& dev_;
  const Scorer& score_;
  const TrainerOptions& options_;
  TrainingRanks ranks_;
  optim::FlatLayout layout_;
  optim::ScheduleConfig schedule_;
  std::vector<std::int64_t> lengths_;
  std::vector<Sequence> known_dev_;  // those that have a loss
  Recipe recipe_;
  TrainingState state_;  // its tensors are the parts of flat_
  FlatState flat_;
  std::optional<TrainingStep> step_;
  std::unique_ptr<Decoder> decoder_;
  bool warned_ = false;
  bool stop_ = false;
  bool somebody_waits_ = false;  ///< to be taken in
  using Clock = std::chrono::steady_clock;
  Clock::time_point saved_ = Clock::now();
};

/// Refuses ranks that train something else.
void Run::compare_recipes() {
  if (ranks_.alone()) return;
  Recipe own = recipe_;
  own.emplace_back("version of segfuse", version());
  // Others cut the programs differently, so gradients have other last digits.
  own.emplace_back("back end", options_.execution.backend);
  own.emplace_back("device", accelerator() ? "a GPU" : "the CPU");
  if (ranks_.is_outside()) return compare_with(ranks_.note(kRecipeNote), own);
  const std::vector<std::string> all = ranks_.gather(json_text(recipe_json(own)));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::string different = differences(parse_recipe(all[0]), parse_recipe(all[rank]));
    if (different.empty()) continue;
    ranks_.let_leader_speak();
    throw UsageError(fmt::format(
        "rank {} does not train the same as rank 0 (then: rank 0, now: rank {}: {}); start all "
        "ranks with the same configuration, data, back end and version of segfuse",
        rank, rank, different));
  }
  ranks_.leave_note(kRecipeNote, short_text(all[0]));
}

/// Refuses to join ranks that train something else, before they wait for this one.
void Run::compare_with(const std::string& others, const Recipe& own) const {
  const std::string text = json_text(recipe_json(own));
  if (others == short_text(text)) return;
  throw UsageError(fmt::format(
      "this process cannot join the ranks, which do not train the same{}; start it with the same "
      "configuration, data, back end and version of segfuse",
      others.starts_with('{') ? fmt::format(" (then: they, now: this process: {})",
                                            differences(parse_recipe(others), own))
                              : ""));
}

/// Ranks that came later get the state; this one, too, where it is one of them.
void Run::take_in() {
  ranks_.take_in(
      [&] {
        step_->fetch(flat_);
        return safetensors_bytes(file_of(state_, segmenter_.parameters(), recipe_));
      },
      [&](const std::string& bytes) { take_state(bytes); });
}

void Run::take_state(const std::string& bytes) {
  const std::string source = "the state of rank 0";
  TrainingState now =
      state_of(parse_safetensors(bytes, source), source, segmenter_.parameters(), recipe_);
  // Steps have the memory of these.
  for (const auto tensors :
       {&TrainingState::parameters, &TrainingState::first_moment, &TrainingState::second_moment,
        &TrainingState::average, &TrainingState::best}) {
    copy_into(now.*tensors, state_.*tensors);
    now.*tensors = std::move(state_.*tensors);
  }
  state_ = std::move(now);
  step_->load(flat_);
}

void Run::restore() {
  const std::string& path = options_.checkpoint.string();
  const bool there =
      ranks_.leads() && !options_.starts_anew && std::filesystem::exists(options_.checkpoint);
  const std::string bytes = ranks_.from_leader(there ? read_file(options_.checkpoint) : "");
  if (bytes.empty()) {
    if (ranks_.leads() && !options_.starts_anew)
      log(LogLevel::kInfo, "no checkpoint at {}: training starts from the beginning", path);
    return;
  }
  state_ = state_of(parse_safetensors(bytes, path), path, segmenter_.parameters(), recipe_);
  if (ranks_.leads())
    log(LogLevel::kInfo, "resuming after {} of {} steps (epoch {})", state_.step,
        schedule_.total_steps, state_.epoch + 1);
}

/// The state in one vector each, of which state_ has the parts.
void Run::flatten() {
  using optim::FlatTensors;
  const auto moment = [&](std::vector<Tensor>& tensors) {
    return tensors.empty() ? FlatTensors::zeros(layout_) : FlatTensors::copy(layout_, tensors);
  };
  flat_.parameters = FlatTensors::copy(layout_, state_.parameters);
  flat_.first_moment = moment(state_.first_moment);
  flat_.second_moment = moment(state_.second_moment);
  if (plan_.adamw.average > 0)
    flat_.average =
        FlatTensors::copy(layout_, state_.average.empty() ? state_.parameters : state_.average);
  state_.parameters = flat_.parameters.parts;
  state_.first_moment = flat_.first_moment.parts;
  state_.second_moment = flat_.second_moment.parts;
  state_.average = flat_.average.parts;
}

ShardPlace Run::place_of(const Step& step, std::size_t shard) const {
  ShardPlace place{plan_.seed, state_.step * plan_.shards + static_cast<std::int64_t>(shard), 0};
  for (const std::vector<std::int64_t>& rows : step)
    for (const std::int64_t row : rows)
      place.segments +=
          static_cast<std::int64_t>(train_[static_cast<std::size_t>(row)].segments.size());
  return place;
}

std::string Run::name_of(const std::vector<std::int64_t>& rows) const {
  return fmt::format("step {} (epoch {}, first recording '{}')", state_.step + 1, state_.epoch + 1,
                     train_[static_cast<std::size_t>(rows[0])].id);
}

/// The CRF refuses scores that are not finite before there is a loss. Which shard it was is found
/// by running each of them again: nothing was updated.
void Run::refuse_data(const Step& step, const DataError& error) {
  const bool look = options_.name_offender && !options_.execution.check_numerics;
  const comm::ShardRange own = shards_of(step);
  for (std::int64_t s = own.begin; s < own.end && (look || step.size() > 1); ++s) {
    const auto shard = static_cast<std::size_t>(s);
    const auto verdict = step_->examine(stage(step[shard]), place_of(step, shard), look);
    if (!verdict.finite)
      throw DataError(fmt::format("{}: {}", name_of(step[shard]),
                                  verdict.why.empty() ? error.what() : verdict.why));
  }
  throw DataError(
      fmt::format("{}: {}", name_of(step[static_cast<std::size_t>(own.begin)]), error.what()));
}

/// Each rank looks at its shards; the first that is guilty is named.
void Run::refuse(const Step& step, double loss, double norm) {
  const bool of_gradient = std::isfinite(loss);
  const auto sentence = [&](std::size_t shard, const std::string& why) {
    return fmt::format("the {} of {} is {}{}; lower training.learning_rate or set training.clip",
                       of_gradient ? "gradient" : "loss", name_of(step[shard]),
                       of_gradient ? norm : loss, why);
  };
  std::string found;
  const comm::ShardRange own = shards_of(step);
  for (std::int64_t s = own.begin; s < own.end && options_.name_offender && found.empty(); ++s) {
    const auto shard = static_cast<std::size_t>(s);
    const auto verdict = step_->examine(stage(step[shard]), place_of(step, shard), true);
    if (!verdict.finite && !verdict.why.empty())
      found = sentence(shard, fmt::format(" ({})", verdict.why));
  }
  found = ranks_.first_of(found);
  if (found.empty())
    found = sentence(0, options_.name_offender ? " (computed operation by operation it is finite; "
                                                 "examine it with segfuse doctor numerics)"
                                               : "");
  ranks_.let_leader_speak();
  throw UsageError(found);
}

/// Scores that large leave the emissions no say, and make sums over segmentations lose digits.
void Run::watch_scores(const EpochRecord& record) {
  if (warned_ || !ranks_.leads() || !(record.crf_largest > kLargeScore)) return;
  warned_ = true;
  log(LogLevel::kWarning,
      "after epoch {} the largest parameter of the CRF is {:.1f}; above {:.0f} the emissions "
      "hardly matter; pass --crf-reg 1e-4 or more, or lower training.learning_rate",
      record.epoch, record.crf_largest, kLargeScore);
}

/// A batch; its tensors on their way to the accelerator, if there is one.
Batch Run::stage(const std::vector<std::int64_t>& rows) const {
  Batch batch = make_batch(train_, rows, segmenter_.config());
  if (options_.augmenter != nullptr)
    augment(batch, *options_.augmenter, state_.epoch, pool_of(options_.execution.context));
  try {
    step_->stage(batch);
  } catch (const engine::OutOfDeviceMemory& error) {
    out_of_memory(rows, error);
  }
  return batch;
}

void Run::out_of_memory(const std::vector<std::int64_t>& rows,
                        const engine::OutOfDeviceMemory& error) const {
  std::int64_t longest = 0;
  for (const std::int64_t row : rows)
    longest = std::max(longest, lengths_[static_cast<std::size_t>(row)]);
  throw DeviceError(fmt::format(
      "the batch of {} does not fit the memory of {}: {} recordings, padded to {} frames each; "
      "lower training.batch_frames (now {}) or training.batch_size (now {}), raise training.shards "
      "(now {}), or cut long recordings.\n{}",
      name_of(rows), accelerator()->name(), rows.size(), longest, plan_.batch_frames,
      plan_.batch_size, plan_.shards, error.what()));
}

/// Forward and backward of this rank's shards, which may be on their way when this returns. The
/// batch that comes next is made and copied while the device is busy.
void Run::compute(const Step& step, std::optional<Batch>& next, const Step* after) {
  const comm::ShardRange own = shards_of(step);
  const auto end = static_cast<std::size_t>(own.end);
  auto shard = static_cast<std::size_t>(own.begin);
  step_->begin(static_cast<std::int64_t>(step.size()), own.begin);
  try {
    for (; shard < end; ++shard) {
      ranks_.report(Phase::kForward, state_.step + 1, static_cast<std::int64_t>(shard));
      const Batch batch = next ? std::move(*next) : stage(step[shard]);
      next.reset();
      step_->add(batch, place_of(step, shard));
      if (!accelerator()) continue;
      if (shard + 1 < end)
        next = stage(step[shard + 1]);
      else if (after != nullptr && shards_of(*after).begin < shards_of(*after).end)
        next = stage((*after)[static_cast<std::size_t>(shards_of(*after).begin)]);
    }
  } catch (const engine::OutOfDeviceMemory& error) {
    out_of_memory(step[std::min(shard, end - 1)], error);
  } catch (const DataError& error) {
    refuse_data(step, error);
  }
}

std::vector<float> Run::losses(const Step& step) {
  try {
    return step_->losses();
  } catch (const DataError& error) {
    refuse_data(step, error);
  }
}

/// The gradient of a step, with all ranks, and its norm; returns the loss. It leaves the state as
/// it is, so that it can be done again.
double Run::sum_step(const Step& step, std::optional<Batch>& next, const Step* after,
                     double& norm) {
  if (ranks_.deal_again()) next.reset();  // it may be of another rank's shard
  TrainingRanks::Report own{{}, stop_};
  const auto timed = [&](const auto& work) {
    const Clock::time_point begin = Clock::now();
    try {
      work();
    } catch (const Error& error) {
      if (ranks_.alone()) throw;
      own.failure = failure_text(error);
    }
    own.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  };
  timed([&] { compute(step, next, after); });
  // Sums that only some ranks begin would never end.
  if (ranks_.overlaps() && ranks_.all_ready(own.failure.empty(), step_->pieces()))
    step_->start_sum(ranks_);
  if (own.failure.empty()) timed([&] { own.losses = losses(step); });
  ranks_.report(Phase::kExchange, state_.step + 1);
  const TrainingRanks::Report all = ranks_.join(own);
  stop_ = all.stop;
  somebody_waits_ = all.take_in;
  double loss = 0;
  for (const float of_shard : all.losses) loss += static_cast<double>(of_shard);
  norm = step_->reduce(ranks_);
  if (!std::isfinite(loss) || !std::isfinite(norm)) refuse(step, loss, norm);
  return loss;
}

/// A step with all ranks. Returns the loss, summed over its sequences.
double Run::run_step(const Step& step, std::optional<Batch>& next, const Step* after) {
  double loss = 0;
  double norm = 0;
  const std::int64_t segments = place_of(step, 0).segments;
  try {
    // What all have done is done: the update is each rank's own, and the same on all.
    ranks_.together([&] { loss = sum_step(step, next, after, norm); });
    const double clip = plan_.clip > 0 && norm > plan_.clip ? plan_.clip / norm : 1;
    ranks_.report(Phase::kUpdate, state_.step + 1);
    step_->update(optim::learning_rate(schedule_, state_.step), clip, state_.step + 1);
  } catch (const engine::OutOfDeviceMemory& error) {
    out_of_memory(step[0], error);
  }
  ++state_.step;
  return loss * static_cast<double>(std::max<std::int64_t>(segments, 1));
}

void Run::train_epoch(std::optional<InterruptScope>& interrupt, Progress& progress) {
  const std::vector<Step> all = steps(state_.epoch);
  const auto count = static_cast<std::int64_t>(all.size());
  std::optional<Batch> next;
  while (state_.batch < count) {
    // One rank's wish goes round with the step: all end after the same one.
    if (stop_ || (ranks_.alone() && interrupt && interrupt->requested())) {
      step_->fetch(flat_);
      save();
      if (interrupt && !ranks_.alone()) interrupt->ignore_others();
      ranks_.let_leader_speak();
      throw Interrupted(fmt::format("interrupted in epoch {}; continue with --resume from {}",
                                    state_.epoch + 1, options_.checkpoint.string()));
    }
    if (somebody_waits_) take_in();
    somebody_waits_ = false;
    stop_ = interrupt && interrupt->requested();
    if (save_is_due()) {
      step_->fetch(flat_);
      save();
    }
    const Step& step = all[static_cast<std::size_t>(state_.batch)];
    const Step* const after =
        state_.batch + 1 < count ? &all[static_cast<std::size_t>(state_.batch) + 1] : nullptr;
    state_.epoch_segments += static_cast<double>(place_of(step, 0).segments);
    state_.epoch_loss += run_step(step, next, after);
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
    if (!known_dev_.empty())
      record.dev_loss =
          loss_on_ranks(*decoder_, known_dev_, options_.group) / std::max(1.0, segments);
    found = decode_on_ranks(*decoder_, dev_, {.posteriors = false}, options_.group);
  } catch (const DataError& error) {
    throw UsageError(
        fmt::format("the development set cannot be evaluated after epoch {}: {}; the training "
                    "diverged; lower training.learning_rate or set training.clip",
                    record.epoch, error.what()));
  }
  if (!ranks_.leads()) return;
  const DevScores scores = score_(segments_of(found));
  record.dev_error = scores.label_error;
  const bool by_loss = plan_.select_by == Selection::kLoss;
  record.dev_score = by_loss ? record.dev_loss : score_of(scores, plan_.select_by);
}

/// The scores of the leading rank, on all.
void Run::share(EpochRecord& record) {
  double scores[] = {record.dev_loss, record.dev_error, record.dev_score};
  const std::string all = ranks_.from_leader({reinterpret_cast<char*>(scores), sizeof(scores)});
  std::memcpy(scores, all.data(), sizeof(scores));
  record.dev_loss = scores[0];
  record.dev_error = scores[1];
  record.dev_score = scores[2];
}

/// Than the best one so far: by the criterion, among equals by the loss.
bool Run::is_better(const EpochRecord& record) const {
  if (dev_.empty()) return true;
  if (!std::isfinite(record.dev_score)) return false;
  if (state_.best_epoch == 0) return true;
  if (record.dev_score != state_.best_score)
    return better_score(plan_.select_by, record.dev_score, state_.best_score);
  return record.dev_loss < state_.history[static_cast<std::size_t>(state_.best_epoch) - 1].dev_loss;
}

void Run::end_epoch(Progress& progress) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  step_->fetch(flat_);
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
  if (scored) {
    ranks_.report(Phase::kScoring, state_.step);
    score_epoch(record);
  }
  share(record);
  const bool better = is_better(record);
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

/// A lower loss among equals is no reason to go on.
bool Run::exhausted() const {
  if (plan_.patience == 0 || state_.best_epoch == 0 || dev_.empty()) return false;
  const EpochRecord* best = nullptr;
  for (const EpochRecord& record : state_.history)
    if (std::isfinite(record.dev_score) &&
        (best == nullptr || better_score(plan_.select_by, record.dev_score, best->dev_score)))
      best = &record;
  return best != nullptr && state_.epoch - best->epoch >= plan_.patience;
}

TrainingOutcome Run::run() {
  if (ranks_.is_outside()) {
    ranks_.report(Phase::kStarting, 0);
    take_in();  // until then a signal ends this process as if it trained nothing
  }
  std::optional<InterruptScope> interrupt;
  if (options_.interruptible) interrupt.emplace();
  Progress progress(options_.name, schedule_.total_steps,
                    {.quiet = options_.quiet || !ranks_.leads()});
  while (state_.epoch < plan_.epochs && !exhausted()) {
    train_epoch(interrupt, progress);
    end_epoch(progress);
  }
  progress.finish();
  ranks_.finish();
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

double score_of(const DevScores& scores, Selection selection) {
  switch (selection) {
    case Selection::kBoundaryF1: return scores.boundary_f1;
    case Selection::kSegmentF1: return scores.segment_f1;
    case Selection::kLabelError:
    case Selection::kLoss: break;
  }
  return scores.label_error;
}

TrainingOutcome train(const Segmenter& segmenter, const TrainingPlan& plan,
                      std::vector<Tensor> parameters, const Limits& limits,
                      const std::vector<Sequence>& train, const std::vector<Sequence>& dev,
                      const Scorer& score, const TrainerOptions& options) {
  if (train.empty())
    throw UsageError("the training set is empty; at least one recording with labels is needed");
  return Run(segmenter, plan, std::move(parameters), limits, train, dev, score, options).run();
}

}  // namespace segfuse::learn
