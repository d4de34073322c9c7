#pragma once
// Programs on GPU arrays that another library owns (PyTorch, JAX, CuPy), without copies, and
// results for that library.
//
// A call runs on one of two streams:
//
//   On the caller's stream (run with a stream). The inputs are ready in its order, the outputs are
//   memory of the caller, and when the call returns the stream is ordered after all that uses them:
//   for the caller it is one more kernel on that stream.
//
//   On a stream of the library (run without). Inputs say which stream they are ready on, if they
//   are not yet, and have an owner, which is let go when the device has done with them. Results are
//   in the library's memory; hand_out() makes them ready on the stream that reads them.
//
// No call waits for the device. check() throws its errors about indices and labels.
// Any thread; calls of one device run one after another.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "segfuse/error.h"
#include "segfuse/program.h"
#include "segfuse/tensor.h"

namespace segfuse {

/// An array that another library owns.
struct ForeignArray {
  void* address = nullptr;
  DType dtype = DType::kF32;
  Shape shape = {};
  /// In elements, any; none: row-major without gaps. Read in place where there are no gaps and the
  /// address is aligned, else copied on the device first; what is written is never copied.
  std::vector<std::int64_t> strides = {};
  bool on_host = false;   ///< copied over; row-major without gaps
  void* ready = nullptr;  ///< stream on which it is ready; null: it is, for all that follows
  /// Of a run without a stream; null for memory that stays.
  std::shared_ptr<void> owner = {};
};

/// A program made ready for the arrays of one GPU. Kernels are compiled, and what depends on shapes
/// is planned, at the first call with them.
class DeviceFunction {
 public:
  /// On the device of `how`, which stays open as long as the context; DeviceError when it cannot be
  /// used. Of the other options only `excess_precision` and `precision` have a meaning here.
  DeviceFunction(const Program& program, const RunOptions& how);
  ~DeviceFunction();
  DeviceFunction(DeviceFunction&&) noexcept;
  DeviceFunction& operator=(DeviceFunction&&) noexcept;

  /// Shapes of the outputs for inputs of these shapes. UsageError for inputs that do not fit.
  std::vector<Shape> prepare(std::span<const Shape> inputs);

  /// On the caller's stream, which is not null (the legacy default stream of CUDA is 1) and lives
  /// until the last DeviceFunction and result of its device are destroyed: memory that the call
  /// used is reused in that stream's order, and waited for at the end. One output for each of
  /// the program, of its type and shape; inputs that the program overwrites are. Other inputs may
  /// share memory with an overwritten one: they are read as they were before the call.
  void run(std::span<const ForeignArray> inputs, std::span<const ForeignArray> outputs,
           void* stream);
  /// What is planned for inputs of certain shapes, none of which is looked at again.
  struct Planned;
  /// Nothing where a run has to look at its arrays: where the program overwrites an input, or has a
  /// CRF. It is of this function, and may outlive it.
  std::shared_ptr<Planned> planned(std::span<const Shape> inputs);
  /// A run on the caller's stream by the addresses of its inputs, then of its outputs, in the
  /// device's memory and without gaps; what is empty may be null. False where run() has to do it,
  /// and nothing has been done: an address is not aligned, or there are too many streams.
  bool run(const Planned& planned, std::span<void* const> addresses, void* stream);
  /// On stream(), which is the library's.
  std::vector<Tensor> run(std::span<const ForeignArray> inputs);
  void* stream() const;
  /// Copies of host tensors go there, and results come back; waits. Overwritten inputs are written.
  std::vector<Tensor> run_on_copies(std::span<const Tensor> inputs);

  /// Throws the errors of the calls so far: UsageError for an index out of range, DataError for
  /// invalid scores or labels of a CRF. Waits for these calls if they can have errors.
  void check();

  /// The address of a result, ready on `stream` of somebody else (null: the host waits for it). The
  /// memory is used again only when the device has done all that was enqueued before the
  /// tensor's last copy went.
  static void* hand_out(const Tensor& result, void* stream);

 private:
  struct State;
  StatePointer<std::unique_ptr<State>, "DeviceFunction"> state_;
};

}  // namespace segfuse
