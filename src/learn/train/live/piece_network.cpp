#include "learn/train/live/piece_network.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/sizes.h"
#include "learn/train/decode/decoder_state.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

/// Steps of the encoder on both sides together that a step of its convolutions depends on.
std::int64_t reach_of(const ModelConfig& config) {
  const std::int64_t dilations =
      std::accumulate(config.dilations.begin(), config.dilations.end(), std::int64_t{0});
  return config.stem_kernel - 1 + dilations * (config.kernel - 1);
}

}  // namespace

std::int32_t PieceScores::best(std::int64_t t, std::int64_t classes) const {
  const float* frame = emission + t * classes;
  return static_cast<std::int32_t>(std::max_element(frame, frame + classes) - frame);
}

PieceNetwork::PieceNetwork(const ModelConfig& config, std::string id, std::int64_t frames,
                           std::string source)
    : id_(std::move(id)),
      source_(std::move(source)),
      columns_(config.features),
      classes_(config.classes),
      piece_((frames + config.subsample - 1) / config.subsample * config.subsample),
      behind_(reach_of(config) / (config.causal ? 1 : 2) * config.subsample),
      ahead_(config.causal ? 0 : behind_),
      period_(config.subsample) {}

void PieceNetwork::push(const Tensor& features, const Run& run, const Take& take) {
  const auto values = features.span<float>();
  if (features.shape()[1] != columns_)
    throw InternalError(fmt::format("{}: {} columns of features, the model has {}", id_,
                                    features.shape()[1], columns_));
  held_.insert(held_.end(), values.begin(), values.end());
  largest_ = largest_size(values, largest_);
  arrived_ += features.shape()[0];
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (arrived_ > kMax)
    throw DataError(fmt::format("{}: the recording has more than {} frames", id_, kMax));
  while (arrived_ >= next_ + piece_ + ahead_) work(next_ + piece_ + ahead_, run, take);
}

void PieceNetwork::finish(const Run& run, const Take& take) {
  while (next_ < arrived_) work(std::min(arrived_, next_ + piece_ + ahead_), run, take);
}

/// The first frame that the network takes for the piece at next_.
std::int64_t PieceNetwork::first_needed() const {
  return std::max<std::int64_t>(0, next_ - behind_) / period_ * period_;
}

/// The piece at next_, which may look at frames before `end`.
void PieceNetwork::work(std::int64_t end, const Run& run, const Take& take) {
  const std::int64_t begin = first_needed();
  Tensor features = Tensor::zeros(DType::kF32, {1, period_ + piece_ + behind_ + ahead_, columns_});
  std::copy_n(held_.begin() + (begin - first_) * columns_, (end - begin) * columns_,
              features.span<float>().begin());
  state_.first = next_ - begin;
  const std::vector<Tensor> scores =
      run(features, Tensor::from(std::vector<std::int64_t>{end - begin}, {1}), state_);
  const std::int64_t frames = std::min(piece_, end - next_);
  const float* own[3] = {};
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto values = std::as_const(scores[i]).span<float>().subspan(
        at((next_ - begin) * classes_), at(frames * classes_));
    if (const auto bad = first_not_finite(values); bad != values.end())
      refuse_score(source_, id_, classes_,
                   {at(next_ * classes_) + at(bad - values.begin()), *bad, largest_});
    own[i] = values.data();
  }
  take(PieceScores{frames, own[0], own[1], own[2]});
  next_ += frames;
  const std::int64_t needed = first_needed();
  held_.erase(held_.begin(), held_.begin() + (needed - first_) * columns_);
  first_ = needed;
}

}  // namespace segfuse::learn
