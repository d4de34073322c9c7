#pragma once
// Runs a Fusion in the types of its values, on the CPU or on a GPU.
//
// f32, f64, i32, i64 and bool are computed as they are; f16 and bf16 in f32, rounded at each value.
// Results are the same bits for any number of threads. Movement costs nothing where a strided view
// will do; chains of elementwise operations of one shape run as one pass over memory.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "engine/plan/step_time.h"
#include "ir/fusion.h"
#include "segfuse/context.h"
#include "segfuse/tensor.h"

namespace segfuse::runtime {
class Frontier;
}

namespace segfuse::engine {

class Accelerator;

struct ExecutableOptions {
  /// The name of one in backends/: "compiled" (machine code), "loops" (built in) or "reference"
  /// (the interpreter in double precision). Results differ in last digits only.
  std::string backend = "compiled";
  /// Before each run a run of its own is looked at, whose results are thrown away: on the CPU every
  /// operation by itself, in built-in loops; on an accelerator what its own kernels write, and the
  /// operations of a kernel only where that holds NaN or infinities. The first NaN, or the first
  /// infinity made of finite operands, is a DataError that names operation, value and element, says
  /// what the operands were, and what usually causes it. Results are the same bits as without.
  bool check_numerics = false;
  /// Kernels round 16-bit values where they store them and where the program casts to them, not
  /// after each operation: fewer instructions and smaller errors, but which values a kernel stores
  /// depends on how the program was cut.
  bool excess_precision = false;
  /// A GPU's library may round the f32 operands of matrix products to TF32, and adds in f32. CPUs,
  /// kernels of our own (attention, and products without a library) and other types: no effect.
  bool tf32 = false;
  /// Fills memory with NaN before it is written, to catch reads of what no step wrote.
  bool poison = false;
  /// Measures every step, which on a GPU is waited for then; see Executable::step_times().
  bool profile = false;
  /// Where it runs; null: on the CPU. A back end that knows the CPU only runs there all the same,
  /// and operands and results travel.
  std::shared_ptr<Accelerator> accelerator = nullptr;
  /// The CPU as a device: steps that run there go on its streams and take scratch memory from its
  /// heap, so that they can be checked and recorded. Null: they run in place.
  std::shared_ptr<Accelerator> host = nullptr;
  /// Whose compiled code it uses.
  Context context = {};
};

/// Whether a precision of products, as RunOptions has it, allows TF32. UsageError for others.
bool allows_tf32(std::string_view precision);

/// As the options `backend`, `check-numerics` (op), `device` and `check-streams` of a context say.
/// DeviceError when that device cannot be used.
ExecutableOptions executable_options(const Context& context);

/// For work on what a run overwrites that goes beside the rest of the run.
struct Milestones {
  std::vector<std::vector<std::size_t>> inputs;  ///< by number, in sets
  /// Set by a run on an accelerator, by set: what comes after that comes after all uses of these
  /// inputs. Null after any other run.
  std::shared_ptr<const std::vector<runtime::Frontier>> over;
};

/// A Fusion made ready to run. What depends on shapes is planned on the first run with them and
/// kept; working memory is kept too. One run at a time.
class Executable {
 public:
  /// `pool` outlives this. UsageError for a backend that is not there.
  Executable(ir::Fusion fusion, ThreadPool& pool, ExecutableOptions options = {});
  ~Executable();
  Executable(Executable&&) noexcept;
  Executable& operator=(Executable&&) noexcept;

  /// `inputs` in the order of fusion().inputs(). When all else is done, aliased inputs are
  /// overwritten in place, in the storage that the given tensors share. Returned outputs are fresh
  /// storage, or that of the input that they overwrite. UsageError for inputs that do not fit and
  /// for indices out of range.
  ///
  /// On an accelerator inputs may be in its memory. Then results are, too, the call returns before
  /// they are there, and what is wrong with indices and labels is thrown by check().
  std::vector<Tensor> run(std::span<const Tensor> inputs, Milestones* milestones = nullptr);
  /// By input, where in a run it is overwritten: later ones have greater numbers. The same for all
  /// shapes, and on all devices of a kind.
  std::vector<std::size_t> order_of_writes() const;
  /// Throws what the runs so far have found wrong; waits for them.
  void check();

  /// What check_numerics would say of a run with these inputs, by the kernels of the accelerator;
  /// empty: nothing, or it does not run there. Nothing is changed.
  std::string look(std::span<const Tensor> inputs);

  const ir::Fusion& fusion() const noexcept;
  /// Bytes of working memory held now.
  std::size_t workspace_bytes() const noexcept;
  /// With ExecutableOptions::profile: the steps of the last run's plan, in order.
  std::vector<StepTime> step_times() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The library behind matmul on GPUs: "cuBLASLt 13.1.0", or why products run on kernels of our own.
std::string device_matmul_library();
/// "clang 19.1.7", or nothing and the reason.
std::string cpu_compiler_name(std::string* reason);

}  // namespace segfuse::engine
