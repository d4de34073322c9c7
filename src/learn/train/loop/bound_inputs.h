#pragma once
// The inputs of a Fusion by name.

#include <fmt/core.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "ir/fusion.h"
#include "segfuse/error.h"
#include "segfuse/tensor.h"

namespace segfuse::learn {

class BoundInputs {
 public:
  explicit BoundInputs(const ir::Fusion& fusion) : tensors_(fusion.inputs().size()) {
    for (std::size_t i = 0; i < fusion.inputs().size(); ++i) position_[fusion.inputs()[i].name] = i;
  }
  bool has(const std::string& name) const { return position_.contains(name); }
  void set(const std::string& name, const Tensor& tensor) {
    const auto found = position_.find(name);
    if (found == position_.end()) throw InternalError(fmt::format("no input named '{}'", name));
    tensors_[found->second] = tensor;
  }
  /// In the order of Fusion::inputs().
  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }

 private:
  std::unordered_map<std::string, std::size_t> position_;
  std::vector<Tensor> tensors_;
};

}  // namespace segfuse::learn
