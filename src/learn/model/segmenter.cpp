#include "learn/model/segmenter.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "compiler/attention.h"
#include "compiler/autodiff.h"
#include "ir/builder.h"
#include "learn/model/durations.h"
#include "learn/model/given_encoder.h"
#include "learn/model/products.h"
#include "segfuse/error.h"

namespace segfuse::learn {

using ir::Extent;
using ir::Extents;
using ir::ValId;
using nn::Net;

namespace {

constexpr double kPaddingBias = -1e9;  // added to attention scores of padding frames

struct Scores {
  ValId emission;
  ValId start;  // invalid without boundary scores
  ValId end;
};

struct CrfParameters {
  ValId transition;
  ValId duration;
  ValId initial;
  ValId final;
};

/// Writes the network of one configuration into one Fusion.
class Writer {
 public:
  /// `fusion` is empty, or has the given encoder.
  Writer(const ModelConfig& config, ir::Fusion& fusion, bool training)
      : config_(config), b_(fusion), net_(b_, training ? make_seed(fusion) : ValId{}) {}

  Net& net() { return net_; }
  ir::Builder& builder() { return b_; }

  /// Declares the data inputs. They come after the parameters in Fusion::inputs() only by name;
  /// callers bind by name.
  void declare_data() {
    batch_ = config_.given ? Extent(1) : Extent(b_.fusion().symbol("B"));
    const Extent steps = b_.fusion().symbol("H");  // time steps of the encoder
    time_ = steps * Extent(config_.subsample);
    if (!config_.given)
      features_ =
          b_.fusion().add_input("features", DType::kF32, {batch_, time_, Extent(config_.features)});
    lengths_ = b_.fusion().add_input("lengths", DType::kI64, {batch_});
    steps_ = steps;
  }

  /// Recurrences go on from an earlier piece; before scores().
  void go_on();
  Scores scores();
  /// Behind an encoder whose result is `steps`.
  Scores scores_of(ValId steps);
  /// Products of the encoder are bf16; before scores().
  void round_encoder() { rounds_ = true; }
  CrfParameters crf();
  ValId loss(const Scores& scores);

 private:
  static ValId make_seed(ir::Fusion& fusion) {
    const auto known = std::ranges::find(fusion.inputs(), "seed", &ir::Input::name);
    return known != fusion.inputs().end() ? known->val
                                          : fusion.add_input("seed", DType::kI64, {Extent(2)});
  }
  ValId first_frames();
  ValId frame_mask();
  /// Chosen, not multiplied: what is not finite beyond a sequence's end must not get in.
  ValId masked(ValId x) { return b_.where(inside_, x, b_.constant(0)); }
  ValId conv_block(std::size_t index, ValId x, std::int64_t dilation);
  ValId recurrent_block(std::int64_t index, ValId x);
  ValId attention_block(std::int64_t index, ValId x);
  ValId attention_as_one(ValId x);
  ValId head(const std::string& name, ValId x, double gain);
  ValId softmax_loss(const Scores& scores, ValId labels);
  ValId crf_loss(const Scores& scores, ValId labels);

