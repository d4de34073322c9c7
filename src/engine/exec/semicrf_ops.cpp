#include "engine/exec/semicrf_ops.h"

#include <fmt/core.h>

#include "engine/exec/crf_views.h"
#include "segfuse/error.h"

namespace segfuse::engine {
namespace {

std::int64_t integer(const Array& array, std::int64_t offset) {
  switch (array.dtype) {
    case DType::kBool: return array.as<const std::uint8_t>()[offset];
    case DType::kI32: return array.as<const std::int32_t>()[offset];
    default: return array.as<const std::int64_t>()[offset];
  }
}

}  // namespace

void SemicrfOps::read_gold(std::span<const Array> operands, std::size_t scores) {
  const Array& lengths = operands[scores];
  const Array& labels = operands[scores + 1];
  const Array& starts = operands[scores + 2];
  gold_.clear();
  for (std::int64_t b = 0; b < labels.shape()[0]; ++b) {
    const std::int64_t length = integer(lengths, b * lengths.layout->strides[0]);
    if (length < 0 || length > labels.shape()[1])
      throw DataError(fmt::format("semicrf_loss: row {} has length {}; there are {} frames", b,
                                  length, labels.shape()[1]));
    std::int64_t first = 0;
    auto label = [&](std::int64_t t) {
      return integer(labels, b * labels.layout->strides[0] + t * labels.layout->strides[1]);
    };
    for (std::int64_t t = 1; t <= length; ++t) {
      const std::int64_t flag = b * starts.layout->strides[0] + t * starts.layout->strides[1];
      if (t < length && integer(starts, flag) == 0) {
        if (label(t) != label(first))
          throw DataError(fmt::format(
              "semicrf_loss: row {}, frame {}: the label changes from {} to {} without the start "
              "of a segment",
              b, t, label(first), label(t)));
        continue;
      }
      gold_.append(first, t - first, label(first));
      first = t;
    }
    gold_.end_row();
  }
}

template <class T>
void SemicrfOps::loss_of(std::span<const Array> operands, const Array& loss) {
  const std::size_t scores = operands.size() - 3;
  read_gold(operands, scores);
  values_.assign(static_cast<std::size_t>(gold_.rows()), 0.0);
  semicrf::LossResult result;
  result.loss = values_;
  engine_.loss<T>(crf_potentials<T>(operands, scores), gold_, result);
  for (std::size_t b = 0; b < values_.size(); ++b) loss.as<T>()[b] = static_cast<T>(values_[b]);
}

template <class T>
void SemicrfOps::loss_grad_of(std::span<const Array> operands, std::span<const Array> gradients) {
  const std::size_t scores = operands.size() - 4;
  read_gold(operands, scores);
  const Array& weights = operands.back();
  values_.clear();
  for (std::int64_t b = 0; b < gold_.rows(); ++b)
    values_.push_back(static_cast<double>(weights.as<const T>()[b * weights.layout->strides[0]]));
  engine_.loss<T>(crf_potentials<T>(operands, scores), gold_, {},
                  crf_gradients<T>(gradients, scores), values_);
}

void SemicrfOps::loss(std::span<const Array> operands, const Array& loss) {
  if (loss.layout->size() == 0) return;
  const MutexLock alone(calls_);
  if (operands[0].dtype == DType::kF32) return loss_of<float>(operands, loss);
  loss_of<double>(operands, loss);
}

void SemicrfOps::loss_grad(std::span<const Array> operands, std::span<const Array> gradients) {
  const MutexLock alone(calls_);
  if (operands[0].dtype == DType::kF32) return loss_grad_of<float>(operands, gradients);
  loss_grad_of<double>(operands, gradients);
}

ir::OpaqueOps reference_opaque_ops() {
  struct State {
    ThreadPool pool{1};
    SemicrfOps ops{pool, {semicrf::Algorithm::kReference}};
    std::vector<Layout> layouts;
    std::vector<Array> arrays(std::span<const Tensor> tensors) {
      layouts.clear();
      std::vector<Array> result;
      for (const Tensor& tensor : tensors) layouts.push_back(contiguous(tensor.shape()));
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        Tensor shared = tensors[i];
        result.push_back({static_cast<std::byte*>(shared.data()), &layouts[i], shared.dtype()});
      }
      return result;
    }
  };
  const auto state = std::make_shared<State>();
  ir::OpaqueOps opaque;
  opaque.semicrf_loss = [state](std::span<const Tensor> operands) {
    Tensor loss(DType::kF64, {operands[0].shape()[0]});
    const Layout layout = contiguous(loss.shape());
    state->ops.loss(state->arrays(operands),
                    {static_cast<std::byte*>(loss.data()), &layout, DType::kF64});
    return std::vector{loss};
  };
  opaque.semicrf_loss_grad = [state](std::span<const Tensor> operands) {
    std::vector<Tensor> all(operands.begin(), operands.end());
    const std::size_t scores = operands.size() - 4;
    for (std::size_t i = 0; i < scores; ++i)
      all.push_back(Tensor::zeros(DType::kF64, operands[i].shape()));
    const std::vector<Array> arrays = state->arrays(all);
    const std::span<const Array> views(arrays);
    state->ops.loss_grad(views.first(operands.size()), views.subspan(operands.size()));
    return std::vector<Tensor>(all.begin() + static_cast<std::ptrdiff_t>(operands.size()),
                               all.end());
  };
  return opaque;
}

}  // namespace segfuse::engine
