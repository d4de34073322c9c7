#include "learn/train/live/live_decoding.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "learn/train/decode/decoder_state.h"
#include "segfuse/error.h"

namespace segfuse::learn {

LiveDecoding::LiveDecoding(PieceNetwork network, PieceNetwork::Run run, std::int64_t classes,
                           std::optional<semicrf::OnlineDecoder> best, PieceJoiner joiner,
                           std::string id)
    : network_(std::move(network)),
      run_(std::move(run)),
      take_([this](const PieceScores& scores) { take(scores); }),
      classes_(classes),
      best_(std::move(best)),
      joiner_(std::move(joiner)),
      id_(std::move(id)) {}

void LiveDecoding::take(const PieceScores& scores) {
  if (best_) {
    const auto view = [&](const float* part) -> semicrf::View<const float, 2> {
      if (part == nullptr) return {};
      return {part, {scores.frames, classes_}};
    };
    best_->push(view(scores.emission), decided_, view(scores.start), view(scores.end));
    drain();
  } else {
    for (std::int64_t t = 0; t < scores.frames; ++t)
      joiner_.push({frames_ + t, 1, scores.best(t, classes_)}, whole_);
  }
  frames_ += scores.frames;
}

void LiveDecoding::drain() {
  for (std::size_t i = 0; i < decided_.label.size(); ++i)
    joiner_.push({decided_.start[i], decided_.duration[i], decided_.label[i]}, whole_);
  decided_.clear();
}

/// All but one that ends with the frames that are there: it may be the last, whose end is that of
/// the recording.
std::vector<FrameSegment> LiveDecoding::ready() {
  const auto waits = std::ranges::find_if(whole_, [&](const FrameSegment& segment) {
    return segment.start + segment.duration >= frames_;
  });
  std::vector<FrameSegment> out(whole_.begin(), waits);
  whole_.erase(whole_.begin(), waits);
  return out;
}

std::vector<FrameSegment> LiveDecoding::push(const Tensor& features) {
  network_.push(features, run_, take_);
  return ready();
}

std::vector<FrameSegment> LiveDecoding::finish() {
  network_.finish(run_, take_);
  if (best_ && best_->finish(decided_) != semicrf::RowStatus::kOk) refuse_recording(id_);
  drain();
  joiner_.finish(whole_);
  return std::exchange(whole_, {});
}

std::int64_t Decoder::least_lookahead(std::int64_t piece_frames) const {
  const ModelConfig& config = state_->config;
  const std::int64_t delay = PieceNetwork(config, {}, piece_frames).delay();
  switch (config.head) {
    case HeadKind::kSemiMarkov: return delay + config.max_duration;
    case HeadKind::kLinearChain: return delay + 2;  // the frame behind a run ends it
    case HeadKind::kSoftmax: return delay + 1;
  }
  throw InternalError("a head of no kind");
}

std::unique_ptr<LiveDecoding> Decoder::live(const std::string& id, std::int64_t piece_frames,
                                            std::optional<std::int64_t> lookahead) {
  State& state = *state_;
  const ModelConfig& config = state.config;
  if (config.causal && config.attention_blocks > 0 && !config.given)
    throw UsageError(fmt::format(
        "{}: this model's attention uses all earlier frames, which a stream does not keep; decode "
        "whole recordings, or train a model with model.attention_blocks = 0",
        id));
  if (!can_decode_long({}))
    throw UsageError(
        fmt::format("{}: this model's encoder needs the whole recording at once, which a stream "
                    "does not have; decode whole recordings, or train a model of convolutions, or "
                    "of recurrent blocks with model.causal = true",
                    id));
  const std::int64_t least = least_lookahead(piece_frames);
  if (lookahead && *lookahead < least)
    throw UsageError(fmt::format("{}: the lookahead is {} frames; this model needs {} at least", id,
                                 *lookahead, least));
  state.refresh();
  const bool semi = config.head == HeadKind::kSemiMarkov;
  std::optional<semicrf::OnlineDecoder> best;
  if (config.head != HeadKind::kSoftmax) {
    semicrf::OnlineOptions options;
    if (lookahead) options.max_delay = *lookahead - least + (semi ? config.max_duration : 1);
    best.emplace(state.shared(), options);
  }
  const auto classes = static_cast<std::size_t>(config.classes);
  const bool joins = semi && !config.joins_neighbours.empty();
  PieceJoiner joiner(
      joins ? config.joins_neighbours : std::vector<bool>(classes, !semi),
      joins ? limits_of(state.limits.duration)
            : std::vector<std::int64_t>(classes, std::numeric_limits<std::int64_t>::max()));
  return std::make_unique<LiveDecoding>(
      PieceNetwork(config, id, piece_frames, state.source),
      [&state](const Tensor& x, const Tensor& lengths, PieceState& piece) {
        return state.run_piece(x, lengths, piece);
      },
      config.classes, std::move(best), std::move(joiner), id);
}

}  // namespace segfuse::learn
