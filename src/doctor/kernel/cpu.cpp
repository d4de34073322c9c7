#include "doctor/kernel/cpu.h"

#include <algorithm>

#include "base/os/file.h"
#include "base/text.h"
#include "doctor/kernel/elf.h"
#include "jit/cpu_compiler.h"
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
    loops.push_back({static_cast<std::uint64_t>(*number), remark.starts_with("vectorized loop"),
                     std::string(remark)});
  }
  std::stable_sort(loops.begin(), loops.end(),
                   [](const KernelLoop& a, const KernelLoop& b) { return a.line < b.line; });
  return loops;
}

void read_c_file(KernelReport& report, const std::filesystem::path& file) {
  std::string reason;
  const auto compiler = jit::open_cpu_compiler(&reason, {.folder = std::filesystem::path()});
  if (!compiler) throw DeviceError("{}: there is no compiler for C files: {}", report.file, reason);
  const jit::CSource source{file.filename().string(), read_file(file)};
  std::string object;
  try {
    object = compiler->compile_object(source, compiler->target());
    report.loops = parse_remarks(compiler->vector_report(source));
  } catch (const jit::CompileError& error) {
    throw DataError("{}:{}: {}", report.file, error.line(), error.message());
  }
  report.source =
      fmt::format("C, compiled by {} for {}", compiler->version(), compiler->target().cpu);
  for (const ElfFunction& function : parse_elf(object, report.file).functions) {
    KernelInfo kernel;
    kernel.name = function.name;
    kernel.architecture = compiler->target().cpu;
    kernel.code_bytes = function.size;
    report.kernels.push_back(std::move(kernel));
  }
  std::sort(report.kernels.begin(), report.kernels.end(),
            [](const KernelInfo& a, const KernelInfo& b) { return a.name < b.name; });
  if (report.loops.empty()) report.notes.emplace_back("The vectorisers met no loop in this file.");
}

}  // namespace segfuse::doctor
