#pragma once
// Kernels with what they read and what loop::interpret makes of it: to be run by others.

#include <map>
#include <string>
#include <vector>

#include "compiler/loop/kernel.h"
#include "support/random/group_runner.h"

namespace segfuse::testing {

struct KernelJob {
  std::string what;  ///< for messages
  compiler::loop::Kernel kernel;
  std::vector<Tensor> before;  ///< globals in the kernel's types; outputs are poisoned
  std::vector<Tensor> after;   ///< f64 or i64, as the interpreter left them
  int status = 0;
  std::vector<std::pair<ir::Extent, std::int64_t>> sizes;

  std::int64_t size(const ir::Extent& extent) const;
};

/// Changes a kernel before it is interpreted and kept; false leaves it out.
using Adapt = std::function<bool(compiler::loop::Kernel&,
                                 const std::function<std::int64_t(const ir::Extent&)>& size)>;

/// All kernels of a Fusion, with what they get when it runs on these inputs. Schedules are asked
/// for with the lengths of `hints`.
std::vector<KernelJob> jobs_of(const ir::Fusion& fusion, std::span<const Tensor> inputs,
                               const ScheduleFor& schedule, const std::string& what,
                               const Adapt& adapt = {},
                               const std::map<std::string, std::int64_t>& hints = {});

/// Normal numbers for inputs, whole ones below `whole` for integers.
std::vector<Tensor> normal_inputs(const ir::Fusion& fusion,
                                  const std::map<std::string, std::int64_t>& sizes,
                                  std::uint64_t seed = 7, std::int64_t whole = 3);

/// Empty if what a run left in `globals` is what the job says; else the first difference. Floats
/// may be off by `tolerance` of max(1, |x|), for f32; wider types by less, narrower ones by more.
std::string difference(const KernelJob& job, std::span<const Tensor> globals, int status,
                       double tolerance = 2e-5);

}  // namespace segfuse::testing
