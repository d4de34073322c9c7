#include "compiler/inputs.h"

#include <fmt/core.h>

#include "segfuse/error.h"

namespace segfuse::compiler {

ir::Sizes bind_inputs(const ir::Fusion& fusion, std::span<const Tensor> inputs) {
  const auto& expected = fusion.inputs();
  if (inputs.size() != expected.size())
    throw UsageError(fmt::format("the Fusion '{}' has {} inputs; {} were given", fusion.name(),
                                 expected.size(), inputs.size()));
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const DType dtype = fusion.val(expected[i].val).dtype;
    if (inputs[i].dtype() != dtype)
      throw UsageError(fmt::format("input '{}' of the Fusion '{}' must be {}; it is {}",
                                   expected[i].name, fusion.name(), name_of(dtype),
                                   name_of(inputs[i].dtype())));
    shapes.push_back(inputs[i].shape());
  }
  return ir::bind(fusion, shapes);
}

void check_index(ir::Op op, std::int64_t index, std::int64_t size) {
  if (index < 0 || index >= size)
    throw UsageError(fmt::format("{}: index {} is out of range; the axis has {} elements",
                                 ir::info(op).name, index, size));
}

}  // namespace segfuse::compiler
