#pragma once
// Runs a plan: steps on their streams, with the waits that placement found, over memory that is
// given or that lies in one arena.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "plan/placement.h"
#include "plan/plan.h"
#include "runtime/executor.h"
#include "runtime/memory/heap.h"

namespace segfuse::runtime {

/// What a step of kind kCall does. `addresses` are those of the step's reads, then of its writes,
/// and live during the call only. When it is called: see Work in runtime/device.h.
using PlanFunction =
    std::function<void(StreamHandle stream, std::span<std::byte* const> addresses)>;

/// A plan over fixed buffers. On a device that can capture work (CUDA graphs) a run is one launch.
class FrozenPlan {
 public:
  void run();
  bool is_one_launch() const { return static_cast<bool>(work_.run); }

 private:
  friend class PlanRunner;
  class PlanRunner* runner_ = nullptr;
  std::vector<Buffer> given_;
  Buffer arena_;
  Work work_;
};

class PlanRunner {
 public:
  /// The plan's functions by number, and the streams to run on: at least one, of the heap's device.
  /// Throws InternalError when the plan is not right.
  PlanRunner(plan::Plan plan, std::vector<PlanFunction> functions, Heap& heap, Executor& executor,
             std::vector<StreamId> streams);

  /// Enqueues one run. `given` are the buffers of the plan that are not scratch, in their order,
  /// with at least the bytes the plan says. Their former uses, wherever they are, are waited for as
  /// needed; they and the runner may be dropped at once. Runs may overlap each other as far as what
  /// they are given allows: each has its own arena. UsageError names a buffer that does not fit.
  void run(std::span<const Buffer> given) { run(given, streams_[0]); }
  /// The same with another stream, of the same device, in place of the first.
  void run(std::span<const Buffer> given, StreamId first) { run(given, first, {}); }
  /// The same, which also says when each set of `given`, by number, is used by no step any more:
  /// who waits for that waits for no later step.
  std::vector<Frontier> run(std::span<const Buffer> given, StreamId first,
                            std::span<const std::vector<std::size_t>> sets);
  /// The same for memory whose former uses `stream` comes after and whose later uses come after
  /// the stream, as those of an operation of the caller's own: by addresses, of which no use is
  /// recorded, in place of buffers; null where a buffer has no elements. Of a plan on one stream.
  /// The tick of the run.
  StreamTick run_in_order(std::span<std::byte* const> given, StreamId stream);

  /// Binds the plan to these buffers, which it holds from then on, and to scratch of its own. The
  /// runner has to outlive it.
  FrozenPlan freeze(std::span<const Buffer> given);

  const plan::Plan& plan() const { return plan_; }
  const plan::Placement& placement() const { return placement_; }

 private:
  friend class FrozenPlan;
  struct Running;
  struct Bound;
  void bind(const plan::Step& step, std::byte* arena, std::span<std::byte* const> given,
            Bound& bound) const;
  std::vector<Use> uses(const plan::Step& step, std::span<const Buffer> given) const;
  void put(Device& device, StreamHandle stream, const plan::Step& step, const Bound& bound) const;
  void capture(Device& device, std::span<const StreamHandle> streams, const Buffer& arena,
               std::span<std::byte* const> given) const;
  Work work(const plan::Step& step, const std::vector<std::byte*>& addresses) const;
  void enqueue(Running& running, std::uint32_t step);
  void check(std::span<const Buffer> given) const;
  void find_last_uses();
  std::vector<std::uint32_t> last_uses(const std::vector<std::size_t>& set) const;

  plan::Plan plan_;
  plan::Placement placement_;
  /// Shared with the work that calls them, which may run later.
  std::vector<std::shared_ptr<const PlanFunction>> functions_;
  Heap* heap_;
  Executor* executor_;
  std::vector<StreamId> streams_;
  std::vector<std::size_t> given_;  ///< by buffer: which of `given`; unused for scratch
  /// By number of what is given: the last steps that use it, one a stream.
  std::vector<std::vector<std::uint32_t>> last_uses_;
};

}  // namespace segfuse::runtime
