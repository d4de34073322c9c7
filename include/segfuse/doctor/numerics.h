#pragma once
// segfuse doctor numerics: the first operation of a program that goes wrong.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "segfuse/program.h"

namespace segfuse {

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
  std::string operation;     ///< "mul"; "input" for an input
  std::string statement;     ///< its line in the program's text form: "%2 = mul(%0, %1) : f32[4]"
  std::size_t position = 0;  ///< in program order, from 1; 0 for an input
  std::string element;       ///< "[3, 1]"; empty where there is none
  std::string found;
  std::string expected;  ///< empty if nothing is expected
  /// Operands by name ("%1 'x' f32[4]"): their elements, or what is in them.
  std::vector<std::pair<std::string, std::string>> operands;
  std::string group;   ///< "2 of 5, row_norm of 9 operations"; empty: the compiler has none for it
  std::string kernel;  ///< name of its function, or the library
  std::string sentence;  ///< the whole finding
  std::string cause;     ///< what usually causes it, and what helps
  std::string program;   ///< the least program that shows it, with the values of its inputs
};

struct NumericsReport {
  std::string name;  ///< of the file
  std::size_t operations = 0;
  std::size_t groups = 0;
  int runs = 0;
  std::string device = "cpu";             ///< where it was run
  std::vector<NumericsFinding> findings;  ///< in program order: examine the first
  std::vector<std::string> notes;
  double seconds = 0;
};

struct NumericsOptions {
  SizeExamples sizes = {};  ///< of symbols that the values in the file leave open; others are 16
  std::uint64_t seed = 1;   ///< of inputs that the file has no values for
  int runs = 4;             ///< of each group, at least 2
  Context context = {};     ///< its options `backend` and `device` say what is examined
};

/// Runs a program several times, as a whole and group by group, and compares it with the
/// interpreter in double precision, operation by operation, each against its error bound
/// (docs/doctor.md). Values of inputs may stand in the file's comments: "#: x = 0.5 inf 0*14".
/// DataError for a file that is not a program or whose values do not fit.
NumericsReport examine_numerics(const std::filesystem::path& file,
                                const NumericsOptions& options = {});
/// What usually causes a NaN (else: an infinity) that an operation of another library made, and
/// what helps. `operation`: ours of that name ("log", "matmul"); any other gets a general sentence.
/// `gradient`: its derivative made it. `operands`: the elements that it was made of, or nothing.
std::string numerics_cause(std::string_view operation, DType dtype, bool nan, bool gradient,
                           std::span<const double> operands);
/// Of any other fault.
std::string numerics_cause(NumericsFault fault, std::string_view operation);
std::string numerics_report_text(const NumericsReport& report);

}  // namespace segfuse
