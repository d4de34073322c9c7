#include "doctor/kernel/cpu.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/os/file.h"
#include "base/text.h"
#include "doctor/elf.h"
#include "segfuse/error.h"

namespace segfuse::doctor {

std::vector<KernelLoop> parse_remarks(std::string_view remarks) {
  std::vector<KernelLoop> loops;
  for (const std::string_view line : split_lines(remarks)) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string_view::npos) continue;
    const auto number = parse_int(line.substr(0, colon));
    if (!number || *number < 1) continue;
    const std::string_view remark = line.substr(colon + 2);
    if (remark.find("loop") == std::string_view::npos) continue;  // of code without loops
    loops.push_back({static_cast<std::uint64_t>(*number), remark.starts_with("vectorized loop"),
                     std::string(remark)});
  }
  std::stable_sort(loops.begin(), loops.end(),
                   [](const KernelLoop& a, const KernelLoop& b) { return a.line < b.line; });
  // A loop that was copied, as by unrolling, is spoken of again.
  const auto same = [](const KernelLoop& a, const KernelLoop& b) {
    return a.line == b.line && a.remark == b.remark;
  };
  loops.erase(std::unique(loops.begin(), loops.end(), same), loops.end());
  return loops;
}

std::string source_of(const jit::CpuCompiler& compiler) {
  return fmt::format("C, compiled by {} for {}", compiler.version(), compiler.target().cpu);
}

void add_c_text(KernelReport& report, const jit::CpuCompiler& compiler,
                const jit::CSource& source) {
  const std::string object = compiler.compile_object(source, compiler.target());
  for (KernelLoop& loop : parse_remarks(compiler.vector_report(source)))
    report.loops.push_back(std::move(loop));
  for (const ElfFunction& function : parse_elf(object, source.name).functions) {
    KernelInfo kernel;
    kernel.name = function.name;
    kernel.architecture = compiler.target().cpu;
    kernel.code_bytes = function.size;
    report.kernels.push_back(std::move(kernel));
  }
}

void read_c_file(KernelReport& report, const std::filesystem::path& file) {
  std::string reason;
  const auto compiler = jit::open_cpu_compiler(&reason);
  if (!compiler)
    throw DeviceError(fmt::format("{}: there is no compiler for C files: {}", report.file, reason));
  report.source = source_of(*compiler);
  try {
    add_c_text(report, *compiler, {file.filename().string(), read_file(file)});
  } catch (const jit::CompileError& error) {
    throw DataError(fmt::format("{}:{}: {}", report.file, error.line(), error.message()));
  }
  std::sort(report.kernels.begin(), report.kernels.end(),
            [](const KernelInfo& a, const KernelInfo& b) { return a.name < b.name; });
  if (report.loops.empty()) report.notes.emplace_back("The vectorisers met no loop in this file.");
}

}  // namespace segfuse::doctor
