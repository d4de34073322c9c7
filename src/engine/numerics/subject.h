#pragma once
// What is examined: a way to run programs. The doctor knows no more of it, so tests examine faulty
// ones, and a back end of another device needs one function.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/executable.h"
#include "engine/numerics/bounds.h"
#include "ir/fusion.h"
#include "segfuse/tensor.h"

namespace segfuse::engine::numerics {

/// One run of several that should give the same bits.
struct Trial {
  int number = 0;
  int threads = 1;      ///< 0: as many as this process has cores
  bool poison = false;  ///< memory holds NaN before it is written, wherever the subject can do that
};

/// Runs a program that is verified and has no dead code. `inputs` are the caller's to change.
using Subject = std::function<std::vector<Tensor>(
    const ir::Fusion& fusion, std::span<const Tensor> inputs, const Trial& trial)>;

/// The subject that runs programs on the CPU.
Subject cpu_subject(std::string backend, const Context& context = {});
/// The subject that runs them on a GPU; a trial's number of threads has no effect there.
Subject device_subject(std::shared_ptr<Accelerator> accelerator, const Context& context = {});

/// The back end and the device of a context. Unless the back end is "compiled", programs run on the
/// CPU whatever the device is.
struct Place {
  Subject subject;
  Functions functions = Functions::kOurs;
  std::string products = "matmul";  ///< the library behind it, if there is one
  std::string device = "cpu";
};
Place place_of(const Context& context);

}  // namespace segfuse::engine::numerics
