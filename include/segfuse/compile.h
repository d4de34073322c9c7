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

#include "segfuse/tensor.h"

namespace segfuse {

namespace engine {
class Accelerator;
}

/// An input or output of a program. Sizes are text: numbers or expressions over the program's
/// symbols, as in "[B, T, 64]".
struct ValueInfo {
  std::string name;  ///< empty for an output without one
  DType dtype;
  std::string shape;
};

/// What one pass of the compiler did to a program.
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

struct RunOptions {
  int threads = 0;  ///< 0: the option `threads`, or the cores this process may use
  /// The first NaN or new infinity is a DataError that names its operation. The option
  /// `check-numerics=op` turns it on as well. Results are the same bits, and take much longer.
  bool check_numerics = false;
  /// Kernels of the backend "compiled" round f16 and bf16 values where they store them and where
  /// the program casts to them, not after each operation: faster, with smaller errors, but other
  /// bits.
  bool excess_precision = false;
  /// "compiled", "loops" or "reference", as the option `backend` says, which is taken when empty.
  std::string backend = {};
  /// "cpu", "cuda" or "cuda:1", as the option `device` says, which is taken when empty.
  std::string device = {};
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
  /// DataError "SOURCE:LINE:COLUMN: ..." for a text that is no program.
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
  /// which needs nothing of segfuse, and "h", its header; "html", a page of all that. UsageError
  /// names the kinds for others, and says what has no form in C.
  std::string emit(std::string_view kind, const EmitOptions& how = {}) const;

  /// Makes machine code of all its groups' kernels for such sizes and runs nothing: for "cpu", this
  /// machine, or for a GPU's architecture, as "sm_90". doctor.h's Watch sees them.
  /// DeviceError where the compiler is missing.
  void make_kernels(std::string_view target, const SizeExamples& sizes = {}) const;

  /// Runs all passes on a copy and says what each did, in their order.
  std::vector<PassInfo> passes() const;
  /// The text form of a copy when that pass has run for the first time. UsageError names the
  /// passes.
  std::string after_pass(std::string_view name) const;

  /// Runs in the types of the values. `inputs` in the order of inputs(); aliased inputs are
  /// overwritten in place; outputs are fresh. Plans and memory are kept between runs with the same
  /// options. One run at a time.
  ///
  /// On a GPU (RunOptions::device) inputs may be in its memory (Tensor::device_memory) or on the
  /// host. If one of them is there, so are the outputs: the call returns before they are computed,
  /// and indices or labels that are out of range are told by check(). Otherwise outputs are on the
  /// host.
  std::vector<Tensor> run(std::span<const Tensor> inputs, const RunOptions& how = {}) const;
  /// Waits for the runs so far, and throws what they found wrong with indices and labels.
  void check() const;
  /// The same in double precision by plain loops, slowly; float outputs are f64. Aliases are not
  /// written.
  std::vector<Tensor> run_reference(std::span<const Tensor> inputs) const;

  /// What is inside, for the library itself.
  struct State;
  explicit Program(std::shared_ptr<State> state) : state_(std::move(state)) {}
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

// Programs on arrays that somebody else keeps in the memory of a GPU (PyTorch, JAX, CuPy), without
// copies, and results for them.
//
// Two ways, by whose stream a call runs on:
//
//   On the caller's stream (run with a stream). The inputs are ready in its order, the outputs are
//   memory of the caller, and when the call returns the stream is ordered after all that uses them:
//   for the caller it is one more kernel on that stream.
//
//   On a stream of the library (run without). Inputs say which stream they are ready on, if they
//   are not yet, and have an owner, which is let go when the device has done with them. Results are
//   in the library's memory; hand_out() makes them ready on the stream of whoever reads them.
//
// Nothing waits for the device. What it finds wrong with indices and labels is thrown by check().
// Any thread; calls of one device run one after another.

/// An array of somebody else.
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
  /// `device` as RunOptions::device; it stays open until the process ends. DeviceError when it
  /// cannot be used.
  DeviceFunction(const Program& program, std::string_view device);
  DeviceFunction(const Program& program, std::shared_ptr<engine::Accelerator> accelerator);
  ~DeviceFunction();
  DeviceFunction(DeviceFunction&&) noexcept;
  DeviceFunction& operator=(DeviceFunction&&) noexcept;

