#include "learn/train/loop/offender.h"

#include <fmt/core.h>

#include <cmath>

#include "base/context/pool.h"
#include "engine/executable.h"
#include "engine/numerics/walk.h"
#include "learn/model/grammar.h"
#include "segfuse/error.h"

namespace segfuse::learn {

/// Limits are -inf on purpose; nothing else that a step gets may be.
std::string name_bad_input(const ir::Fusion& fusion, const std::vector<Tensor>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string& name = fusion.inputs()[i].name;
    if (!is_float(inputs[i].dtype()) || is_limit(name)) continue;
    for (std::int64_t at = 0; at < inputs[i].size(); ++at)
      if (!std::isfinite(inputs[i].at(at)))
        return fmt::format("'{}' holds {} at {} before the step", name,
                           engine::numerics::number_text(inputs[i].at(at)),
                           engine::numerics::index_text(at, inputs[i].shape()));
  }
  return "";
}

std::string name_offender(const ir::Fusion& fusion, const std::vector<Tensor>& inputs,
                          const Context& context) {
  if (std::string text = name_bad_input(fusion, inputs); !text.empty()) return text;
  try {
    (void)engine::Executable(fusion, pool_of(context), {.backend = "loops", .check_numerics = true})
        .run(inputs);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

}  // namespace segfuse::learn
