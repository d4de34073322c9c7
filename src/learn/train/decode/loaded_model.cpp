#include "learn/train/decode/loaded_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "learn/train/decode/orders.h"
#include "learn/train/live/live_decoding.h"
#include "segfuse/error.h"

namespace segfuse::learn {

TrainedModel open_model(const std::filesystem::path& given, const std::string& channel,
                        std::string_view channel_is) {
  const std::filesystem::path path = model_path(given);
  TrainedModel model = read_model(path);
  check_parameters(model, path);
  if (channel.empty()) return model;
  try {
    model.config.features.channel = audio_channel(channel, channel_is);
  } catch (const DataError& error) {
    throw UsageError(error.what());
  }
  return model;
}

LoadedModel::LoadedModel(TrainedModel model, const Context& context)
    : model_(std::move(model)),
      extractor_(model_.config.features),
      decoder_(Segmenter(model_.config.model), model_.parameters, model_.limits(),
               engine::executable_options(context), model_.source) {}

Decoder::Options LoadedModel::how(const InferenceOptions& options) const {
  const auto check = [](const char* what, std::int64_t count, std::int64_t most) {
    if (count < 0 || count > most)
      throw UsageError(fmt::format("{} is {}; expected 0 to {}", what, count, most));
  };
  check("k-best", options.k_best, kMaxBest);
  check("samples", options.samples, kMaxSamples);
  Decoder::Options how;
  how.tolerance_frames =
      static_cast<std::int64_t>(model_.config.tolerances.front() / extractor_.hop_seconds() + 1e-9);
  how.minimum_risk = options.minimum_risk;
  how.k_best = options.k_best;
  how.samples = options.samples;
  how.seed = options.seed;
  how.frame_posteriors = options.posteriors;
  return how;
}

std::unique_ptr<LiveDecoding> LoadedModel::live(const std::string& id, std::int64_t piece_frames,
                                                std::optional<std::int64_t> lookahead) {
  return decoder_.live(id, piece_frames, lookahead);
}

std::int64_t LoadedModel::least_lookahead(std::int64_t piece_frames) const {
  return decoder_.least_lookahead(piece_frames);
}

SegmentRules LoadedModel::rules() const { return segment_rules(model_); }

std::vector<Decoded> LoadedModel::align(const std::vector<Sequence>& sequences,
                                        const std::vector<semicrf::LabelOrders>& orders) {
  return decoder_.align(sequences, orders, rules().pieces);
}

void LoadedModel::normalise(const std::string& id, Tensor& features) const {
  const auto columns = static_cast<std::int64_t>(model_.normalisation.mean.size());
  if (features.shape()[1] != columns)
    throw DataError(
        fmt::format("{}: its features have {} columns, those of the model {}; all recordings need "
                    "the same channels or values",
                    id, features.shape()[1], columns));
  model_.normalisation.apply(features);
}

Sequence LoadedModel::sequence_of(std::string id, Tensor features) const {
  normalise(id, features);
  return {std::move(id), std::move(features), {}};
}

namespace {

/// The features of a sequence that is held, some frames at a time.
FeaturePieces pieces_of(const Sequence& sequence) {
  return [&sequence, next = std::int64_t{0}]() mutable {
    constexpr std::int64_t kPiece = 4096;
    const std::int64_t columns = sequence.features.shape()[1];
    const std::int64_t n = std::min(kPiece, sequence.frames() - next);
    Tensor piece(DType::kF32, {n, columns});
    std::copy_n(sequence.features.span<float>().begin() + next * columns, n * columns,
                piece.span<float>().begin());
    next += n;
    return piece;
  };
}

Tensor joined(const std::vector<Tensor>& pieces, std::int64_t frames) {
  Tensor whole(DType::kF32, {frames, pieces.front().shape()[1]});
  auto to = whole.span<float>().begin();
  for (const Tensor& piece : pieces) to = std::ranges::copy(piece.span<float>(), to).out;
  return whole;
}

}  // namespace

std::vector<Decoded> LoadedModel::decode(const std::vector<Sequence>& sequences,
                                         const Decoder::Options& how) {
  std::vector<Decoded> results(sequences.size());
  std::vector<Sequence> others;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (is_long(sequences[i].frames(), how) && sequences[i].known.empty()) {
      results[i] = decoder_.decode_long(sequences[i].id, pieces_of(sequences[i]), how);
    } else {
      others.push_back(sequences[i]);
      places.push_back(i);
    }
  }
  std::vector<Decoded> decoded = decoder_.decode(others, how);
  for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = std::move(decoded[i]);
  return results;
}

Decoded LoadedModel::decode(const std::string& id, const FeaturePieces& next,
                            const Decoder::Options& how, const std::filesystem::path& scratch) {
  std::vector<Tensor> ahead;
  std::int64_t frames = 0;
  const FeaturePieces normalised = [&] {
    Tensor piece = next();
    if (piece.shape()[0] > 0) normalise(id, piece);
    return piece;
  };
  while (!is_long(frames, how)) {
    Tensor piece = normalised();
    if (piece.shape()[0] == 0)
      return std::move(decoder_.decode({{id, joined(ahead, frames), {}}}, how).front());
    frames += piece.shape()[0];
    ahead.push_back(std::move(piece));
  }
  std::size_t given = 0;
  return decoder_.decode_long(
      id,
      [&] {
        if (given == ahead.size()) return normalised();
        return std::exchange(ahead[given++], Tensor::zeros(DType::kF32, {0}));
      },
      how, scratch);
}

}  // namespace segfuse::learn
