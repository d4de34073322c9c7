#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "segfuse/doctor/kernel.h"
#include "segfuse/error.h"
#include "segfuse/program.h"
#include "segfuse/train.h"

namespace segfuse::cli {
namespace {

struct CompileArguments {
  std::string file;
  std::string emit = "ir";
  std::string dump;
  std::vector<std::string> sizes;
  std::string out;
  std::string function;
  std::string architecture = "sm_90";
  bool passes = false;
  bool excess_precision = false;
};

nlohmann::ordered_json describe(const std::vector<ValueInfo>& values) {
  auto all = nlohmann::ordered_json::array();
  for (const ValueInfo& value : values)
    all.push_back({{"name", value.name}, {"dtype", name_of(value.dtype)}, {"shape", value.shape}});
  return all;
}

constexpr std::string_view kAfter = "after:";

/// "40 registers, no spills, 1024 bytes of shared memory, 50 % of warps" of each kernel.
std::map<std::string, std::string> resources_of(const std::string& cubin) {
  std::map<std::string, std::string> all;
  for (const KernelInfo& kernel : examine_cubin("the program's kernels", cubin).kernels) {
    std::string text = fmt::format("{} registers, {}", kernel.registers.value_or(0),
                                   kernel.spills() ? "spills" : "no spills");
    if (kernel.shared_bytes > 0)
      text += fmt::format(", {} bytes of shared memory", kernel.shared_bytes);
    text += fmt::format(", {} bytes of code", kernel.code_bytes);
    for (const KernelOccupancy& occupancy : kernel.occupancy)
      text += fmt::format(", {:.0f} % of warps in blocks of {} ({})", 100 * occupancy.share,
                          occupancy.block, occupancy.limit);
    all[kernel.name] = text;
  }
  return all;
}

EmitOptions options_of(const CompileArguments& arguments) {
  return {.sizes = parse_sizes(arguments.sizes),
          .architecture = arguments.architecture,
          .function = arguments.function,
          .excess_precision = arguments.excess_precision,
          .resources = resources_of};
}

/// Writes what was emitted, and beside a program in C its header. Returns the paths.
std::vector<std::string> write_emitted(const Program& program, const CompileArguments& arguments,
                                       const std::string& text, const Common& common) {
  const std::filesystem::path path = arguments.out;
  std::vector<std::pair<std::filesystem::path, std::string>> files = {{path, text}};
  if (arguments.dump.empty() && arguments.emit == "c") {
    const std::filesystem::path header = std::filesystem::path(path).replace_extension(".h");
    if (header == path)
      throw UsageError(
          fmt::format("--out={}: expected a file name that ends in .c, because the header is "
                      "written beside it as .h",
                      arguments.out));
    files.emplace_back(header, program.emit("h", options_of(arguments)));
  }
  write_outputs(files, common.overwrite);
  std::vector<std::string> written;
  for (const auto& [name, content] : files) written.push_back(name.string());
  return written;
}

std::string text_of(const Program& program, const CompileArguments& arguments) {
  if (arguments.dump.empty()) return program.emit(arguments.emit, options_of(arguments));
  if (!arguments.dump.starts_with(kAfter))
    throw UsageError(fmt::format(
        "--dump={} is not understood; write --dump=after:PASS (--passes lists the passes)",
        arguments.dump));
  return program.after_pass(std::string_view(arguments.dump).substr(kAfter.size()));
}

void print_passes(const std::vector<PassInfo>& passes) {
  put("{:<12} {:>8} {:>5} {:>8} {:>11}  {}\n", "pass", "ms", "runs", "changes", "operations",
      "after it");
  for (const PassInfo& pass : passes)
    put("{:<12} {:>8.3f} {:>5} {:>8} {:>5}{:>6}  {}\n", pass.name, pass.milliseconds, pass.runs,
        pass.changes, pass.operations_before, fmt::format("-> {}", pass.operations_after),
        pass.after);
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

/// As it is, since others read it; a terminal is shown what could steer it.
void put_program(const std::string& text) {
  const std::string shown = ::isatty(STDOUT_FILENO) == 1 ? terminal_text(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

/// Those for this CPU and those for a GPU, as far as there are compilers for them.
void make_kernels(const Program& program, const CompileArguments& arguments) {
  const SizeExamples sizes = parse_sizes(arguments.sizes);
  for (const std::string& target : {std::string("cpu"), arguments.architecture}) try {
      program.make_kernels(target, sizes, Context::process_default());
    } catch (const DeviceError& error) {
      fmt::print(stderr, "segfuse: no kernels for {}: {}\n", target, terminal_text(error.what()));
    }
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
      throw UsageError(
          fmt::format("--size '{}' is not understood; write --size NAME=NUMBER", text));
    sizes[text.substr(0, equals)] = value;
  }
  return sizes;
}

void add_compile(Command app, Common& common) {
  Command command = app.add(
      "compile", "Check a program in text form and print it, or a stage of its compilation");
  const auto arguments = std::make_shared<CompileArguments>();
  command.option("file", arguments->file, "The program (.sf)").required();
  command
      .option("--emit", arguments->emit,
              "What to print: ir (the program), segments (its groups of operations), plan (its "
              "steps and buffers), loop (the loops of its kernels), kernels (in C), c and h (a C "
              "program and its header), cuda (CUDA C++), cubin, html (a page about it)")
      .shows_default();
  command.option(
      "--dump", arguments->dump,
      "Print the program after a pass instead, as in after:fold; --passes lists the passes");
  command.option("--size", arguments->sizes,
                 "Typical value of a symbolic size, as in B=32 (may be repeated)");
  command.option("--out", arguments->out,
                 "Write to this file; a program in C gets its header beside it");
  command.flag("--excess-precision", arguments->excess_precision,
               "Round 16-bit values only where kernels store them, not after each operation");
  command.option("--name", arguments->function, "Name of the function that --emit=c writes");
  command
      .option("--arch", arguments->architecture,
              "GPU architecture for --emit=cubin and --emit=html")
      .shows_default();
  command.flag("--passes", arguments->passes,
               "List the passes and their times instead of the program");
  command.footer(
      "\nExamples:\n  segfuse compile examples/layer_norm.sf --emit=segments\n"
      "  segfuse compile examples/layer_norm.sf --emit=c --out layer_norm.c\n"
      "  segfuse compile examples/layer_norm.sf --emit=cubin --arch sm_90 --out layer_norm.cubin\n"
      "  segfuse compile examples/layer_norm.sf --emit=html --out layer_norm.html\n"
      "  segfuse compile examples/layer_norm.sf --dump=after:fold");
  command.runs([arguments, &common] {
    const Program program = Program::from_file(arguments->file);
    if (common.kernels) make_kernels(program, *arguments);
    if (arguments->passes && !common.json) {
      print_passes(program.passes());
      return;
    }
    if (arguments->emit == "cubin" && arguments->out.empty())
      throw UsageError("--emit=cubin gives machine code, not text; name a file with --out");
    const std::string text = text_of(program, *arguments);
    std::vector<std::string> files;
    if (!arguments->out.empty()) files = write_emitted(program, *arguments, text, common);
    if (!common.json) {
      // Who asks for kernels and names nothing else wants these.
      if (files.empty() && !(common.kernels && arguments->emit == "ir" && arguments->dump.empty()))
        put_program(text);
      return;
    }
    nlohmann::ordered_json all{{"name", program.name()},
                               {"inputs", describe(program.inputs())},
                               {"outputs", describe(program.outputs())}};
    if (files.empty()) {
      all[arguments->dump.empty() ? arguments->emit : "dump"] = text;
    } else {
      all["files"] = files;
    }
    if (arguments->passes) all["passes"] = describe(program.passes());
    add_kernels(all, common);
    print_json(all);
  });
}

}  // namespace segfuse::cli
