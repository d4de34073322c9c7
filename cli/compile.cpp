#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "segfuse/compile.h"

namespace segfuse::cli {
namespace {

struct CompileArguments {
  std::string file;
  std::string emit = "ir";
};

nlohmann::ordered_json describe(const std::vector<ValueInfo>& values) {
  auto all = nlohmann::ordered_json::array();
  for (const ValueInfo& value : values)
    all.push_back({{"name", value.name}, {"dtype", name_of(value.dtype)}, {"shape", value.shape}});
  return all;
}

}  // namespace

void add_compile(CLI::App& app, Common& common) {
  CLI::App* command =
      app.add_subcommand("compile", "Check a program in its text form and print what it becomes");
  const auto arguments = std::make_shared<CompileArguments>();
  command->add_option("file", arguments->file, "The program (.sf)")->required();
  command->add_option("--emit", arguments->emit, "What to print: ir")->capture_default_str();
  command->footer("\nExample:\n  segfuse compile examples/layer_norm.sf --emit=ir");
  command->callback([arguments, &common] {
    const Program program = Program::from_file(arguments->file);
    const std::string text = program.emit(arguments->emit);
    if (!common.json) {
      fmt::print("{}", text);
      return;
    }
    fmt::print("{}\n", nlohmann::ordered_json{{"name", program.name()},
                                              {"inputs", describe(program.inputs())},
                                              {"outputs", describe(program.outputs())},
                                              {arguments->emit, text}}
                           .dump(2));
  });
}

}  // namespace segfuse::cli
