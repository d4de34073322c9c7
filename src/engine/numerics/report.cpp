// From a file to the report, and the report in words: see the contracts in
// segfuse/doctor/numerics.h.

#include <fmt/core.h>

#include "base/os/file.h"
#include "engine/numerics/examine.h"
#include "engine/numerics/synthesis.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "segfuse/ops.h"

namespace segfuse {

std::string numerics_fault_name(NumericsFault fault) {
  switch (fault) {
    case NumericsFault::kNaN: return "NaN";
    case NumericsFault::kInfinity: return "infinity";
    case NumericsFault::kIndex: return "index out of range";
    case NumericsFault::kCast: return "lost in a cast";
    case NumericsFault::kRefused: return "refused";
    case NumericsFault::kNondeterminism: return "nondeterminism";
    case NumericsFault::kUnwritten: return "unwritten memory";
    case NumericsFault::kError: break;
  }
  return "error";
}

namespace {

/// Values in the comments of a file that do not fit its program are the file's fault.
std::vector<Tensor> inputs_of(const std::filesystem::path& file, const ir::Fusion& fusion,
                              const SizeExamples& sizes, std::uint64_t seed,
                              std::span<const engine::numerics::GivenValues> given,
                              std::vector<std::string>& notes) {
  try {
    return engine::numerics::make_inputs(fusion, sizes, seed, given, notes);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace

NumericsReport examine_numerics(const std::filesystem::path& file, const NumericsOptions& options) {
  using namespace engine;
  if (options.runs < 2)
    throw UsageError(fmt::format(
        "--runs is {}; expected 2 or more, because equal runs are compared", options.runs));
  const std::string text = read_file(file);
  const ir::Fusion fusion = ir::parse(text, file.string());
  ir::verify(fusion);
  std::vector<std::string> notes;
  const std::vector<Tensor> inputs = inputs_of(file, fusion, options.sizes, options.seed,
                                               numerics::read_values(text, file.string()), notes);
  NumericsReport report =
      numerics::examine(fusion, inputs, numerics::place_of(options.context), options.runs);
  report.name = file.string();
  report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
  return report;
}

std::map<std::string, Tensor> values_in_comments(const std::filesystem::path& file,
                                                 const SizeExamples& sizes) {
  using namespace engine;
  const std::string text = read_file(file);
  const std::vector<numerics::GivenValues> given = numerics::read_values(text, file.string());
  if (given.empty()) return {};
  const ir::Fusion fusion = ir::parse(text, file.string());
  ir::verify(fusion);
  std::vector<std::string> notes;
  const std::vector<Tensor> inputs = inputs_of(file, fusion, sizes, 1, given, notes);
  std::map<std::string, Tensor> found;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (const numerics::GivenValues& values : given)
      if (values.input == fusion.inputs()[i].name) found[values.input] = inputs[i];
  return found;
}

std::string numerics_report_text(const NumericsReport& report) {
  std::string text = fmt::format(
      "{}: {} operations in {} groups, each run {} times on {}, {:.1f} s\n", report.name,
      report.operations, report.groups, report.runs, report.device, report.seconds);
  auto row = [&](std::string_view name, std::string_view value) {
    if (!value.empty()) text += fmt::format("  {:<10}{}\n", name, value);
  };
  for (const std::string& note : report.notes) row("note", note);
  if (report.findings.empty()) {
    return text +
           "nothing found: runs agree bit for bit and with double precision within the bounds, "
           "and no NaN or infinity was made\n";
  }
  const NumericsFinding& first = report.findings.front();
  text += fmt::format("\n{}: {}\n", numerics_fault_name(first.fault), first.sentence);
  row("operation", first.position == 0 ? first.statement
                                       : fmt::format("{}  (number {} of {})", first.statement,
                                                     first.position, report.operations));
  row("element", first.element);
  for (const auto& [name, value] : first.operands) row("reads", name + " = " + value);
  row("group", first.group);
  row("kernel", first.kernel);
  row("cause", first.cause);
  for (std::size_t i = 1; i < report.findings.size(); ++i)
    text += fmt::format("{}later: {}: {}\n", i == 1 ? "\n" : "",
                        numerics_fault_name(report.findings[i].fault), report.findings[i].sentence);
  return text;
}

}  // namespace segfuse
