// segfuse run

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "segfuse/error.h"
#include "segfuse/ops.h"
#include "segfuse/program.h"

namespace segfuse::cli {
namespace {

constexpr std::int64_t kShown = 6;
constexpr std::size_t kLongestName = 200;
constexpr std::size_t kNamedFiles = 3;

struct RunArguments {
  std::filesystem::path file;
  std::vector<std::string> inputs;
  std::vector<std::string> sizes;
  std::filesystem::path out;
  bool excess_precision = false;
  std::string precision = "float32";
};

/// NAME=FILE of each --input.
std::map<std::string, std::filesystem::path> parse_inputs(const std::vector<std::string>& texts) {
  std::map<std::string, std::filesystem::path> files;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      throw UsageError(
          fmt::format("--input '{}' is not understood; write --input NAME=FILE.npy", text));
    if (!files.emplace(text.substr(0, equals), text.substr(equals + 1)).second)
      throw UsageError(fmt::format("--input: '{}' is given twice", text.substr(0, equals)));
  }
  return files;
}

std::string names_of(const std::vector<ValueInfo>& values) {
  std::vector<std::string> names;
  for (const ValueInfo& value : values) names.push_back("'" + value.name + "'");
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

/// What a program runs on, and where each of it comes from.
struct Inputs {
  std::vector<Tensor> tensors;
  std::vector<std::pair<std::string, std::filesystem::path>> files;  ///< by the input's name
  void add(const std::string& name, Tensor tensor, const std::filesystem::path& file) {
    tensors.push_back(std::move(tensor));
    files.emplace_back(name, file);
  }
};

Tensor read_input(const ValueInfo& input, const std::filesystem::path& file) {
  Tensor tensor = read_npy(file);
  if (tensor.dtype() != input.dtype)
    throw UsageError(fmt::format("{}: holds {}{}, but the input '{}' of the program is {}{}",
                                 file.string(), name_of(tensor.dtype()), to_string(tensor.shape()),
                                 input.name, name_of(input.dtype), input.shape));
  return tensor;
}

Inputs read_inputs(const Program& program, const RunArguments& arguments) {
  std::map<std::string, std::filesystem::path> files = parse_inputs(arguments.inputs);
  std::map<std::string, Tensor> in_comments;
  const std::vector<ValueInfo> wanted = program.inputs();
  if (files.size() < wanted.size())
    in_comments = values_in_comments(arguments.file, parse_sizes(arguments.sizes));
  Inputs inputs;
  for (const ValueInfo& input : wanted) {
    const auto file = files.find(input.name);
    if (file != files.end()) {
      inputs.add(input.name, read_input(input, file->second), file->second);
      files.erase(file);
    } else if (in_comments.contains(input.name)) {
      inputs.add(input.name, in_comments.at(input.name), arguments.file);
    } else {
      throw UsageError(fmt::format(
          "{}: the input '{}' ({}{}) has no values; pass --input {}=FILE.npy",
          arguments.file.string(), input.name, name_of(input.dtype), input.shape, input.name));
    }
  }
  if (!files.empty())
    throw UsageError(fmt::format("--input {}={}: the program has no such input; its inputs are {}",
                                 files.begin()->first, files.begin()->second.string(),
                                 names_of(wanted)));
  return inputs;
}

/// " (x is x.npy, scale is scale.npy)": the inputs that a message names, or else the first ones.
std::string files_in(const std::string& message, const Inputs& inputs) {
  std::vector<std::string> named, all;
  for (const auto& [name, file] : inputs.files) {
    all.push_back(fmt::format("{} is {}", name, file.string()));
    if (message.find("'" + name + "'") != std::string::npos) named.push_back(all.back());
  }
  std::vector<std::string>& shown = named.empty() ? all : named;
  const bool more = shown.size() > kNamedFiles;
  if (more) shown.resize(kNamedFiles);
  return fmt::format(" ({}{})", fmt::join(shown, ", "), more ? ", ..." : "");
}

/// What the program says about its inputs knows their names alone.
[[noreturn]] void refuse_inputs(const Program& program, const Inputs& inputs, const RunOptions& how,
                                const Error& error) {
  const std::string message = error.what();
  try {
    program.run({}, how);
  } catch (const Error& without) {
    if (without.what() == message) throw;  // it is about the options
  }
  const std::string whole = message + files_in(message, inputs);
  if (error.exit_code() == ExitCode::kData) throw DataError(whole);
  throw UsageError(whole);
}

std::vector<Tensor> run_on(const Program& program, const Inputs& inputs, const RunOptions& how) {
  try {
    std::vector<Tensor> outputs = program.run(inputs.tensors, how);
    program.check();
    return outputs;
  } catch (const UsageError& error) {
    refuse_inputs(program, inputs, how, error);
  } catch (const DataError& error) {
    refuse_inputs(program, inputs, how, error);
  }
}

struct Summary {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  double sum = 0;
  std::int64_t finite = 0;
  std::int64_t nan = 0;
};

Summary summary_of(const Tensor& tensor) {
  Summary all;
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    const double value = tensor.at(i);
    if (std::isnan(value)) ++all.nan;
    if (!std::isfinite(value)) continue;
    ++all.finite;
    all.least = std::min(all.least, value);
    all.most = std::max(all.most, value);
    all.sum += value;
  }
  return all;
}

/// Names of files as well: what is no name of a file, or not the only one, gets a number.
std::vector<std::string> names_of_outputs(const Program& program) {
  std::vector<std::string> names;
  for (const ValueInfo& output : program.outputs()) {
    const bool usable =
        !output.name.empty() && output.name[0] != '.' && output.name.size() <= kLongestName &&
        std::all_of(output.name.begin(), output.name.end(),
                    [](unsigned char c) { return c > ' ' && c != '/' && c != 0x7F; });
    const bool taken = std::find(names.begin(), names.end(), output.name) != names.end();
    names.push_back(usable && !taken ? output.name : fmt::format("output_{}", names.size()));
  }
  return names;
}

/// What `--out` makes; refused before anything runs where something is in the way.
std::vector<std::filesystem::path> files_of(const std::vector<std::string>& names,
                                            const RunArguments& arguments, bool overwrite) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& name : names) {
    paths.push_back(arguments.out / (name + ".npy"));
    std::error_code ignored;
    if (!overwrite && std::filesystem::symlink_status(paths.back(), ignored).type() !=
                          std::filesystem::file_type::not_found)
      throw UsageError(
          fmt::format("{} exists already; pass --overwrite to replace it, or choose another --out",
                      paths.back().string()));
  }
  std::error_code error;
  std::filesystem::create_directories(arguments.out, error);
  if (!std::filesystem::is_directory(arguments.out))
    throw DataError(fmt::format("--out {}: this is not a folder, and none can be made there",
                                arguments.out.string()));
  return paths;
}

