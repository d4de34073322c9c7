#pragma once
// What runs a Fusion: one interface, and a table of those that implement it. A back end is one file
// in backends/, NAME.cpp, which defines `BackendInfo NAME_backend()`; the build makes the table of
// these files.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "engine/executable.h"
#include "engine/plan/step_time.h"
#include "ir/fusion.h"
#include "segfuse/tensor.h"

namespace segfuse::engine {

/// A Fusion ready to run: what an Executable does after it has looked at its options. One run at a
/// time.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Like Executable::run(). Inputs are on the host unless the back end runs on a device.
  virtual std::vector<Tensor> run(std::span<const Tensor> inputs) = 0;
  /// The same on a device, with milestones.
  virtual std::vector<Tensor> run_with(std::span<const Tensor> inputs, Milestones& milestones) {
    static_cast<void>(milestones);
    return run(inputs);
  }
  /// Like Executable::order_of_writes(); empty: at the end.
  virtual std::vector<std::size_t> order_of_writes() const { return {}; }
  /// Like Executable::check(), for back ends whose runs return before they are complete.
  virtual void check() {}
  /// Like Executable::look().
  virtual std::string look(std::span<const Tensor> inputs) {
    static_cast<void>(inputs);
    return {};
  }
  /// The steps of the last run, if they are measured.
  virtual std::vector<StepTime> step_times() const { return {}; }
  /// Bytes of working memory held now.
  virtual std::size_t workspace_bytes() const { return 0; }
};

/// The parts of a back end; all of them outlive it.
struct BackendSetup {
  const ir::Fusion& fusion;
  ThreadPool& pool;
  const ExecutableOptions& options;
};

struct BackendInfo {
  std::string_view name;  ///< as users choose it
  /// Runs on ExecutableOptions::accelerator and takes tensors in its memory.
  bool on_device = false;
  /// Does what ExecutableOptions::check_numerics asks for. Before a run of any other, the program
  /// runs in loops that do.
  bool checks_numerics = false;
  std::unique_ptr<Backend> (*make)(const BackendSetup& setup) = nullptr;
};

/// All of them, by file name.
std::span<const BackendInfo> backends();
/// The one of this name, on a device if `on_device` and if there is one for devices. UsageError
/// that lists the names.
const BackendInfo& find_backend(std::string_view name, bool on_device = false);

}  // namespace segfuse::engine