  /// Shapes of the outputs for inputs of these shapes. UsageError for inputs that do not fit.
  std::vector<Shape> prepare(std::span<const Shape> inputs);

  /// On the caller's stream, which is not null (the legacy default stream of CUDA is 1) and lives
  /// until the last DeviceFunction and result of its device are gone: memory that the call used is
  /// handed on in that stream's order, and waited for at the end. One output for each of the
  /// program, of its type and shape; inputs that the program overwrites are.
  void run(std::span<const ForeignArray> inputs, std::span<const ForeignArray> outputs,
           void* stream);
  /// On stream(), which is the library's.
  std::vector<Tensor> run(std::span<const ForeignArray> inputs);
  void* stream() const;
  /// Copies of host tensors go there, and results come back; waits. Overwritten inputs are written.
  std::vector<Tensor> run_on_copies(std::span<const Tensor> inputs);

  /// Throws what the calls so far have found wrong: UsageError for an index out of range, DataError
  /// for what a CRF was given. Waits for them if there is something to know.
  void check();

  /// The address of a result, ready on `stream` of somebody else (null: the host waits for it). The
  /// memory is used again only when the device has gone through all that was enqueued before the
  /// tensor's last copy went.
  static void* hand_out(const Tensor& result, void* stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// segfuse doctor numerics: the first operation of a program that goes wrong.

/// What is wrong with an operation's numbers.
enum class NumericsFault {
  kNaN,             ///< made of operands without NaN, or given as an input
  kInfinity,        ///< made of finite operands
  kIndex,           ///< an index, label or length out of range
  kCast,            ///< a NaN, an infinity or too large a number that became an integer
  kRefused,         ///< the operation refuses its operands
  kNondeterminism,  ///< equal runs give different bits
  kUnwritten,       ///< the result depends on what was in memory before
  kError,           ///< further from double precision than its error bound
};
/// "NaN", "infinity", "index out of range", "lost in a cast", "refused", "nondeterminism",
/// "unwritten memory", "error"
std::string numerics_fault_name(NumericsFault fault);

struct NumericsFinding {
  NumericsFault fault = NumericsFault::kNaN;
  std::string operation;     ///< "mul"; "input" for one that is given
  std::string statement;     ///< its line in the program's text form: "%2 = mul(%0, %1) : f32[4]"
  std::size_t position = 0;  ///< in program order, from 1; 0 for an input
  std::string element;       ///< "[3, 1]"; empty where there is none
  std::string found;
  std::string expected;  ///< empty where nothing is
  /// Operands by name ("%1 'x' f32[4]"): their elements, or what is in them.
  std::vector<std::pair<std::string, std::string>> operands;
  std::string group;   ///< "2 of 5, row_norm of 9 operations"; empty: the compiler has none for it
  std::string kernel;  ///< name of its function, or the library
  std::string sentence;  ///< all of it
  std::string cause;     ///< what usually causes it, and what helps
  std::string program;   ///< the least program that shows it, with the values of its inputs
};

struct NumericsReport {
  std::string name;  ///< of the file
  std::size_t operations = 0;
  std::size_t groups = 0;
  int runs = 0;
  std::string device = "cpu";             ///< where it was run
  std::vector<NumericsFinding> findings;  ///< in program order: the first is what to look at
  std::vector<std::string> notes;
  double seconds = 0;
};

struct NumericsOptions {
  SizeExamples sizes = {};  ///< of symbols that the values in the file do not settle; others are 16
  std::uint64_t seed = 1;   ///< of inputs that the file has no values for
  int runs = 4;             ///< of each group, at least 2
  std::string backend = {};  ///< as in RunOptions
  std::string device = {};   ///< as in RunOptions
};

/// Runs a program several times, as a whole and group by group, and compares it with the
/// interpreter in double precision, operation by operation, each against its error bound
/// (docs/doctor.md). Values of inputs may stand in the file's comments: "#: x = 0.5 inf 0*14".
/// DataError for a file that is no program or whose values do not fit.
NumericsReport examine_numerics(const std::filesystem::path& file,
                                const NumericsOptions& options = {});
std::string numerics_report_text(const NumericsReport& report);

}  // namespace segfuse
