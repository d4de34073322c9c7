// Decoding of a recording that is not held: the network over pieces on a fixed grid, the best path
// as it is decided, and the posterior from behind, over scores that were kept.

#include <fmt/core.h>

#include <memory>
#include <optional>

#include "base/context/pool.h"
#include "learn/train/decode/decoder_state.h"
#include "learn/train/decode/posterior/path_posterior.h"
#include "learn/train/live/piece_network.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

/// The CRF heads.
class LongCrf {
 public:
  LongCrf(const semicrf::Potentials<float>& shared, bool semi, const Decoder::Options& options,
          bool boundaries, const std::filesystem::path& scratch)
      : classes_(shared.duration.extent(1)),
        semi_(semi),
        best_(shared, {.log_partition = false}),
        store_(classes_ * (boundaries ? 3 : 1), options.posteriors ? scratch : "") {
    if (!options.posteriors) return;
    if (!scratch.empty()) kept_.emplace(scratch);
    posterior_.emplace(shared, semi, options.tolerance_frames, options.block_frames,
                       kept_ ? &*kept_ : nullptr);
  }
  void take(const PieceScores& scores);
  void finish(const std::string& id, const FrameVisitor& visit, Decoded& out);

 private:
  semicrf::FrameScores<float> views(const float* rows, std::int64_t n) const {
    const auto view = [&](std::int64_t i) -> semicrf::View<const float, 2> {
      if ((i + 1) * classes_ > store_.width()) return {};
      return {rows + i * classes_, {n, classes_}, {store_.width(), 1}};
    };
    return {view(0), view(1), view(2)};
  }
  void drain();

  std::int64_t classes_;
  bool semi_;
  semicrf::OnlineDecoder best_;
  std::optional<NumberFile> kept_;
  std::optional<PathPosterior> posterior_;
  RowStore store_;
  std::vector<float> rows_;
  semicrf::Segmentations decided_;
  semicrf::Segmentations path_;
};

/// Adds what is decided to the path; frames of one label are one segment of a linear chain.
void LongCrf::drain() {
  for (std::size_t i = 0; i < decided_.label.size(); ++i) {
    if (!semi_ && !path_.label.empty() && path_.label.back() == decided_.label[i])
      path_.duration.back() += decided_.duration[i];
    else
      path_.append(decided_.start[i], decided_.duration[i], decided_.label[i]);
  }
  decided_.clear();
}

void LongCrf::take(const PieceScores& scores) {
  rows_.clear();
  for (std::int64_t t = 0; t < scores.frames; ++t)
    for (const float* part : {scores.emission, scores.start, scores.end})
      if (part != nullptr)
        rows_.insert(rows_.end(), part + t * classes_, part + (t + 1) * classes_);
  const semicrf::FrameScores<float> frames = views(rows_.data(), scores.frames);
  best_.push(frames.emission, decided_, frames.start, frames.end);
  drain();
  if (!posterior_) return;
  posterior_->push(frames);
  store_.append(rows_);
}

void LongCrf::finish(const std::string& id, const FrameVisitor& visit, Decoded& out) {
  out.log_probability = best_.best_score();
  if (best_.finish(decided_) != semicrf::RowStatus::kOk) refuse_recording(id);
  drain();
  path_.end_row();
  if (posterior_) {
    const PathPosterior::Reader read = [&](std::int64_t first, std::int64_t n) {
      return views(store_.read(first, n), n);
    };
    return posterior_->describe(path_.view(), read, visit, out);
  }
  for (std::size_t i = 0; i < path_.label.size(); ++i)
    out.segments.push_back({{path_.start[i], path_.duration[i], path_.label[i]}, 0, 0, 0});
}

/// The posterior of frames where decode() has it.
void hold_frames(Decoded& out) {
  out.frames->for_rows([&](std::int64_t, std::span<const float> label, float starts) {
    out.label.insert(out.label.end(), label.begin(), label.end());
    if (out.frames->has_boundary()) out.boundary.push_back(starts);
  });
  out.frames.reset();
}

}  // namespace

std::vector<Tensor> Decoder::State::run_piece(const Tensor& features, const Tensor& lengths,
                                              PieceState& piece) {
  if (!config.carries()) return run(features, lengths);
  if (!going_on) {
    ir::Fusion fusion = Segmenter(config).going_on();
    const BoundInputs unbound(fusion);
    going_on = std::make_unique<GoingOn>(
        GoingOn{engine::Executable(std::move(fusion), pool_of(context), how), unbound});
    bind(going_on->inputs);
  }
  auto& [network, given] = *going_on;
  const ir::Fusion& fusion = network.fusion();
  given.set("features", features);
  given.set("lengths", lengths);
  given.set("first", Tensor::from(std::vector<std::int64_t>{piece.first}, {}));
  std::size_t carried = 0;
  const auto is_carried = [](const std::string& name) { return name.starts_with("carried."); };
  for (const ir::Output& output : fusion.outputs()) {
    if (!is_carried(output.name)) continue;
    if (piece.carried.size() == carried) {
      const ir::Val& state = fusion.val(output.val);
      const std::int64_t columns = fusion.canonical(state.shape.back()).constant();
      piece.carried.push_back(Tensor::zeros(state.dtype, {1, columns}));
    }
    given.set(output.name, piece.carried[carried++]);
  }
  std::vector<Tensor> results = network.run(given.tensors());
  for (Tensor& result : results) result = result.to_host();
  network.check();
  const auto first_state = results.end() - static_cast<std::ptrdiff_t>(carried);
  piece.carried.assign(first_state, results.end());
  results.erase(first_state, results.end());
  return results;
}

bool Decoder::can_decode_long(const Options& options) const {
  return !state_->config.needs_whole() && !options.minimum_risk && options.k_best == 0 &&
         options.samples == 0;
}

Decoded Decoder::decode_long(const std::string& id, const FeaturePieces& next,
                             const Options& options, const std::filesystem::path& scratch) {
  State& state = *state_;
  const ModelConfig& config = state.config;
  if (!can_decode_long(options))
    throw UsageError(fmt::format(
        "{}: this model, or these options, cannot decode a long recording in pieces", id));
  state.refresh();
  PieceNetwork network(config, id, options.piece_frames, state.source);
  const bool semi = config.head == HeadKind::kSemiMarkov;
  const auto run = [&](const Tensor& x, const Tensor& lengths, PieceState& piece) {
    return state.run_piece(x, lengths, piece);
  };
  const auto go_through = [&](const PieceNetwork::Take& take) {
    for (Tensor piece = next(); piece.shape()[0] > 0; piece = next())
      network.push(piece, run, take);
    network.finish(run, take);
  };
  Decoded out;
  FrameVisitor visit;
  if (options.frame_posteriors) {
    out.frames = std::make_shared<FrameRows>(config.classes, config.head != HeadKind::kLinearChain,
                                             config.head != HeadKind::kSoftmax, scratch);
    visit = [&](std::int64_t, std::span<const double> label, double boundary) {
      out.frames->add(label, boundary);
    };
  }
  if (config.head == HeadKind::kSoftmax) {
    FramePosterior frames(config.classes, visit);
    go_through([&](const PieceScores& scores) { frames.push(scores); });
    out.segments = frames.finish();
  } else {
    LongCrf crf(state.shared(), semi, options, semi && config.boundary_scores, scratch);
    go_through([&](const PieceScores& scores) { crf.take(scores); });
    crf.finish(id, visit, out);
  }
  if (out.frames && scratch.empty()) hold_frames(out);
  if (!config.joins_neighbours.empty() && semi) state.join(out, {});
  return out;
}

}  // namespace segfuse::learn
