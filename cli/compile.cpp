#include <fmt/core.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "segfuse/compile.h"
#include "segfuse/error.h"

namespace segfuse::cli {
namespace {

struct CompileArguments {
  std::string file;
  std::string emit = "ir";
  std::string dump;
  std::vector<std::string> sizes;
  bool passes = false;
};

nlohmann::ordered_json describe(const std::vector<ValueInfo>& values) {
  auto all = nlohmann::ordered_json::array();
  for (const ValueInfo& value : values)
    all.push_back({{"name", value.name}, {"dtype", name_of(value.dtype)}, {"shape", value.shape}});
  return all;
}

constexpr std::string_view kAfter = "after:";

std::string text_of(const Program& program, const CompileArguments& arguments) {
  if (arguments.dump.empty()) return program.emit(arguments.emit, parse_sizes(arguments.sizes));
  if (!arguments.dump.starts_with(kAfter))
    throw UsageError("--dump={} is not understood; write --dump=after:PASS (--passes lists them)",
                     arguments.dump);
  return program.after_pass(std::string_view(arguments.dump).substr(kAfter.size()));
}

void print_passes(const std::vector<PassInfo>& passes) {
  fmt::print("{:<12} {:>8} {:>5} {:>8} {:>11}  {}\n", "pass", "ms", "runs", "changes", "operations",
             "after it");
  for (const PassInfo& pass : passes)
    fmt::print("{:<12} {:>8.3f} {:>5} {:>8} {:>5}{:>6}  {}\n", pass.name, pass.milliseconds,
               pass.runs, pass.changes, pass.operations_before,
               fmt::format("-> {}", pass.operations_after), pass.after);
}

nlohmann::ordered_json describe(const std::vector<PassInfo>& passes) {
  auto all = nlohmann::ordered_json::array();
  for (const PassInfo& pass : passes)
    all.push_back({{"name", pass.name},
                   {"before", pass.before},
                   {"after", pass.after},
                   {"ms", pass.milliseconds},
                   {"runs", pass.runs},
                   {"changes", pass.changes},
                   {"operations_before", pass.operations_before},
                   {"operations_after", pass.operations_after}});
  return all;
}

}  // namespace

SizeExamples parse_sizes(const std::vector<std::string>& texts) {
  SizeExamples sizes;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    if (equals == std::string::npos || equals == 0 ||
        std::from_chars(text.data() + equals + 1, end, value).ptr != end || value < 0)
      throw UsageError("--size '{}' is not understood; write --size NAME=NUMBER", text);
    sizes[text.substr(0, equals)] = value;
  }
  return sizes;
}

void add_compile(CLI::App& app, Common& common) {
  CLI::App* command =
      app.add_subcommand("compile", "Check a program in its text form and print what it becomes");
  const auto arguments = std::make_shared<CompileArguments>();
  command->add_option("file", arguments->file, "The program (.sf)")->required();
  command->add_option("--emit", arguments->emit, "What to print: ir, segments, plan, loop, c, cuda")
      ->capture_default_str();
  command->add_option("--dump", arguments->dump,
                      "Print the program after a pass instead: after:PASS");
  command->add_option("--size", arguments->sizes,
                      "A size like those to come, as B=32 (again for others)");
  command->add_flag("--passes", arguments->passes, "List the passes with their times instead");
  command->footer(
      "\nExamples:\n  segfuse compile examples/layer_norm.sf --emit=segments\n"
      "  segfuse compile examples/layer_norm.sf --dump=after:fold");
  command->callback([arguments, &common] {
    const Program program = Program::from_file(arguments->file);
    if (arguments->passes && !common.json) {
      print_passes(program.passes());
      return;
    }
    const std::string text = text_of(program, *arguments);
    if (!common.json) {
      fmt::print("{}", text);
      return;
    }
    nlohmann::ordered_json all{{"name", program.name()},
                               {"inputs", describe(program.inputs())},
                               {"outputs", describe(program.outputs())},
                               {arguments->dump.empty() ? arguments->emit : "dump", text}};
    if (arguments->passes) all["passes"] = describe(program.passes());
    fmt::print("{}\n", all.dump(2));
  });
}

}  // namespace segfuse::cli