nlohmann::ordered_json describe(const std::string& name, const Tensor& tensor) {
  const Summary all = summary_of(tensor);
  nlohmann::ordered_json json{
      {"name", name}, {"dtype", name_of(tensor.dtype())}, {"shape", tensor.shape()}};
  if (all.finite > 0) {
    json["min"] = all.least;
    json["mean"] = all.sum / static_cast<double>(all.finite);
    json["max"] = all.most;
  }
  json["nan"] = all.nan;
  json["infinite"] = tensor.size() - all.finite - all.nan;
  return json;
}

void print_summary(const std::string& name, const Tensor& tensor) {
  const Summary all = summary_of(tensor);
  std::string text =
      fmt::format("{}  {}{}", name, name_of(tensor.dtype()), to_string(tensor.shape()));
  if (all.finite > 0)
    text += fmt::format("  min {:.6g}, mean {:.6g}, max {:.6g}", all.least,
                        all.sum / static_cast<double>(all.finite), all.most);
  if (all.nan > 0) text += fmt::format("  {} NaN", all.nan);
  const std::int64_t infinite = tensor.size() - all.finite - all.nan;
  if (infinite > 0) text += fmt::format("  {} infinite", infinite);
  put("{}\n ", text);
  for (std::int64_t i = 0; i < std::min(tensor.size(), kShown); ++i) put(" {:.9g}", tensor.at(i));
  put("{}\n", tensor.size() > kShown ? " ..." : "");
}

void run_program(const RunArguments& arguments, Common& common) {
  const Program program = Program::from_file(arguments.file);
  const Inputs inputs = read_inputs(program, arguments);
  std::vector<std::filesystem::path> files;
  const std::vector<std::string> names = names_of_outputs(program);
  if (!arguments.out.empty()) files = files_of(names, arguments, common.overwrite);
  const std::vector<Tensor> outputs = run_on(program, inputs,
                                             {.context = Context::process_default(),
                                              .excess_precision = arguments.excess_precision,
                                              .precision = arguments.precision});
  auto all = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor output = outputs[i].to_host();
    if (!files.empty()) write_npy(files[i], output);
    if (!common.json) {
      print_summary(names[i], output);
      continue;
    }
    all.push_back(describe(names[i], output));
    if (!files.empty()) all.back()["file"] = files[i].string();
  }
  if (!common.json) return;
  nlohmann::ordered_json json{{"name", program.name()}, {"outputs", all}};
  add_kernels(json, common);
  print_json(json);
}

}  // namespace

void add_run(Command app, Common& common) {
  Command command = app.add("run", "Run a program in text form on NumPy arrays");
  const auto arguments = std::make_shared<RunArguments>();
  command.option("file", arguments->file, "The program (.sf)").required();
  command
      .option("--input", arguments->inputs,
              "Values of an input, as NAME=FILE.npy; needed for each input whose values are not in "
              "comments of the program")
      .takes_one_at_a_time();
  command.option("--size", arguments->sizes,
                 "Value of a symbolic size, as in B=32, for inputs whose values are in comments of "
                 "the program");
  command.option("--out", arguments->out, "Also write each output to NAME.npy in this folder");
  command.flag("--excess-precision", arguments->excess_precision,
               "Round 16-bit values only where kernels store them, not after each operation");
  command
      .option("--precision", arguments->precision,
              "Precision of float32 matrix products on a GPU: float32, or tf32, which is faster")
      .shows_default();
  command.footer(
      "\nExamples:\n  segfuse run program.sf --input x=x.npy --input scale=scale.npy\n"
      "  segfuse run program.sf --input x=x.npy --out results --backend reference");
  command.runs([arguments, &common] { run_program(*arguments, common); });
}

}  // namespace segfuse::cli
