#pragma once
// Programs over tensors from C++: read a Fusion in its text form, look at it, run it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "segfuse/context.h"
#include "segfuse/error.h"
#include "segfuse/tensor.h"

namespace segfuse {

/// An input or output of a program. Sizes are text: numbers or expressions over the program's
/// symbols, as in "[B, T, 64]".
struct ValueInfo {
  std::string name;  ///< empty for an output without one
  DType dtype;
  std::string shape;
};

/// The effect of one pass of the compiler on a program.
struct PassInfo {
  std::string name;
  std::string before;       ///< what it needs
  std::string after;        ///< what holds when it has run
  double milliseconds = 0;  ///< all runs together
  int runs = 0;
  int changes = 0;  ///< runs that changed something
  std::size_t operations_before = 0;
  std::size_t operations_after = 0;
};

/// Fields that are not set here follow the context's options.
struct RunOptions {
  Context context = {};
  int threads = 0;
  /// The first NaN or new infinity is a DataError that names its operation. The option
  /// `check-numerics=op` turns it on as well. Results are the same bits, and take much longer.
  bool check_numerics = false;
  /// Kernels of the backend "compiled" round f16 and bf16 values where they store them and where
  /// the program casts to them, not after each operation: faster, with smaller errors, but other
  /// bits.
  bool excess_precision = false;
  /// Of matrix products of f32 values: "float32", or "tf32", where GPUs round the operands to TF32
  /// (10 bits behind the point instead of 23) and add in f32, several times as fast. The same bits
  /// in each run. CPUs and the operation `attention` compute in f32 with either. UsageError for
  /// others.
  std::string precision = "float32";
  std::string backend = {};  ///< "compiled", "loops" or "reference"
  std::string device = {};   ///< "cpu", "cuda" or "cuda:1"
  bool operator==(const RunOptions&) const = default;
};

/// Sizes like those that a program will be run with, by symbol: they choose between schedules, and
/// what is emitted is right for others, too.
using SizeExamples = std::map<std::string, std::int64_t>;

/// For Program::emit().
struct EmitOptions {
  SizeExamples sizes = {};
  std::string architecture = "sm_90";  ///< of "cubin" and "html"
  std::string function = {};           ///< of "c" and "h": its name; empty: after the program
  bool excess_precision = false;       ///< of kernels: as RunOptions has it
  /// For "html": what a cubin says of its kernels, by their names. Nothing: the page has none of
  /// it.
  std::function<std::map<std::string, std::string>(const std::string& cubin)> resources = {};
};

/// A verified program. Copies share it; it does not change.
class Program {
 public:
  /// DataError "SOURCE:LINE:COLUMN: ..." for a text that is not a program.
  static Program from_text(std::string_view text, std::string_view source = "<text>");
  static Program from_file(const std::filesystem::path& path);

  const std::string& name() const;
  std::vector<ValueInfo> inputs() const;
  std::vector<ValueInfo> outputs() const;

  /// What emit() can give.
  static std::vector<std::string> emit_kinds();
  /// "ir": the text form as it was read. After all passes: "segments", the groups that the compiler
  /// cuts it into, with bytes and reasons; "plan", the schedule and kernels of each; "loop", the
  /// kernels in loop IR; "kernels", in C; "cuda", those for a GPU, each complete; "cubin", their
  /// machine code for one architecture (DeviceError without NVRTC); "c", the whole program in C,
  /// which needs nothing of segfuse, and "h", its header; "html", a page with all of these.
  /// UsageError for other kinds, and for operations without a form in C.
  std::string emit(std::string_view kind, const EmitOptions& how = {}) const;

  /// Makes machine code of all its groups' kernels for such sizes and runs nothing: for "cpu", this
  /// machine, or for a GPU's architecture, as "sm_90". doctor/streams.h's Watch sees them.
  /// DeviceError where the compiler is missing.
  void make_kernels(std::string_view target, const SizeExamples& sizes = {},
                    const Context& context = {}) const;

  /// Runs all passes on a copy and says what each did, in their order.
  std::vector<PassInfo> passes() const;
  /// The text form of a copy when that pass has run for the first time. UsageError names the
  /// passes.
  std::string after_pass(std::string_view name) const;

  /// Runs in the types of the values. `inputs` in the order of inputs(); aliased inputs are
  /// overwritten in place, and others that share their memory are read as they were before
  /// (UsageError where both are aliased); outputs are fresh. Plans and memory are kept between runs
  /// with the same back end, device and flags, whatever their contexts. One run at a time.
  ///
  /// On a GPU (RunOptions::device) inputs may be in its memory (Tensor::device_memory) or on the
  /// host. If one of them is there, so are the outputs: the call returns before they are computed,
  /// and check() reports indices or labels that are out of range. Otherwise outputs are on the
  /// host.
  std::vector<Tensor> run(std::span<const Tensor> inputs, const RunOptions& how = {}) const;
  /// Waits for the runs so far, and throws their errors about indices and labels.
  void check() const;
  /// Runs in double precision with plain loops, slowly; float outputs are f64. Aliases are not
  /// written.
  std::vector<Tensor> run_reference(std::span<const Tensor> inputs) const;

  /// The implementation, for the library itself.
  struct State;
  explicit Program(std::shared_ptr<State> state) : state_(std::move(state)) {}
  State& state() const { return *state_; }

 private:
  StatePointer<std::shared_ptr<State>, "Program"> state_;
};

}  // namespace segfuse