  const ModelConfig& config_;
  ir::Builder b_;
  Net net_;
  Extent batch_, time_, steps_;
  ValId features_, lengths_, inside_;
  ValId first_;   // of a piece; invalid of a whole sequence
  ValId recurs_;  // (B, H, 1): where recurrences go on
  bool rounds_ = false;
};

/// (1, H): the first frame of each step.
ValId Writer::first_frames() {
  const ValId first =
      b_.mul(b_.iota(steps_), b_.constant(static_cast<double>(config_.subsample), DType::kI64));
  return b_.broadcast(first, {1}, {Extent(1), steps_});
}

/// (B, H, 1): whether a step holds at least one frame of the sequence.
ValId Writer::frame_mask() {
  return b_.unsqueeze(b_.lt(first_frames(), b_.unsqueeze(lengths_, 1)), 2);
}

void Writer::go_on() {
  net_.carry();
  first_ = b_.fusion().add_input("first", DType::kI64, {});
}

ValId Writer::conv_block(std::size_t index, ValId x, std::int64_t dilation) {
  const Net::Scope scope(net_, "block" + std::to_string(index));
  ValId y = masked(net_.layer_norm("norm", x));
  y = b_.relu(net_.conv1d("conv", y, config_.width, config_.kernel, dilation, 1.4, config_.causal));
  y = net_.linear("mix", net_.dropout(y, config_.dropout), config_.width, 0.5);
  return b_.add(x, y);
}

ValId Writer::recurrent_block(std::int64_t index, ValId x) {
  const Net::Scope scope(net_, "recurrent" + std::to_string(index));
  const ValId normed = masked(net_.layer_norm("norm", x));
  const ValId where = b_.broadcast_to(recurs_, {batch_, steps_, 1});
  const ValId y =
      config_.causal
          ? net_.recurrent("forward", normed, config_.recurrence, config_.recurrent_states, where)
          : net_.bidirectional("both", normed, config_.recurrence, config_.recurrent_states, where);
  return b_.add(x, net_.linear("out", net_.dropout(y, config_.dropout), config_.width, 0.5));
}

ValId Writer::attention_block(std::int64_t index, ValId x) {
  const Net::Scope scope(net_, "attention" + std::to_string(index));
  const ValId bias = b_.where(inside_, b_.constant(0), b_.constant(kPaddingBias));  // (B, H, 1)
  const ValId key_bias = b_.reshape(bias, {batch_, Extent(1), Extent(1), steps_});
  const ValId y = net_.self_attention("heads", net_.layer_norm("norm", x), config_.attention_heads,
                                      key_bias, config_.causal);
  return b_.add(x, net_.dropout(y, config_.dropout));
}

/// Attention blocks as operations, which never store weights.
ValId Writer::attention_as_one(ValId x) {
  compiler::Replaced replaced;
  compiler::find_attention(b_.fusion(), std::span(&x, 1), {}, replaced);
  const auto found = replaced.find(x);
  return found == replaced.end() ? x : found->second;
}

/// (B, T, C) scores from the encoder's steps.
ValId Writer::head(const std::string& name, ValId x, double gain) {
  const ValId y = net_.linear(name, x, config_.subsample * config_.classes, gain);
  return b_.reshape(y, {batch_, time_, Extent(config_.classes)});
}

Scores Writer::scores() {
  recurs_ = inside_ = frame_mask();
  if (first_.valid())
    recurs_ = b_.logical_and(inside_, b_.unsqueeze(b_.ge(first_frames(), first_), 2));
  const Extent stacked = config_.subsample * config_.features;
  const ValId frame = b_.broadcast(b_.iota(time_), {1}, {Extent(1), time_});
  const ValId given =
      b_.where(b_.unsqueeze(b_.lt(frame, b_.unsqueeze(lengths_, 1)), 2), features_, b_.constant(0));
  ValId x = b_.reshape(given, {batch_, steps_, stacked});
  x = net_.conv1d("stem", x, config_.width, config_.stem_kernel, 1, 1, config_.causal);
  for (std::size_t i = 0; i < config_.dilations.size(); ++i)
    x = conv_block(i, x, config_.dilations[i]);
  for (std::int64_t i = 0; i < config_.recurrent_blocks; ++i) x = recurrent_block(i, x);
  for (std::int64_t i = 0; i < config_.attention_blocks; ++i) x = attention_block(i, x);
  return scores_of(net_.dropout(b_.relu(net_.layer_norm("norm", x)), config_.dropout));
}

Scores Writer::scores_of(ValId x) {
  const bool are_scores = config_.given && config_.given->encoder().scores;
  if (rounds_) {
    if (!config_.given) x = attention_as_one(x);
    x = round_products(b_.fusion(), x, are_scores);
  }
  if (are_scores) return {b_.reshape(x, {batch_, time_, Extent(config_.classes)}), {}, {}};
  Scores scores{head("emission", x, 1), {}, {}};
  if (config_.boundary_scores && config_.head == HeadKind::kSemiMarkov) {
    scores.start = head("start", x, 0.1);
    scores.end = head("end", x, 0.1);
  }
  return scores;
}

CrfParameters Writer::crf() {
  const std::int64_t c = config_.classes;
  const bool semi = config_.head == HeadKind::kSemiMarkov;
  const Net::Scope scope(net_, "crf");
  CrfParameters p;
  p.transition = net_.parameter("transition", {1, c, c}, {});
  p.initial = net_.parameter("initial", {c}, {});
  p.final = net_.parameter("final", {c}, {});
  p.duration = semi ? net_.parameter("duration",
                                     {semicrf::duration_parameters(duration_model(config_)), c}, {})
                    : b_.full(0, {Extent(1), Extent(c)});
  return p;
}

ValId Writer::softmax_loss(const Scores& scores, ValId labels) {
  const ValId log_p = b_.log_softmax(scores.emission, 2);
  const ValId picked = b_.squeeze(b_.gather(log_p, b_.unsqueeze(labels, 2), 2), {2});
  const ValId frame = b_.broadcast(b_.iota(time_), {1}, {Extent(1), time_});
  const ValId inside = b_.lt(frame, b_.unsqueeze(lengths_, 1));
  return b_.neg(b_.sum(b_.where(inside, picked, b_.constant(0)), {1}));
}

ValId Writer::crf_loss(const Scores& scores, ValId labels) {
  const ValId starts = b_.fusion().add_input("segment_start", DType::kBool, {batch_, time_});
  CrfParameters p = crf();
  if (config_.head == HeadKind::kSemiMarkov) {
    const Extents table{Extent(config_.max_duration), Extent(config_.classes)};
    p.duration = duration_scores(b_, config_, p.duration);
    p.duration = b_.add(p.duration, b_.fusion().add_input("duration_limit", DType::kF32, table));
  }
  if (config_.ordered) {
    const Extent c(config_.classes);
    const auto limited = [&](ValId scores_of, const char* name, const Extents& shape) {
      return b_.add(scores_of, b_.fusion().add_input(name, DType::kF32, shape));
    };
    p.transition = limited(p.transition, "transition_limit", {Extent(1), c, c});
    p.initial = limited(p.initial, "initial_limit", {c});
    p.final = limited(p.final, "final_limit", {c});
  }
  std::vector<ValId> operands{scores.emission, p.transition, p.duration, p.initial, p.final};
  if (scores.start.valid()) operands.insert(operands.end(), {scores.start, scores.end});
  operands.insert(operands.end(), {lengths_, labels, starts});
  return b_.make(ir::Op::semicrf_loss, operands);
}

ValId Writer::loss(const Scores& scores) {
  const ValId labels = b_.fusion().add_input("labels", DType::kI32, {batch_, time_});
  const ValId scale = b_.fusion().add_input("scale", DType::kF32, {});
  const ValId per_sequence =
      config_.head == HeadKind::kSoftmax ? softmax_loss(scores, labels) : crf_loss(scores, labels);
  return b_.mul(b_.sum(per_sequence, {0}), scale);
}

void check(const ModelConfig& config) {
  if (config.features < 1 || config.classes < 1 || config.max_duration < 1)
    throw UsageError(fmt::format(
        "a model needs at least one feature, one label and one frame of duration; found {}, {} and "
        "{}",
        config.features, config.classes, config.max_duration));
  if (config.width < 1 || config.subsample < 1)
    throw UsageError(fmt::format("model.width is {} and model.subsample {}; both must be positive",
                                 config.width, config.subsample));
  if (!config.given) return;
  const GivenEncoder& given = *config.given;
  if (given.columns() != config.features)
    throw UsageError(fmt::format("the encoder takes {} columns; the features have {}",
                                 given.columns(), config.features));
  if (given.encoder().stride != config.subsample)
    throw UsageError(fmt::format("the encoder has the stride {}; model.subsample is {}",
                                 given.encoder().stride, config.subsample));
  if (!given.encoder().scores) return;
  if (given.width() != config.subsample * config.classes)
    throw UsageError(fmt::format(
        "the encoder gives {} numbers a step; scores of {} labels in {} frames are {}",
        given.width(), config.classes, config.subsample, config.subsample * config.classes));
  if (config.boundary_scores)
    throw UsageError(
        "model.boundary_scores needs an encoder that gives features; this one gives the scores of "
        "labels");
}

/// A network as far as its scores, and what they are.
struct Network {
  Network(const ModelConfig& config, const char* name, bool training, bool goes_on = false,
          bool rounds = false)
      : start(config.given ? config.given->start(training) : GivenEncoder::Start{}),
        writer(config, start.fusion, training) {
    start.fusion.set_name(name);
    writer.declare_data();
    if (goes_on) writer.go_on();
    if (rounds) writer.round_encoder();
    if (config.given) {
      for (std::size_t i = 0; i < start.parameters.size(); ++i)
        writer.net().adopt(config.given->parameters()[i], start.parameters[i]);
      scores = writer.scores_of(start.steps);
    } else {
      scores = writer.scores();
    }
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  GivenEncoder::Start start;
  Writer writer;
  Scores scores;
};

}  // namespace

Segmenter::Segmenter(ModelConfig config) : config_(std::move(config)) {
  check(config_);
  Network network(config_, "parameters", false);
  if (config_.head != HeadKind::kSoftmax) (void)network.writer.crf();
  parameters_ = network.writer.net().parameters();
}

std::int64_t Segmenter::max_duration() const noexcept {
  return config_.head == HeadKind::kSemiMarkov ? config_.max_duration : 1;
}

std::int64_t Segmenter::parameter_count() const {
  return std::accumulate(
      parameters_.begin(), parameters_.end(), std::int64_t{0},
      [](std::int64_t sum, const nn::ParameterSpec& p) { return sum + num_elements(p.shape); });
}

std::vector<Tensor> Segmenter::initial(std::uint64_t seed) const {
  const std::size_t given = config_.given ? config_.given->parameters().size() : 0;
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    values.push_back(i < given ? config_.given->initial(i)
                               : nn::initial_value(parameters_[i], seed));
  return values;
}

std::vector<std::pair<std::string, Tensor>> Segmenter::constants() const {
  if (!config_.given) return {};
  return config_.given->constants();
}

bool is_crf(const nn::ParameterSpec& spec) { return spec.name.starts_with("crf."); }

ir::Fusion Segmenter::training(Precision precision) const {
  Network network(config_, "training", true, false, precision == Precision::kBFloat16);
  Writer& writer = network.writer;
  ir::Fusion& fusion = network.start.fusion;
  const ValId loss = writer.loss(network.scores);
  const std::vector<ValId> gradients = compiler::gradients(fusion, loss, writer.net().values());
  fusion.add_output(loss, "loss");
  for (std::size_t i = 0; i < gradients.size(); ++i)
    fusion.add_output(gradients[i], "gradient." + writer.net().parameters()[i].name);
  return std::move(fusion);
}

namespace {

void add_scores(Network& network, HeadKind head) {
  ir::Fusion& fusion = network.start.fusion;
  Scores scores = network.scores;
  if (head == HeadKind::kSoftmax)
    scores.emission = network.writer.builder().log_softmax(scores.emission, 2);
  fusion.add_output(scores.emission, "emission");
  if (scores.start.valid()) {
    fusion.add_output(scores.start, "start");
    fusion.add_output(scores.end, "end");
  }
}

}  // namespace

ir::Fusion Segmenter::inference() const {
  Network network(config_, "inference", false);
  add_scores(network, config_.head);
  return std::move(network.start.fusion);
}

ir::Fusion Segmenter::going_on() const {
  Network network(config_, "going_on", false, true);
  add_scores(network, config_.head);
  for (const Net::Carried& state : network.writer.net().carried())
    network.start.fusion.add_output(state.last, state.name);
  return std::move(network.start.fusion);
}

}  // namespace segfuse::learn
