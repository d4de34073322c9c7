#pragma once
// What the parts of CudaInference share: its state, and how a call is made ready.

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "segfuse/semicrf_cuda.h"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/scope/arguments.h"
#include "semicrf/cuda/over_device.h"
#include "semicrf/cuda/programs.h"
#include "semicrf/cuda/queue.h"
#include "semicrf/cuda/views.h"
#include "semicrf/cuda/workspace.h"

namespace segfuse::semicrf {

using gpu::ScopeCall;
using runtime::Extent3;
using runtime::GpuKernel;
using runtime::StreamHandle;

/// Checks shapes and fills what a call within a scope has in common. Reads no device memory.
template <class T>
ScopeCall make_scope_call(const Potentials<T>& potentials, const Scope& scope);

/// Declares the arrays of the models' scores.
void plan_loaded(gpu::Workspace& workspace, ScopeCall& call);
/// Those of their passes too.
struct ScopeArrays {
  bool backward = false;
  bool counts = false;  ///< of frames and tails
  bool transitions = false;
  bool durations = false;
};
void plan_scope(gpu::Workspace& workspace, ScopeCall& call, const ScopeArrays& arrays);

/// Threads of a block that works on one row, a warp a class; `most` is what its kernel is compiled
/// for.
inline Extent3 row_block(const gpu::Sizes& n, std::int64_t most = 384) {
  const std::int64_t cells =
      static_cast<std::int64_t>(n.classes) * (n.by_duration != 0 ? n.max_duration : 1);
  return {static_cast<unsigned>(32 * std::min<std::int64_t>(most / 32, cells))};
}

struct CudaInference::State {
  std::shared_ptr<gpu::Queue> gpu;
  CudaEngine engine;
  std::map<std::string, GpuKernel> kernels;
  gpu::Faults faults;
  gpu::Sizes sizes{};  ///< of the last call, for describing faults

  State(const runtime::DeviceAccess& device, const CudaOptions& options)
      : gpu(std::make_shared<gpu::Queue>(device, options.context)),
        engine(OverDevice::make<CudaEngine>(device, options)),
        faults(*gpu) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  GpuKernel kernel(const std::string& entry) {
    GpuKernel& kernel = kernels[entry];
    if (kernel.handle == nullptr) kernel = gpu->kernel(gpu::scope_program(), entry);
    return kernel;
  }
  template <class T>
  GpuKernel typed(const std::string& entry) {
    GpuKernel& kernel = kernels[entry + ":" + kInputName<T>];
    if (kernel.handle == nullptr) kernel = gpu->kernel(gpu::scope_program(kInputName<T>), entry);
    return kernel;
  }
  void launch(GpuKernel kernel, Extent3 grid, Extent3 block, const ScopeCall& call,
              StreamHandle stream) {
    gpu->launch(kernel, {grid, block}, call, stream);
  }
  /// One thread for each of n things a row.
  void launch_each(const std::string& entry, std::int64_t n, const ScopeCall& call,
                   StreamHandle stream) {
    if (n > 0)
      launch(kernel(entry), {side(ceil_divide(n, 128)), side(call.sizes.batch)}, {128}, call,
             stream);
  }

  template <class T>
  void load(ScopeCall& call, StreamHandle stream);
  /// The same, then the forward pass, status and weights of rows.
  template <class T>
  void forward(ScopeCall& call, StreamHandle stream);
  void backward(const ScopeCall& call, StreamHandle stream);
  template <class T>
  void store_frames(const ScopeCall& call, StreamHandle stream);
  template <class T>
  void store_shared(const ScopeCall& call, StreamHandle stream);
  template <class T>
  void run_gradients(const Potentials<T>& potentials, const Scope& scope, bool partial,
                     const LossResult& result, const Gradients<T>& gradients,
                     const View<double, 1>& tail_gradient, const View<const double, 1>& weights,
                     StreamHandle stream);
  template <class T>
  void run_on_engine(ScopeCall& call, const Potentials<T>& potentials, bool partial,
                     const LossResult& result, const Gradients<T>& gradients,
                     const View<const double, 1>& weights, StreamHandle stream);
  /// Potentials with constraints in them, in the workspace. Call `plan` before the workspace is
  /// allocated, `write` after.
  template <class T>
  static void plan_constrained(gpu::Workspace& workspace, ScopeCall& call);
  template <class T>
  Potentials<T> write_constrained(const ScopeCall& call, const Potentials<T>& potentials,
                                  StreamHandle stream);
  template <class T>
  void diverge(const Potentials<T>& p, const Potentials<T>& q, const View<double, 1>& cross_entropy,
               const View<double, 1>& divergence, const View<RowStatus, 1>& status,
               StreamHandle stream);
};

}  // namespace segfuse::semicrf
